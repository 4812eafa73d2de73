// What happens when the page opens: the table now, plots across benchmarks when they come into view.

document.getElementById("table").append(...verdictTable());
document.querySelectorAll("[data-copy]").forEach(copyable);

const plots = document.getElementById("plot-list");
const waiting = new IntersectionObserver((seen) => {
  for (const { isIntersecting, target } of seen) {
    if (!isIntersecting) continue;
    waiting.unobserve(target);
    draw(target, planned.get(target));
  }
}, { rootMargin: "100px" });
data.plots.forEach((found) => {
  const plot = make("div", { class: "plot tall", role: "img", "aria-label": found.title });
  planned.set(plot, () => sweepFigure(found));
  plots.append(make("figure", null, make("figcaption", null, isolated(found.title)), plot));
  waiting.observe(plot);
});

const sections = [["benchmarks", "Benchmarks"], ["plots", "Plots"], ["environment", "Environment"], ["doctor", "Doctor"], ["outcomes", "Outcomes"], ["session", "Session"]];
document.getElementById("nav").append(
  ...sections.filter(([id]) => document.getElementById(id)).map(([id, title]) => make("a", { href: `#${id}` }, title)), themeButton(),
);

document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-open], a[data-status]");
  if (!link) return;
  if (link.dataset.open !== undefined) { event.preventDefault(); reveal(Number(link.dataset.open)); }
  else { clear(); only(link.dataset.status); }
});

// Unpacked by the time that someone prints: what happens before printing cannot wait for it.
if (planned.size) (window.requestIdleCallback ?? setTimeout)(() => plotly().catch(() => {})); // a plot says what is wrong

performance.mark("pytest-accel-ready");
document.documentElement.dataset.ready = "true";
