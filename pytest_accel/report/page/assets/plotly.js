// The plotting library: unpacked when the first plot is wanted, so that the page itself opens at once.

let library = null;

function plotly() {
  library ??= unpack();
  return library;
}

async function unpack() {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("This browser cannot unpack the plots. Chrome 80, Firefox 113, Safari 16.4 and newer can.");
  }
  const packed = Uint8Array.from(atob(document.getElementById("library").textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  if (!window.Plotly) throw new Error("The plotting library did not start in this browser.");
  return window.Plotly;
}

const planned = new Map(); // element -> its figure, drawn when it comes into view, or for the printer
const drawn = new Map(); // element -> its figure, drawn again when the theme changes

/** Draws figure() into the element; what it shows stands in words or tables beside it. */
async function draw(element, figure) {
  if (drawn.has(element)) return;
  const wait = make("p", { class: "wait" }, "Drawing…");
  element.replaceChildren(wait);
  try {
    const Plotly = await plotly();
    if (!element.isConnected || drawn.has(element)) return;
    wait.remove();
    await redraw(Plotly, element, figure);
    drawn.set(element, figure);
  } catch (error) {
    element.replaceChildren(make("p", { class: "wait" }, error.message));
  }
}

function redraw(Plotly, element, figure) {
  const { traces, layout } = figure();
  return Plotly.react(element, traces, withTheme(layout), {
    displayModeBar: false, responsive: true, showTips: false, // its buttons would cover labels, and one of them shares
  });
}

function forget(element) {
  if (drawn.delete(element)) window.Plotly.purge(element);
}

// Printed, a plot has the width of a page and the light theme's colours. Both have to be there when this returns.
const PRINTED_PX = 640;
let printing = null; // the theme that was chosen before
let folded = [];

addEventListener("beforeprint", () => {
  printing = document.documentElement.dataset.theme ?? "";
  document.documentElement.dataset.theme = "light";
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const fold of folded) fold.open = true; // paper does not unfold
  for (const [element, figure] of window.Plotly ? planned : []) {
    if (drawn.has(element)) continue;
    element.replaceChildren();
    drawn.set(element, figure);
  }
  for (const [element, figure] of drawn) redraw(window.Plotly, element, figure);
});
addEventListener("afterprint", () => {
  const before = printing;
  printing = null;
  for (const fold of folded) fold.open = false;
  if (before) document.documentElement.dataset.theme = before;
  else delete document.documentElement.dataset.theme;
  for (const [element, figure] of drawn) redraw(window.Plotly, element, figure);
});

document.addEventListener("themechange", async () => {
  if (drawn.size === 0) return;
  const Plotly = await plotly();
  for (const [element, figure] of drawn) {
    if (element.isConnected) redraw(Plotly, element, figure);
    else forget(element);
  }
});

function withTheme(layout) {
  const axis = {
    gridcolor: colour("line"), linecolor: colour("line"), zeroline: false, automargin: true, tickfont: { color: colour("quiet") },
  };
  const title = (found) => (found?.title ? { title: { font: { color: colour("quiet") }, standoff: 8, ...found.title } } : {});
  return {
    margin: { l: 10, r: 10, t: layout.annotations?.length ? 26 : 10, b: 10 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("text") },
    hoverlabel: { bgcolor: colour("surface"), bordercolor: colour("strong-line"), font: { color: colour("text") }, align: "left" },
    legend: { orientation: "h", y: -0.2, yanchor: "top", x: 0, font: { color: colour("text") } },
    hovermode: "closest", ...(printing === null ? { autosize: true } : { autosize: false, width: PRINTED_PX }), dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a thumb scrolls
    ...layout,
    xaxis: { ...axis, ...layout.xaxis, ...title(layout.xaxis) },
    yaxis: { ...axis, ...layout.yaxis, ...title(layout.yaxis) },
  };
}

/** plotly reads a little HTML in its texts, and TeX between dollars: names from outside must not be either. */
function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll("$", "&#36;");
}

/** For legends and labels: a long name keeps its end, where its parameters are. */
function short(text, most = 48) {
  const whole = String(text).replace(/\s+/gu, " ");
  return plain(whole.length <= most ? whole : `…${whole.slice(1 - most)}`);
}

/** Four significant digits and thousands separators, as the terminal writes rates. */
function rate(value) {
  const digits = value ? Math.max(0, 3 - Math.floor(Math.log10(Math.abs(value)))) : 0;
  return value.toLocaleString("en-US", { minimumFractionDigits: Math.min(digits, 20), maximumFractionDigits: Math.min(digits, 20) });
}
