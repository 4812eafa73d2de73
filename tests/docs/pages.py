"""Markdown pages as tests see them: code blocks and links."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
NOT_RUN = re.compile(r"<!-- not run: \S.*? -->")
_SHELL = frozenset({"", "console", "sh", "bash", "shell"})
_COMMAND = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:\S*/)?(?:pytest|pytest-accel|python3?|torchrun|srun|sbatch|sqlite3|build\.sh)\s"
)


def pages() -> list[Path]:
    """Return all pages of the repository that users read."""
    folders = (ROOT / name for name in ("docs", "deploy", "examples"))
    return sorted({*ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*.md"))})


def page_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced code block."""

    page: Path
    line: int
    language: str
    text: str
    not_run: bool  # a comment before it says why it cannot run

    @property
    def place(self) -> str:
        return f"{page_name(self.page)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The lines to type: those after `$ ` where there are any, else those that begin with a command."""
        if self.language not in _SHELL:
            return []
        lines = re.sub(r"\\\n\s*", " ", self.text).splitlines()
        prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return prompted or [line for line in lines if _COMMAND.match(line)]


@cache
def tokens(path: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))


def blocks(*languages: str) -> list[Block]:
    """Return the code blocks of all pages, or those in some languages."""
    found = [block for page in pages() for block in _blocks(page)]
    return [block for block in found if not languages or block.language in languages]


def _blocks(path: Path) -> Iterator[Block]:
    before = ""
    for token in tokens(path):
        if token.type == "fence":
            yield Block(
                page=path,
                line=(token.map or [0])[0] + 1,
                language=token.info.partition(" ")[0].strip(),
                text=token.content,
                not_run=bool(NOT_RUN.search(before)),
            )
        before = token.content if token.type == "html_block" else ""


def inline_code(path: Path) -> Iterator[str]:
    for token in tokens(path):
        yield from (child.content for child in token.children or () if child.type == "code_inline")


def links(path: Path) -> Iterator[str]:
    for token in tokens(path):
        for child in token.children or ():
            if child.type in ("link_open", "image"):
                yield str(child.attrs["href" if child.type == "link_open" else "src"])
