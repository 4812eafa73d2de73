// Figures: what each plot shows, in the theme's colours. Names reach them through plain() and short() alone.

const LINES = ["accent", "warn", "gain", "bad", "good", "mute"];
const SYMBOLS = ["circle", "square", "triangle-up", "diamond", "cross", "x"]; // colour is never the only sign
const hover = "%{text}<extra></extra>";

/** Rounds of this session's runs beside the baseline's, with both intervals and the tolerance. */
function roundsFigure(found) {
  const groups = [
    { name: "baseline", runs: found.then, interval: found.then_interval, first: 0, colour: colour("then") },
    { name: "this session", runs: found.now, interval: found.now_interval, first: found.then.length, colour: colour("accent") },
  ].filter((group) => group.runs.length);
  const traces = groups.flatMap((group) => groupTraces(group, found.unit));
  const total = found.then.length + found.now.length;
  const shapes = [];
  const annotations = [];
  if (found.then_interval) {
    const [low, point, high] = found.then_interval;
    const limit = point * (1 - found.tolerance);
    shapes.push(
      { type: "rect", xref: "paper", x0: 0, x1: 1, y0: limit, y1: point * (1 + found.tolerance), fillcolor: colour("band"), line: { width: 0 }, layer: "below" },
      { type: "rect", xref: "paper", x0: 0, x1: 1, y0: low, y1: high, fillcolor: colour("band"), line: { width: 0 }, layer: "below" },
      line({ xref: "paper", x0: 0, x1: 1, y0: point, y1: point }, "then", "solid"),
      line({ xref: "paper", x0: 0, x1: 1, y0: limit, y1: limit }, "bad", "dash"),
      line({ yref: "paper", y0: 0, y1: 1, x0: found.then.length - 0.5, x1: found.then.length - 0.5 }, "strong-line", "dot"),
    );
    annotations.push(limitLabel(found.tolerance_text, limit));
  }
  for (const group of groups) {
    const middle = group.first + (group.runs.length - 1) / 2;
    annotations.push(label(group.name, { x: middle, y: 1, yref: "paper", yanchor: "bottom" }, "quiet"));
  }
  return {
    traces,
    layout: {
      showlegend: false, shapes, annotations, height: 300, margin: margin(annotations),
      xaxis: {
        title: { text: "run" }, range: [-0.6, total - 0.4], showgrid: false, tickmode: "array", tickvals: [...Array(total).keys()],
        ticktext: groups.flatMap((group) => group.runs.map((_, index) => String(index + 1))),
      },
      yaxis: { title: { text: short(found.unit, 30) }, tickformat: "," },
    },
  };
}

/** Step time from the baseline to this session: a bar an operation. */
function waterfallFigure(bars) {
  const last = bars.length - 1;
  const levels = [bars[0][1]];
  for (const [, value] of bars.slice(1, last)) levels.push(levels.at(-1) + value);
  const [low, high] = [Math.min(...levels), Math.max(...levels)];
  const from = Math.max(0, low - 2 * (high - low)); // a loss of some percent is not to be seen from zero
  const shown = bars.map(([, value], index) => (index % last ? `${value < 0 ? "" : "+"}${rate(value)}` : rate(value)));
  return {
    traces: [
      {
        type: "waterfall", x: bars.map((_, index) => index), y: bars.map(([, value]) => value),
        measure: bars.map((_, index) => (index === 0 ? "absolute" : index === last ? "total" : "relative")),
        text: bars.map(([name], index) => `${plain(name)}: ${shown[index]} ms`), textposition: "none", hovertemplate: hover,
        increasing: { marker: { color: colour("bad") } }, decreasing: { marker: { color: colour("good") } },
        totals: { marker: { color: colour("accent") } }, connector: { line: { color: colour("then"), width: 1 } },
      },
    ],
    layout: {
      showlegend: false, height: 300, margin: { l: 10, r: 10, t: 10, b: 10 },
      xaxis: { tickmode: "array", tickvals: bars.map((_, index) => index), ticktext: bars.map(([name]) => short(name, 22)), showgrid: false },
      yaxis: { title: { text: "ms a step" }, tickformat: "~r", range: [from, high + 0.05 * (high - from)] },
    },
  };
}

/** Beside the plot: inside it would lie over the rounds. */
function limitLabel(tolerance, y) {
  return label(`tolerance<br>${tolerance}`, { xref: "paper", x: 1, xanchor: "left", xshift: 4, y, yanchor: "middle", align: "left" }, "bad");
}

const margin = (annotations) => ({ l: 10, r: annotations.some((each) => each.xref === "paper") ? 68 : 10, t: 26, b: 10 });

function groupTraces(group, unit) {
  const x = [], y = [], text = [];
  group.runs.forEach((run, number) => {
    const count = run.rounds.length;
    run.rounds.forEach((value, index) => {
      x.push(group.first + number + (count > 1 ? (index / (count - 1) - 0.5) * 0.62 : 0));
      y.push(value);
      text.push(`round ${index + 1} of ${group.name} run ${number + 1}: ${rate(value)} ${plain(unit)}`);
    });
  });
  const [low, point, high] = group.interval;
  const at = group.first + (group.runs.length - 1) / 2;
  return [
    { x, y, text, type: "scatter", mode: "markers", marker: { color: group.colour, size: 5, opacity: 0.55 }, hovertemplate: hover },
    {
      x: group.runs.flatMap((_, number) => [group.first + number - 0.32, group.first + number + 0.32, null]),
      y: group.runs.flatMap((run) => [run.throughput, run.throughput, null]),
      text: group.runs.flatMap((run, number) => Array(3).fill(`${group.name} run ${number + 1}: ${rate(run.throughput)} ${plain(unit)}<br>${plain(run.session)}`)),
      type: "scatter", mode: "lines", line: { color: group.colour, width: 2.5 }, hovertemplate: hover,
    },
    {
      x: [at], y: [point], type: "scatter", mode: "markers", hovertemplate: hover,
      text: [`${group.name}: ${rate(point)} ${plain(unit)}<br>95 % interval ${rate(low)} to ${rate(high)}`],
      marker: { symbol: "diamond", size: 9, color: colour("surface"), line: { width: 2, color: group.colour } },
      error_y: { type: "data", symmetric: false, array: [high - point], arrayminus: [point - low], color: group.colour, thickness: 2, width: 7 },
    },
  ];
}

