// What a row opens to. Built when it is opened, thrown away when it is closed.

function panel(id) {
  const found = data.details[id];
  const rounds = data.rounds[id];
  const past = data.past[id];
  const wide = [
    found.numbers && make("p", { class: "numbers wide" }, isolated(found.numbers)),
    make("div", { class: "said wide" }, (found.lines ?? []).map(([word, tone, sign, text, status]) => make("p", null, badge(tone, sign, word, document.getElementById(`about-${status}`) ? status : ""), make("span", null, isolated(prose(text)))))),
    found.note && make("pre", { class: "wide", tabindex: "0" }, found.note),
    found.kernels && kernelsBlock(found.kernels),
  ];
  const left = [rounds && roundsBlock(rounds), past && pastBlock(past)].filter(Boolean);
  const right = [
    found.causes && block("What explains the loss", definitions(found.causes)),
    found.changes && changesBlock(found.changes),
    found.same && block("Changed since its baseline", make("p", null, "Nothing in the recorded environment.")),
    found.commands && block("Next", found.commands.map(([title, text]) => make("div", { class: "labelled" }, make("span", { class: "quiet" }, title), command(text)))),
    found.metrics && block("Metrics", definitions(found.metrics)),
  ].filter(Boolean);
  const references = found.references ? [referencesBlock(found.references)] : [];
  const isMissed = (found.references ?? []).some((each) => each.gate === "missed");
  if (isMissed) wide.push(make("div", { class: "stack wide" }, references)); // that is what it failed on
  const below = [
    ...(isMissed ? [] : references),
    found.configuration && block("Configuration", definitions(found.configuration)),
    found.facts && block("Benchmark", definitions(found.facts)),
  ].filter(Boolean);
  return make(
    "div", { class: "panel" }, wide,
    left.length > 0 && right.length > 0
      ? [make("div", { class: "stack" }, left), make("div", { class: "stack" }, right)]
      : make("div", { class: "stack wide" }, left, right),
    make("div", { class: "stack wide" }, below),
  );
}

/** What a loss consists of: bars from the baseline's step time to this session's, and the same as a table. */
function kernelsBlock(found) {
  const plot = make("div", { class: "plot", role: "img", "aria-label": "Step time from the baseline to this session; the table below has the same changes" });
  queueMicrotask(() => draw(plot, () => waterfallFigure(found.bars)));
  const isFigure = (index) => found.headings[index].endsWith(">");
  const cell = (tag) => (text, index) => make(tag, { class: isFigure(index) ? "right" : null }, isFigure(index) ? text : breakable(text));
  const cells = (tag, texts) => make("tr", null, texts.map(cell(tag)));
  const table = make(
    "table", { class: "small" },
    make("thead", null, cells("th", found.headings.map((text) => text.replace(/>$/u, "")))), make("tbody", null, found.rows.map((row) => cells("td", row))),
  );
  const caption = make("p", { class: "caption" }, "From the baseline's step time to this session's. The axis may begin above zero.");
  const section = block("Where the time went", plot, caption, make("div", { class: "scrolled", tabindex: "0" }, table));
  section.classList.add("wide");
  return section;
}

const block = (title, ...content) => make("section", null, make("h3", null, title), ...content);

function roundsBlock(found) {
  const plot = make("div", { class: "plot", role: "img", "aria-label": "Rounds of each run; the table below has the same runs" });
  queueMicrotask(() => draw(plot, () => roundsFigure(found)));
  const row = (who) => (run, index) =>
    make("tr", null, make("td", null, `${who} ${index + 1}`), make("td", { class: "right" }, `${rate(run.throughput)} `, isolated(found.unit)), make("td", null, isolated(run.session)));
  const table = make(
    "table", { class: "small" },
    make("thead", null, make("tr", null, make("th", null, "Run"), make("th", { class: "right" }, "Throughput"), make("th", null, "Session"))),
    make("tbody", null, found.now.map(row("this session")), found.then.map(row("baseline"))),
  );
  const caption = found.then.length
    ? "A dot is a round, a bar a run, a diamond the centre of all with its 95 % interval. Shaded: the baseline's interval, and the tolerance around it."
    : "A dot is a round, a bar a run, a diamond the centre of all with its 95 % interval.";
  return block("Rounds", plot, make("p", { class: "caption" }, caption), make("details", { class: "fold" }, make("summary", null, "Runs as a table"), table));
}

function pastBlock(found) {
  const plot = make("div", { class: "plot low", role: "img", "aria-label": "Throughput over time" });
  queueMicrotask(() => draw(plot, () => pastFigure(found, data.session)));
  const when = (change) => `${data.nights[found.nights[change.index]][0].slice(0, 10)}: ${change.text}, from ${rate(change.before)} to ${rate(change.after)}`;
  const said = found.changes.length
    ? `Changed on ${found.changes.map(when).join("; ")}. An advice, not a verdict.`
    : `${found.unchanged[0].toUpperCase()}${found.unchanged.slice(1)}.`;
  return block("History", plot, make("p", { class: "caption" }, said));
}

function changesBlock(changes) {
  const items = changes.map(([title, old, now]) =>
    make(
      "li", null, make("span", { class: "quiet" }, title), " ", old !== null && make("del", null, isolated(old)),
      old !== null && now !== null ? " → " : " ", now !== null && make("ins", null, isolated(now)),
      old === null ? " appeared" : now === null ? " gone" : null,
    ));
  return block("Changed since its baseline", make("ul", { class: "changes" }, items));
}

function referencesBlock(references) {
  const row = (each) =>
    make(
      "tr", null,
      make("td", null, make("span", { class: "published" }, make("span", null, breakable(`${each.source}, ${each.platform}`))), each.doubts && make("div", { class: "quiet" }, isolated(each.doubts))),
      make("td", { class: "right" }, isolated(each.figure), each.metric !== "throughput" && make("div", { class: "quiet" }, each.metric)),
      make("td", { class: "right" }, each.ratio || "–", each.gate && make("div", { class: "quiet" }, `gated: ${each.gate}`)),
    );
  return block(
    "References, not measured here",
    make(
      "table", { class: "small references" },
      make("thead", null, make("tr", null, make("th", null, "Source"), make("th", { class: "right" }, "Figure"), make("th", { class: "right" }, "This machine"))),
      make("tbody", null, references.map(row)),
    ),
  );
}
