"""Pages as tests see them: their blocks of code, their links, the anchors of their headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
EXCUSE = re.compile(r"<!-- not run: (?P<reason>\S.*?) -->")
_SHELL = frozenset({"", "console", "sh", "bash", "shell"})


def pages() -> list[Path]:
    """All that people read: the documentation, and the files of that kind elsewhere in the repository."""
    beside = (path for folder in ("deploy", "examples") for path in (ROOT / folder).rglob("*.md"))
    top = (path for path in ROOT.glob("*.md"))
    return sorted({*(ROOT / "docs").rglob("*.md"), *beside, *top})


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of code."""

    page: Path
    line: int
    language: str
    text: str
    excuse: str = ""  # why it is not run, from the comment right before it

    @property
    def place(self) -> str:
        return f"{named(self.page)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The lines that somebody would type: all of a block, or those after a `$ ` where it has some."""
        if self.language not in _SHELL:
            return []
        joined = re.sub(r"\\\n\s*", " ", self.text)
        lines = joined.splitlines()
        prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return prompted or [line for line in lines if _is_command(line)]


def _is_command(line: str) -> bool:
    return (
        re.match(r"(?:[A-Z_]+=\S+ )*(?:\S*/)?(?:pytest|pytest-accel|python3?|torchrun|srun)\s", line)
        is not None
    )


@cache
def tokens(path: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))


def blocks(path: Path) -> Iterator[Block]:
    before: Token | None = None
    for token in tokens(path):
        if token.type == "fence":
            excuse = EXCUSE.search(before.content) if before and before.type == "html_block" else None
            yield Block(
                page=path,
                line=(token.map or [0])[0] + 1,
                language=token.info.split()[0] if token.info.strip() else "",
                text=token.content,
                excuse=excuse["reason"] if excuse else "",
            )
        before = token


def all_blocks(*languages: str) -> list[Block]:
    return [
        block for page in pages() for block in blocks(page) if not languages or block.language in languages
    ]


def inline_code(path: Path) -> Iterator[str]:
    for token in tokens(path):
        yield from (child.content for child in token.children or () if child.type == "code_inline")


def links(path: Path) -> Iterator[str]:
    for token in tokens(path):
        for child in token.children or ():
            if child.type in ("link_open", "image"):
                yield str(child.attrs["href" if child.type == "link_open" else "src"])


@cache
def anchors(path: Path) -> frozenset[str]:
    """Of its headings, as code hosts and our site make them; a second one of a name gets a number."""
    found: list[str] = []
    listed = tokens(path)
    for at, token in enumerate(listed):
        if token.type == "heading_open":
            title = "".join(
                child.content
                for child in listed[at + 1].children or ()
                if child.type in ("text", "code_inline")
            )
            found.append(re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-"))
    return frozenset(
        f"{slug}-{found[:at].count(slug)}" if slug in found[:at] else slug for at, slug in enumerate(found)
    )
