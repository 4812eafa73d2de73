// Figures: what each plot shows, in the theme's colours. Names reach them through plain() and short() alone.

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

function line(place, tone, dash) {
  return { type: "line", layer: "below", line: { color: colour(tone), width: 1.5, dash }, ...place };
}

function label(text, place, tone) {
  return { text, showarrow: false, font: { size: 11, color: colour(tone) }, ...place };
}
