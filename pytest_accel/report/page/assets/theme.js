// Light or dark: as the system says, until one is chosen; the choice is kept where the browser allows it.

const STORED = "pytest-accel-theme";
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

function storedTheme() {
  try { return localStorage.getItem(STORED); } catch { return null; } // a sandboxed artifact viewer has no storage
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : systemIsDark.matches;
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem(STORED, theme); } catch { /* for this visit, then */ }
  themeChanged();
}

function themeButton() {
  const label = make("span", null);
  const button = make(
    "button", { type: "button", class: "quiet-button", id: "theme", click: () => setTheme(isDark() ? "light" : "dark") }, icon("theme"), label,
  );
  const show = () => { label.textContent = isDark() ? "Light" : "Dark"; };
  document.addEventListener("themechange", show);
  show();
  return button;
}

function themeChanged() {
  document.dispatchEvent(new Event("themechange"));
}

if (["light", "dark"].includes(storedTheme())) document.documentElement.dataset.theme = storedTheme();
systemIsDark.addEventListener("change", themeChanged);

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
