"""The pictures of the page in docs/report.md: `python -m tests.browser.picture` takes them anew."""

import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from pytest_accel.report.page import read_plotly_js, render_page
from tests.browser.conftest import FLAGS
from tests.browser.test_report import PLOT, past
from tests.support.results import make_session

ASSETS = Path(__file__).parents[2] / "docs" / "assets"
COLORS = 48  # all pictures together take less than 150 KB


def main() -> None:
    session = make_session()
    text = render_page(session, plotly_js=read_plotly_js(), history=past(session))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as running:
        path = Path(folder, "report.html")
        path.write_text(text, encoding="utf-8")
        browser = running.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1200, "height": 640})
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        save("report.png", page.screenshot())
        page.locator(".failures a", has_text="test_").first.click()
        page.wait_for_selector(PLOT)
        page.wait_for_timeout(500)  # of drawing
        save("report-row.png", page.locator("tr.details").screenshot())
        browser.close()


def save(name: str, shot: bytes) -> None:
    target = ASSETS / name
    Image.open(io.BytesIO(shot)).convert("RGB").quantize(COLORS).save(target, optimize=True)
    print(target, target.stat().st_size)  # noqa: T201 - a command


if __name__ == "__main__":
    main()
