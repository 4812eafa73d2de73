// Elements from data: text is text, whatever it holds. Nothing on this page is ever parsed as HTML.

const data = JSON.parse(document.getElementById("data").textContent);

/** make("a", {class: "x", href: "#y"}, "text", element, null): what is null, false or empty is left out. */
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child || child === 0) element.append(child);
  }
  return element;
}

/** Where a long name may go on in the next line: behind a sign of its own, and nowhere else if it can be helped. */
function breakable(text) {
  const parts = String(text).match(/[^_/.:,=[\]-]*[_/.:,=[\]-]*/gsu) ?? [];
  return make("bdi", null, parts.filter(Boolean).flatMap((part, index) => (index ? [make("wbr"), part] : [part])));
}

/** A sentence, with what stands between backticks as code: as `prose` of the template. */
const prose = (text) => String(text).split(/`([^`\n]+)`/u).map((part, index) => (index % 2 ? make("code", null, part) : part));

const isolated = (text) => make("bdi", null, text); // a name written from right to left stays within itself

function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(space, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

/** With a status it leads to what that means, at the end of the page. */
const badge = (tone, sign, text, status = "") =>
  make(status ? "a" : "span", { class: `badge ${tone}`, href: status ? `#about-${status}` : null }, icon(sign), text);

/** Adds the button that copies a command. */
function copyable(line) {
  const said = make("span", { "aria-live": "polite" }, "Copy");
  const text = line.querySelector("code").textContent;
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      said.textContent = "Copied";
    } catch { // no clipboard from file:// in some browsers: select it, so that Ctrl-C is enough
      getSelection().selectAllChildren(line.querySelector("code"));
      said.textContent = "Selected";
    }
    setTimeout(() => { said.textContent = "Copy"; }, 2000);
  };
  // Lines end between the words of a command, not behind a hyphen within one; those that are long must.
  line.querySelector("code").replaceChildren(...text.split(/( )/u).map((word) => (word.length > 28 || word === " " ? word : make("span", { class: "word" }, word))));
  line.append(make("button", { type: "button", class: "copy", click: copy, "aria-label": `Copy: ${text}` }, icon("copy"), said));
  return line;
}

const command = (text) => copyable(make("span", { class: "command" }, make("code", null, text)));

const definitions = (pairs) =>
  make("dl", { class: "facts" }, pairs.map(([name, text]) => make("div", null, make("dt", null, breakable(name)), make("dd", null, breakable(text)))));