/** Throughput over time, the level of each stretch, and where it changed. */
function pastFigure(found, session) {
  const nights = found.nights.map((index) => data.nights[index]);
  const at = nights.map(([time]) => time);
  const here = nights.findLastIndex((night) => night[1] === session);
  const text = nights.map(([time, name, revision], i) =>
    `${plain(time.slice(0, 16).replace("T", " "))}: ${rate(found.throughput[i])} ${plain(found.unit)}<br>${plain(name)} ${plain(revision)}`);
  const traces = [
    {
      x: at, y: found.throughput, text, type: "scatter", mode: "lines+markers", hovertemplate: hover,
      line: { color: colour("then"), width: 1 }, marker: { color: colour("accent"), size: 5 },
    },
  ];
  if (here >= 0) {
    traces.push({
      x: [at[here]], y: [found.throughput[here]], text: [`this session: ${rate(found.throughput[here])} ${plain(found.unit)}`],
      type: "scatter", mode: "markers", hovertemplate: hover, marker: { symbol: "circle-open", size: 13, color: colour("accent"), line: { width: 2 } },
    });
  }
  const bounds = [0, ...found.changes.map((change) => change.index), at.length];
  const levels = found.changes.length ? [found.changes[0].before, ...found.changes.map((change) => change.after)] : [];
  const shapes = [
    ...levels.map((level, i) => line({ x0: at[bounds[i]], x1: at[Math.min(bounds[i + 1], at.length - 1)], y0: level, y1: level }, "text", "solid")),
    ...found.changes.map((change) => line({ yref: "paper", y0: 0, y1: 1, x0: at[change.index], x1: at[change.index] }, "warn", "dash")),
  ];
  const annotations = found.changes.map((change) =>
    label(plain(change.text), { x: at[change.index], y: 1, yref: "paper", yanchor: "bottom" }, "warn"));
  return {
    traces,
    layout: { showlegend: false, shapes, annotations, height: 260, xaxis: { type: "date", showgrid: false }, yaxis: { title: { text: short(found.unit, 30) }, tickformat: "," } },
  };
}

/** Measured lines in front, those of their baselines dotted and hollow; published curves behind: dashed, hollow diamonds, without colour. */
function sweepFigure(found) {
  const published = found.published.map((curve, number) => ({
    x: curve.points.map(([size]) => size), y: curve.points.map(([, value]) => value),
    text: curve.points.map(([size, value, flags]) => `published, ${short(curve.name)}<br>batch ${size}: ${rate(value)} ${plain(found.unit)}${flags ? `<br>${plain(flags)}` : ""}`),
    name: `published: ${short(curve.name)}`, type: "scatter", mode: curve.points.length > 1 ? "lines+markers" : "markers", hovertemplate: hover,
    line: { color: colour("then"), width: 1.5, dash: ["dash", "dot", "dashdot"][number % 3] }, marker: { symbol: "diamond-open", size: 8, color: colour("then") },
  }));
  const curve = (points, name) => ({
    x: points.map(([size]) => size), y: points.map(([, value]) => value),
    text: points.map(([size, , said]) => `${name}<br>batch ${size}: ${plain(said)}`), name,
  });
  const measured = found.lines.flatMap((each, number) => {
    const now = styled(number, curve(each.points, short(each.name)));
    const { line: stroke, marker } = now;
    const then = { ...now, ...curve(each.then, `${short(each.name)}, baseline`), line: { ...stroke, width: 1.5, dash: "dot" }, marker: { ...marker, symbol: `${marker.symbol}-open` } };
    return each.then.length ? [then, now] : [now];
  });
  const sizes = [...new Set([...found.lines, ...found.published].flatMap((each) => each.points.map(([size]) => size)))].sort((a, b) => a - b);
  return {
    traces: [...published, ...measured],
    layout: {
      height: 380, showlegend: true,
      xaxis: { title: { text: "batch size" }, type: "log", showgrid: false, tickmode: "array", tickvals: spaced(sizes), ticktext: spaced(sizes).map(String) },
      yaxis: { title: { text: short(found.unit, 30) }, rangemode: "tozero", tickformat: "," },
    },
  };
}

function styled(number, trace) {
  const tone = colour(LINES[number % LINES.length]);
  const symbol = SYMBOLS[number % SYMBOLS.length];
  return { type: "scatter", mode: "lines+markers", hovertemplate: hover, line: { color: tone, width: 2 }, marker: { color: tone, size: 8, symbol }, ...trace };
}

function line(place, tone, dash) {
  return { type: "line", layer: "below", line: { color: colour(tone), width: 1.5, dash }, ...place };
}

function label(text, place, tone) {
  return { text, showarrow: false, font: { size: 11, color: colour(tone) }, ...place };
}

/** Ticks of a logarithmic axis that do not run into each other. */
function spaced(sizes) {
  let last = 0;
  return sizes.filter((size) => (size >= last * 1.4 ? ((last = size), true) : false));
}
