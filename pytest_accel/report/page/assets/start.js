// What happens when the page opens.

document.getElementById("table").append(...verdictTable());
document.querySelectorAll("[data-copy]").forEach(copyable);

const sections = [["benchmarks", "Benchmarks"], ["environment", "Environment"], ["doctor", "Doctor"], ["outcomes", "Outcomes"], ["session", "Session"]];
document.getElementById("nav").append(
  ...sections.filter(([id]) => document.getElementById(id)).map(([id, title]) => make("a", { href: `#${id}` }, title)), themeButton(),
);

document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-open], a[data-status]");
  if (!link) return;
  if (link.dataset.open !== undefined) { event.preventDefault(); reveal(Number(link.dataset.open)); }
  else { clear(); only(link.dataset.status); }
});

performance.mark("pytest-accel-ready");
document.documentElement.dataset.ready = "true";
