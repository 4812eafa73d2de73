"""Sphinx: the pages of docs/ and those that they link to. The source folder is the repository, as on a code host."""

# ruff: noqa: INP001 - Sphinx loads it by its path

import re
from typing import Any

project = "pytest-accel"
html_title = project
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "examples/README.md", "examples/*/README.md"]
extensions = ["myst_parser", "sphinx_copybutton"]
myst_heading_anchors = 3  # named as code hosts name them
highlight_language = "none"
smartquotes = False  # of two dashes they make one
html_theme = "furo"
html_favicon = "assets/favicon.svg"
html_extra_path = ["assets/index.html"]
html_static_path = ["assets/site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_search_summary = False  # needs a server; the list of pages works from disk
html_use_index = False
copybutton_prompt_text = "$ "


def add_menu(_app: object, name: str, source: list[str]) -> None:
    """Add the menu: the lists of the first page, and below each README the pages of its folder."""
    lists = re.findall(r"^## (.+)\n\n((?:- .+\n)+)", source[0], re.MULTILINE) if name == root_doc else []
    menus = [(caption, re.findall(r"\((\S+)\.md\)", links)) for caption, links in lists]
    if name == "examples/README" or re.fullmatch(r"docs/\w+/README", name):
        menus.append(("", ["*/README" if name == "examples/README" else "*"]))
    for caption, pages in menus:
        options = f":hidden:\n:glob:\n:caption: {caption}".removesuffix("\n:caption: ")
        source[0] += "\n".join(["", "```{toctree}", options, "", *pages, "```", ""])


def setup(app: Any) -> None:  # noqa: ANN401 - Sphinx may not be installed
    app.connect("source-read", add_menu)
