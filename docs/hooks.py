"""What mkdocs does with our pages beyond its own: pages from outside docs/, links between all of them, the schemas as files.

On a code host a page may link to any file of the repository. The site holds docs/, the pages of `PAGES`, the examples with the
files that their pages name, and the schemas. A link to anything else becomes its text, and one to a folder leads to that
folder's first page.
"""

# ruff: noqa: INP001 - mkdocs loads it by its path

from __future__ import annotations

import posixpath
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = "docs"
SCHEMAS = "pytest_accel/schemas"
# In the repository, and on the site: a README.md there would be the site's first page, which is docs/index.md.
PAGES = {"README.md": "readme.md", "CHANGELOG.md": "changes.md", "CONTRIBUTING.md": "contributing.md"}
_LINK = re.compile(r"(?<!!)\[(?P<text>(?:[^\]\[]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"^( {0,3})(`{3,}|~{3,}).*?^ {0,3}\2[`~]*\s*?$", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Expand patterns in the menu (`suites/*.md`), each page under the name of its file."""
    config.nav = _expanded(config.nav, set())
    return config


def _expanded(nav: Any, listed: set[str]) -> Any:  # noqa: ANN401 - YAML
    match nav:
        case dict():
            return {name: _expanded(inner, listed) for name, inner in nav.items()}
        case list():
            listed = listed | {each for each in nav if isinstance(each, str)}
            pages = [_expanded(each, listed) for each in nav]
            return [page for each in pages for page in (each if isinstance(each, list) else [each])]
        case str() if "*" in nav:
            found = (path.relative_to(ROOT / DOCS).as_posix() for path in sorted((ROOT / DOCS).glob(nav)))
            return [{Path(page).stem: page} for page in found if page not in listed]
    return nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Whatever the site has from outside docs/ is a file of it, at a place of its own."""
    from mkdocs.structure.files import File

    for path, place in sorted(added().items()):
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - mkdocs' own signature
    return rewritten(markdown, page.file.src_uri)


@cache
def added() -> dict[str, str]:
    """What the site has beside docs/: paths in the repository, and where they stand on the site."""
    examples = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("examples/**/README.md")]
    named = {
        found
        for page in examples
        for link in _LINK.finditer((ROOT / page).read_text(encoding="utf-8"))
        if (found := _resolved(link["target"], page)).startswith("examples/") and (ROOT / found).is_file()
    }
    schemas = {f"{SCHEMAS}/{path.name}": f"schemas/{path.name}" for path in (ROOT / SCHEMAS).glob("*.json")}
    return {**PAGES, **schemas, **{path: path for path in (*examples, *named)}}


def rewritten(markdown: str, page: str) -> str:
    """The page with its links as the site needs them; code is left alone. `page` is its place on the site."""
    parts: list[str] = []
    end = 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(lambda link: _link(link, page), markdown[end : fence.start()]), fence.group()]
        end = fence.end()
    return "".join([*parts, _LINK.sub(lambda link: _link(link, page), markdown[end:])])


def _link(link: re.Match[str], page: str) -> str:
    text, target = link["text"], link["target"]
    if "://" in target or target.startswith(("#", "mailto:")):
        return link.group()
    origins = {place: path for path, place in added().items()}
    place = _place(_resolved(target, origins.get(page, f"{DOCS}/{page}")))
    if place is None:
        return text
    _, separator, fragment = target.partition("#")
    return f"[{text}]({posixpath.relpath(place, posixpath.dirname(page) or '.')}{separator}{fragment})"


def _resolved(target: str, page: str) -> str:
    """The path in the repository that a link on the page of that path means."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target.partition("#")[0]))


def _place(path: str) -> str | None:
    """Where a file of the repository stands on the site, or the first page of a folder; None where it has no place."""
    if (ROOT / path).is_dir():
        path = posixpath.join(path, "README.md")
    return path.removeprefix(f"{DOCS}/") if path.startswith(f"{DOCS}/") else added().get(path)
