"""The site: built strictly, without a warning, and whole without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import schemas
from tests.docs.pages import ROOT

pytest.importorskip("mkdocs", reason="needs mkdocs-material (pip install mkdocs-material)")
pytest.importorskip("material", reason="needs mkdocs-material (pip install mkdocs-material)")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},  # an advertisement of its makers
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_it_builds_without_a_warning(site):
    assert (site / "index.html").is_file()
    assert (site / "404.html").is_file()


def test_the_schemas_are_files_of_the_site(site):
    for name in schemas.NAMES:
        there = site / "schemas" / f"{name}.schema.json"
        assert there.read_bytes() == (schemas.FOLDER / there.name).read_bytes()
        page = (site / "reference" / f"{name}-json.html").read_text(encoding="utf-8")
        assert f'href="../schemas/{there.name}"' in page


def test_it_fetches_nothing_from_elsewhere(site):
    """Links that a reader may follow are no matter; what a browser loads by itself is."""
    loaded = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']?(https?:)?//[^"'\s>]+""")
    for page in site.rglob("*.html"):
        found = [each.group() for each in loaded.finditer(page.read_text(encoding="utf-8"))]
        assert found == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?https?:", style.read_text(encoding="utf-8")), style.name


def test_links_out_of_the_documentation_are_text_there(site):
    page = (site / "baselines.html").read_text(encoding="utf-8")
    assert "README" in page
    assert "../README" not in page


def _rewritten(text: str, page: str = "page.md") -> str:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        from hooks import rewritten
    finally:
        sys.path.pop(0)
    return rewritten(text, page)


@pytest.mark.parametrize(
    ("text", "page", "shown"),
    [
        ("see [README](../README.md).", "page.md", "see README."),
        ("[a](../../README.md#x)", "suites/a.md", "a"),
        ("[gate](gate.md)", "page.md", "[gate](gate.md)"),
        ("[gate](../gate.md#x)", "suites/a.md", "[gate](../gate.md#x)"),
        ("[all](decisions/)", "design.md", "[all](decisions/README.md)"),
        ("[all](../decisions)", "suites/a.md", "[all](../decisions/README.md)"),
        ("[s](../../pytest_accel/schemas/x.json)", "reference/a.md", "[s](../schemas/x.json)"),
        ("[s](../pytest_accel/schemas/x.json)", "a.md", "[s](schemas/x.json)"),
        ("[`test[a]`](../bench_suites/x.py)", "a.md", "`test[a]`"),
        ("[h](https://example.org/../x) [t](#top)", "a.md", "[h](https://example.org/../x) [t](#top)"),
        ("```\n[a](../README.md)\n```\n[b](../README.md)", "a.md", "```\n[a](../README.md)\n```\nb"),
    ],
)
def test_how_a_link_is_rewritten(text, page, shown):
    assert _rewritten(text, page) == shown
