// The verdict table: sorted by any column, filtered by verdict, platform and suite, searched by text.

const CHUNK = 200; // rows made at once; the next ones when the end comes into view
const { columns, rows, statuses } = data.table;
const looks = new Map(statuses.map((each) => [each.status, each]));
const place = Object.fromEntries(columns.map((column, index) => [column.key, index]));
const FIRST_DOWN = new Set(["throughput", "change", "noise", "baseline", "mfu", "reference"]);

const state = { sort: "verdict", down: false, statuses: new Set(), platform: "", suite: "", text: "", shown: CHUNK };
const open = new Set();
const body = make("tbody", null);
const count = make("p", { class: "shown", role: "status" });
const heads = new Map();
let listed = [];
for (const row of rows) row.haystack = `${row.name}\n${row.file}\n${row.platform}\n${row.suite}\n${looks.get(row.status).word}`.toLowerCase();

function matching() {
  const words = state.text.toLowerCase().split(/\s+/u).filter(Boolean);
  return rows.filter((row) =>
    (state.statuses.size === 0 || state.statuses.has(row.status))
    && (!state.platform || row.platform === state.platform)
    && (!state.suite || row.suite === state.suite)
    && words.every((word) => row.haystack.includes(word)));
}

function sorted(found) {
  if (state.sort === "verdict" && !state.down) return found; // as it came: what fails first, the greatest loss first
  const index = place[state.sort];
  const sign = state.down ? -1 : 1;
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  return [...found].sort((one, other) => {
    const [a, b] = [one.cells[index][1], other.cells[index][1]];
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * compare(a, b);
  });
}

function show() {
  listed = sorted(matching());
  for (const row of rows) if (row.details) close(row, { keep: true });
  body.replaceChildren();
  append(0, state.shown);
  for (const [key, head] of heads) head.setAttribute("aria-sort", key !== state.sort ? "none" : state.down ? "descending" : "ascending");
  clearing.hidden = !(state.text || state.platform || state.suite || state.statuses.size);
  const noun = rows.length === 1 ? "benchmark" : "benchmarks";
  count.textContent = listed.length === rows.length ? `${rows.length} ${noun}` : `${listed.length} of ${rows.length} ${noun}`;
}

function append(from, to) {
  const part = listed.slice(from, to);
  const fragment = document.createDocumentFragment();
  for (const row of part) fragment.append(element(row));
  if (listed.length === 0) fragment.append(make("tr", null, make("td", { colspan: columns.length, class: "empty" }, rows.length ? "Nothing matches. Clear the filters to see all." : "No benchmark was found.")));
  body.append(fragment);
  for (const row of part) if (open.has(row.id)) expand(row);
  more.hidden = body.querySelectorAll("tr.row").length >= listed.length;
}

/** The element of a row, made once. */
function element(row) {
  row.element ??= make("tr", { class: "row", id: `b${row.id}` }, columns.map((column, index) => cell(row, column, ...row.cells[index])));
  return row.element;
}

function cell(row, column, text, _, below) {
  const lesser = column.lesser ? ` lesser-${column.lesser}` : "";
  const look = looks.get(row.status);
  const then = column.key === "throughput" && place.baseline !== undefined && row.cells[place.baseline][0];
  switch (column.key) {
    case "verdict":
      return make("td", { class: "nowrap" }, badge(look.tone, look.icon, text), row.unsteady && make("div", null, badge("warn", "bang", "not steady")));
    case "benchmark":
      row.opener = make("button", { type: "button", class: "opener", "aria-expanded": "false" }, icon("open"), make("span", { class: "long" }, breakable(text)));
      return make("td", { class: "name" }, row.opener);
    case "change": {
      const picture = row.picture && interval(row.picture, row.tone);
      return text ? make("td", { class: "last" }, make("div", { class: "change" }, picture, make("span", null, text, small(below)))) : make("td", null);
    }
    default:
      return make("td", { class: `${column.right ? "right" : "nowrap"}${lesser} of-${column.key}`, "data-then": then || null, title: text.length > 24 ? text : null }, text && isolated(text), small(below));
  }
}

const small = (text) => text && make("div", { class: "below" }, isolated(text));

/** A change with its bounds; an arrow at the edge where it goes on beyond it. */
function interval([low, point, high, ...tolerance], tone) {
  const picture = make("span", { class: `interval ${tone}${low <= 0 ? " beyond-left" : ""}${high >= 1 ? " beyond-right" : ""}`, "aria-hidden": "true" });
  [low, point, high, ...tolerance].forEach((place, i) => picture.style.setProperty(["--low", "--point", "--high", "--t1", "--t2"][i], place));
  if (point <= 0 || point >= 1) picture.style.setProperty("--block", "0px"); // the arrow stands for it
  return picture;
}

function expand(row) {
  if (row.details) return;
  open.add(row.id);
  row.opener.setAttribute("aria-expanded", "true");
  row.element.classList.add("open");
  row.details = make("tr", { class: "details", id: `d${row.id}` }, make("td", { colspan: columns.length }, panel(row.id)));
  row.opener.setAttribute("aria-controls", `d${row.id}`);
  row.element.after(row.details);
}

function close(row, { keep = false } = {}) {
  if (!keep) open.delete(row.id);
  row.opener.setAttribute("aria-expanded", "false");
  row.opener.removeAttribute("aria-controls");
  row.element.classList.remove("open");
  row.details.querySelectorAll(".plot").forEach(forget);
  row.details.remove();
  row.details = null;
}

