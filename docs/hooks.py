"""What mkdocs does with our pages beyond its own: links out of docs/, and the schemas as files of the site.

On a code host a page may link to any file of the repository. The site holds docs/ alone, so that there such a link becomes
its text, and one to a folder of docs/ leads to that folder's first page.
"""

# ruff: noqa: INP001 - mkdocs loads it by its path

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
SCHEMAS = DOCS.parent / "pytest_accel" / "schemas"
SCHEMAS_ON_SITE = "schemas"
_LINK = re.compile(r"(?<!!)\[(?P<text>(?:[^\]\[]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"^( {0,3})(`{3,}|~{3,}).*?^ {0,3}\2[`~]*\s*?$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The schemas are files of the site, so that a validator can be pointed at them there."""
    from mkdocs.structure.files import File

    for path in sorted(SCHEMAS.glob("*.json")):
        files.append(File.generated(config, f"{SCHEMAS_ON_SITE}/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - mkdocs' own signature
    return rewritten(markdown, page.file.src_uri)


def rewritten(markdown: str, page: str) -> str:
    """The page with its links as the site needs them; code is left alone. `page` is its path in docs/."""
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
    path, separator, fragment = target.partition("#")
    here = posixpath.dirname(page)
    found = posixpath.normpath(posixpath.join(here, path))
    if found.startswith("../pytest_accel/schemas/"):
        name = posixpath.basename(found)
        return f"[{text}]({posixpath.relpath(f'{SCHEMAS_ON_SITE}/{name}', here or '.')})"
    if found.startswith(".."):
        return text
    if (DOCS / found).is_dir():
        found = posixpath.join(found, "README.md")
        return f"[{text}]({posixpath.relpath(found, here or '.')}{separator}{fragment})"
    return link.group()
