"""The site builds strictly, without a warning, and needs no network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import schemas
from tests.docs.pages import ROOT

pytest.importorskip("material", reason="needs mkdocs-material (pip install mkdocs-material)")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_site_has_the_schemas(site):
    for name in schemas.NAMES:
        there = site / "schemas" / f"{name}.schema.json"
        assert there.read_bytes() == (schemas.FOLDER / there.name).read_bytes()


def test_site_loads_nothing_from_other_hosts(site):
    loaded = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']?(https?:)?//[^"'\s>]+""")
    for page in site.rglob("*.html"):
        assert not loaded.search(page.read_text(encoding="utf-8")), page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?https?:", style.read_text(encoding="utf-8")), style.name


def test_links_between_docs_readme_and_examples_work_on_the_site(site):
    assert 'href="gate.html"' in (site / "readme.html").read_text(encoding="utf-8")
    assert 'href="../examples/index.html"' in (site / "guide" / "first-run.html").read_text(encoding="utf-8")
    example = (site / "examples" / "site" / "every-node.sh").read_bytes()
    assert example == (ROOT / "examples" / "site" / "every-node.sh").read_bytes()
