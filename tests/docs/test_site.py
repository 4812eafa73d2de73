"""The site builds without a warning, such as of a link that leads nowhere, and needs no network."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs import schemas
from tests.docs.pages import ROOT, page_name, pages
from tests.support.processes import finished

# Found, not imported: every worker of xdist would.
pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("sphinx", "myst_parser", "furo", "sphinx_copybutton"))),
    reason="needs Sphinx (pip install -e '.[dev]')",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    options = ("--quiet", "--fail-on-warning", "-c", "docs")
    done = finished(sys.executable, "-m", "sphinx", *options, ".", folder, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder


def test_site_has_every_page_and_begins_with_the_menu(site):
    names = [Path(page_name(page)) for page in pages()]
    assert [name for name in names if not (site / name.with_suffix(".html")).is_file()] == []
    assert "docs/index.html" in (site / "index.html").read_text(encoding="utf-8")


def test_site_has_the_schemas(site):
    for name in schemas.NAMES:
        (there,) = site.glob(f"_downloads/*/{name}.schema.json")
        assert there.read_bytes() == (schemas.FOLDER / there.name).read_bytes()


def test_site_loads_nothing_from_other_hosts(site):
    loaded = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']?(https?:)?//[^"'\s>]+""")
    for page in site.rglob("*.html"):
        assert not loaded.search(page.read_text(encoding="utf-8")), page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?https?:", style.read_text(encoding="utf-8")), style.name


def test_failure_links_to_its_outcome(site):
    assert 'id="regressed"' in (site / "docs" / "guide" / "verdicts.html").read_text(encoding="utf-8")
