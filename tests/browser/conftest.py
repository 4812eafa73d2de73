"""One Chromium for all tests here, and a page that is opened from disk and watched: no errors, no requests."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",  # small in containers; a page that does not fit there crashes
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
LONG_MS = 60_000  # of waiting for what takes a second; CI shares its cores


@pytest.fixture(scope="module")  # idle, it goes on taking time from other tests
def chromium():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright (pip install playwright)"
    )
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs chromium (tests/browser/install.sh)")
    with playwright.sync_playwright() as running:
        try:
            browser = running.chromium.launch(executable_path=program, args=list(FLAGS), timeout=2 * LONG_MS)
        except playwright.Error as error:  # some sandboxes let no browser start; nothing of ours is to blame
            pytest.skip(f"needs a chromium that starts: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium, tmp_path):
    """Open a page's text from disk in a fresh context; at the end, nothing may have gone wrong in it."""
    contexts, complaints = [], []

    def open_page(text: str | Path, *, width: int = 1440, height: int = 900, init: str = "", **options):
        path = text
        if isinstance(text, str):
            path = tmp_path / f"report-{len(contexts)}.html"
            path.write_text(text, encoding="utf-8")
        context = chromium.new_context(viewport={"width": width, "height": height}, offline=True, **options)
        context.set_default_timeout(LONG_MS)
        contexts.append(context)
        page = context.new_page()
        page.add_init_script(init)
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on(
            "request",
            lambda request: (
                None if request.url == path.as_uri() else complaints.append(f"request: {request.url}")
            ),
        )
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def names() -> Callable:
    """The benchmarks that the table shows, from above."""
    return lambda page: page.locator("tr.row .opener").all_inner_texts()
