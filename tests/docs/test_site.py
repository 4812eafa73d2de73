"""The site: built strictly, without a warning, and whole without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
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


def test_pages_from_outside_the_documentation_are_linked_both_ways(site):
    """mkdocs itself refuses a link or an anchor that is not there; here is that they were not made text."""
    readme = (site / "readme.html").read_text(encoding="utf-8")
    assert 'id="7-am-something-failed"' in readme
    assert 'href="gate.html"' in readme
    assert 'href="changes.html"' in readme
    assert 'href="readme.html#7-am-something-failed"' in (site / "index.html").read_text(encoding="utf-8")
    example = (site / "examples" / "kernel" / "index.html").read_text(encoding="utf-8")
    assert 'href="../../guide/noise.html"' in example
    assert 'href="../examples/index.html"' in (site / "guide" / "first-run.html").read_text(encoding="utf-8")


def test_an_example_has_the_files_that_its_page_names(site):
    for name in ("site/every-node.sh", "site/conftest.py", "kernel/tests/test_speed.py"):
        there = site / "examples" / name
        assert there.read_bytes() == (ROOT / "examples" / name).read_bytes()


def test_nothing_else_of_the_repository_is_there(site):
    assert not [path for path in site.rglob("*.py*") if path.relative_to(site).parts[0] != "examples"]
    assert "hookspecs.py</a>" not in (site / "readme.html").read_text(encoding="utf-8")


def _entries(nav: object) -> Iterator[tuple[str, str]]:
    """The menu: names, empty where the page's title is taken, and pages."""
    match nav:
        case str():
            yield "", nav
        case list():
            for each in nav:
                yield from _entries(each)
        case dict():
            for name, inner in nav.items():
                yield from [(name, inner)] if isinstance(inner, str) else _entries(inner)


def test_the_menu_calls_pages_by_their_titles():
    from mkdocs.config import load_config

    entries = list(_entries(load_config(str(ROOT / "mkdocs.yml")).nav))
    otherwise = {"index.md", "readme.md", "changes.md"}
    for name, page in entries:
        if page not in otherwise and name:
            assert (ROOT / "docs" / page).read_text(encoding="utf-8").startswith(f"# {name}"), page
    titles = [
        (ROOT / "docs" / page).read_text(encoding="utf-8").partition("\n")[0]
        for _, page in entries
        if (ROOT / "docs" / page).is_file()
    ]
    assert len(set(titles)) == len(titles)
    assert not [
        (one, other) for one in titles for other in titles if one != other and other.startswith(f"{one},")
    ], "two pages whose titles begin alike"


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
        ("see [README](../README.md).", "page.md", "see [README](readme.md)."),
        ("[a](../../README.md#x)", "suites/a.md", "[a](../readme.md#x)"),
        ("[a](../../LICENSE)", "suites/a.md", "a"),
        ("[a](docs/gate.md#x) [b](docs/decisions/)", "readme.md", "[a](gate.md#x) [b](decisions/README.md)"),
        ("[a](CHANGELOG.md) [b](examples/)", "readme.md", "[a](changes.md) [b](examples/README.md)"),
        ("[a](../../docs/gate.md#x)", "examples/site/README.md", "[a](../../gate.md#x)"),
        ("[a](expect.py) [b](#x)", "examples/site/README.md", "[a](expect.py) [b](#x)"),
        ("[a](../tests/examples/test_examples.py)", "examples/README.md", "a"),
        ("[a](../examples/site/README.md)", "page.md", "[a](examples/site/README.md)"),
        ("[gate](gate.md)", "page.md", "[gate](gate.md)"),
        ("[gate](../gate.md#x)", "suites/a.md", "[gate](../gate.md#x)"),
        ("[all](decisions/)", "design.md", "[all](decisions/README.md)"),
        ("[all](../decisions)", "suites/a.md", "[all](../decisions/README.md)"),
        (
            "[s](../../pytest_accel/schemas/results.schema.json)",
            "reference/a.md",
            "[s](../schemas/results.schema.json)",
        ),
        ("[s](../pytest_accel/schemas/results.schema.json)", "a.md", "[s](schemas/results.schema.json)"),
        ("[`test[a]`](../bench_suites/x.py)", "a.md", "`test[a]`"),
        ("[h](https://example.org/../x) [t](#top)", "a.md", "[h](https://example.org/../x) [t](#top)"),
        ("```\n[a](../LICENSE)\n```\n[b](../LICENSE)", "a.md", "```\n[a](../LICENSE)\n```\nb"),
    ],
)
def test_how_a_link_is_rewritten(text, page, shown):
    assert _rewritten(text, page) == shown
