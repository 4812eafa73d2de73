"""Links of all pages lead to what there is, to the heading too, on a code host and on the site."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.docs.pages import ROOT, anchors, links, named, pages


def broken(page: Path, root: Path = ROOT) -> list[str]:
    found = []
    for link in links(page):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, fragment = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or not target.is_relative_to(root):
            found.append(f"{link}: there is no such file")
        elif fragment and fragment not in anchors(target):
            found.append(f"{link}: it has no such heading. It has: {', '.join(sorted(anchors(target)))}")
    return found


@pytest.mark.parametrize("page", pages(), ids=named)
def test_links_lead_to_what_there_is(page):
    assert broken(page) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[a](gone.md)", "gone.md: there is no such file"),
        ("[a](there.md#gone)", "there.md#gone: it has no such heading. It has: --accel-data-dir, there"),
        ("[a](#gone)", "#gone: it has no such heading. It has: "),
        (
            "[a](../../../../../../../../etc/passwd)",
            "../../../../../../../../etc/passwd: there is no such file",
        ),
        ("[a](there.md#there) [b](there.md#--accel-data-dir) `[c](gone.md)`", ""),
    ],
)
def test_a_broken_link_is_found(text, fault, tmp_path):
    (tmp_path / "there.md").write_text("# There\n\n## `--accel-data DIR`\n")
    page = tmp_path / "page.md"
    page.write_text(text)
    assert broken(page, tmp_path) == ([fault] if fault else [])


def test_every_decision_is_listed():
    index = ROOT / "docs" / "decisions" / "README.md"
    there = {path.name for path in index.parent.glob("[0-9]*.md")}
    assert there == set(links(index))