/** Opens one benchmark wherever it is, whatever is filtered away. */
function reveal(id) {
  const row = rows.find((each) => each.id === id);
  if (!row) return;
  if (!listed.includes(row)) clear();
  if (!row.element?.isConnected) { state.shown = listed.indexOf(row) + 1; show(); }
  expand(row);
  row.element.scrollIntoView({ block: "start" });
  row.opener.focus({ preventScroll: true });
}

function change(key, value) {
  state[key] = value;
  state.shown = CHUNK;
  show();
}

// --- tools -----------------------------------------------------------------------------------------------

const search = make("input", { type: "search", placeholder: "Search ( / )", "aria-label": "Search benchmarks", spellcheck: "false", input: () => change("text", search.value) });
const more = make("button", { type: "button", class: "quiet-button more-rows", hidden: true, click: () => { const from = state.shown; state.shown += CHUNK; append(from, state.shown); } }, "Show more");
const platformChoice = choice("platform", "All platforms");
const suiteChoice = choice("suite", "All suites");
const chips = new Map(statuses.map((each) => [each.status, chip(each)]));
const clearing = make("button", { type: "button", class: "quiet-button", click: () => { clear(); search.focus(); } }, "Clear filters");

function choice(key, all) {
  const values = [...new Set(rows.map((row) => row[key]))].sort();
  if (values.length < 2) return null;
  const select = make("select", { "aria-label": all, change: () => change(key, select.value === "" ? "" : values[Number(select.value)]) }, make("option", { value: "" }, all), values.map((value, index) => make("option", { value: index }, value.length > 60 ? `${value.slice(0, 59)}…` : value)));
  return select;
}

function chip({ status, word, tone, icon: sign }) {
  const number = rows.filter((row) => row.status === status).length;
  return make("button", { type: "button", class: `badge ${tone}`, "aria-pressed": "false", "data-chip": status, click: () => only(status, { toggle: true }) }, icon(sign), `${word} ${number}`);
}

function only(status, { toggle = false } = {}) {
  if (!toggle) state.statuses.clear();
  if (!state.statuses.delete(status)) state.statuses.add(status);
  for (const [each, button] of chips) button.setAttribute("aria-pressed", String(state.statuses.has(each)));
  change("statuses", state.statuses);
}

function clear() {
  Object.assign(state, { platform: "", suite: "", text: "", shown: CHUNK });
  state.statuses.clear();
  search.value = "";
  for (const select of [platformChoice, suiteChoice]) if (select) select.value = "";
  for (const button of chips.values()) button.setAttribute("aria-pressed", "false");
  show();
}

function sortBy(key) {
  state.down = state.sort === key ? !state.down : FIRST_DOWN.has(key);
  change("sort", key);
}

function head(column) {
  const lesser = column.lesser ? ` lesser-${column.lesser}` : "";
  const th = make(
    "th", { scope: "col", class: `${column.right ? "right" : ""}${lesser}`, "aria-sort": "none" },
    make("button", { type: "button", title: column.help || null, "data-sort": column.key, click: () => sortBy(column.key) }, column.title),
  );
  heads.set(column.key, th);
  return th;
}

// --- keyboard: arrows from row to row, Home and End, Escape closes, / searches --------------------------

function keys(event) {
  const opener = event.target.closest?.(".opener");
  if (!opener) return;
  const openers = [...body.querySelectorAll(".opener")];
  const at = openers.indexOf(opener);
  const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: openers.length - 1 }[event.key];
  if (next !== undefined) {
    event.preventDefault();
    openers[Math.min(Math.max(next, 0), openers.length - 1)].focus();
  }
}

function escape(event) {
  if (event.key !== "Escape") return;
  const within = event.target.closest?.("tr.details")?.previousElementSibling ?? event.target.closest?.("tr.row");
  const row = rows.find((each) => each.element && each.element === within);
  if (row?.details) { close(row); row.opener.focus(); }
}

function clicked(event) {
  const within = event.target.closest("tr.row");
  if (!within || String(getSelection()) !== "" && !event.target.closest(".opener")) return; // a name is being selected
  const row = rows.find((each) => each.element === within);
  if (row.details) close(row);
  else expand(row);
}

function verdictTable() {
  body.addEventListener("click", clicked);
  body.addEventListener("keydown", keys);
  body.addEventListener("keydown", escape);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest?.("input, select, textarea")) return;
    event.preventDefault();
    search.focus();
  });
  new IntersectionObserver((seen) => { if (seen[0].isIntersecting && !more.hidden) more.click(); }, { rootMargin: "600px" }).observe(more);
  addEventListener("beforeprint", () => { // every row, whatever was scrolled to
    if (!more.hidden) { const from = state.shown; state.shown = listed.length; append(from, state.shown); }
  });
  const table = make(
    "table", { class: "verdicts", "aria-label": "Benchmarks and their verdicts" }, make("thead", null, make("tr", null, columns.map(head))), body,
  );
  show();
  return [
    make("div", { class: "tools", role: "search" }, search, platformChoice, suiteChoice, clearing, count, make("div", { class: "chips", role: "group", "aria-label": "Verdicts" }, [...chips.values()])),
    table,
    more,
  ];
}
