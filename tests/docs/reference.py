"""docs/reference, written from the code so that it cannot drift: `python -m tests.docs.reference` rewrites it.

What a page says of a part is what the part says of itself: a help text, a docstring, the comment beside a field, the
description in a schema. A page that reads poorly is mended there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
COMMAND = "python -m tests.docs.reference"
NOTE = f"<!-- Written by {COMMAND} from the code. Change the code, and run that. -->\n"


def pages() -> dict[str, str]:
    """Every page by its file name."""
    from tests.docs import reference_code, reference_files, reference_measured, reference_options

    made: dict[str, Callable[[], str]] = {
        "options.md": reference_options.options,
        "markers.md": reference_options.markers,
        "platforms.md": reference_options.platforms,
        "fixtures.md": reference_code.fixtures,
        "hooks.md": reference_code.hooks,
        "commands.md": reference_options.commands,
        "verdicts.md": reference_code.verdicts,
        "table.md": reference_code.table_columns,
        "metrics.md": reference_code.metrics,
        "results-json.md": reference_files.results,
        "baseline-json.md": reference_files.baseline,
        "benchmark-json.md": reference_files.benchmark,
        "environment.md": reference_files.environment,
        "measured.md": reference_measured.measured,
    }
    texts = {name: make() for name, make in made.items()}
    return {name: _noted(text) for name, text in {"README.md": _index(texts), **texts}.items()}


def _noted(text: str) -> str:
    """With the note where it comes from below the title, which must come first to be taken for the page's."""
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{NOTE}{rest.rstrip()}\n"


def _index(texts: dict[str, str]) -> str:
    rows = []
    for name, text in texts.items():
        title, _, rest = text.removeprefix("# ").partition("\n")
        rows.append((f"[{title}]({name})", sentence(rest.strip().partition("\n\n")[0])))
    return f"# Reference\n\nWritten from the code by `{COMMAND}`, so that it cannot drift.\n\n" + table(
        ("page", "what it lists"), rows
    )


# --- Markdown ---------------------------------------------------------------------------------------


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; columns in which no row has anything are left out."""
    filled = [list(map(_cell, row)) for row in rows]
    kept = [at for at in range(len(heads)) if any(row[at] for row in filled)]
    lines = [[heads[at] for at in kept], ["---"] * len(kept), *([row[at] for at in kept] for row in filled)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def sentence(text: str) -> str:
    """The first sentence of a paragraph."""
    return re.split(r"(?<=[.!?])\s", " ".join(text.split()), maxsplit=1)[0]


def capital(text: str) -> str:
    """A help text or a comment as a sentence."""
    text = text.strip()
    if not text:
        return ""
    begin = text[0].upper() + text[1:] if re.match(r"(?!auto\b)[a-z]{2,}(?:[\s,;.-]|:\s|$)", text) else text
    return begin if begin.endswith((".", "!", "?", ":")) else f"{begin}."


def prose(docstring: str) -> str:
    """A docstring as Markdown: what follows a `::` is Python."""
    blocks = re.split(r"::\n\n", docstring)
    made = blocks[0]
    for block in blocks[1:]:
        lines = block.splitlines()
        end = next((at for at, line in enumerate(lines) if line and not line.startswith("    ")), len(lines))
        inner = "\n".join(line.removeprefix("    ") for line in lines[:end]).rstrip()
        made += f":\n\n```python\n{inner}\n```\n\n" + "\n".join(lines[end:])
    return made.rstrip() + "\n"


# --- the command ------------------------------------------------------------------------------------


def main(folder: Path = FOLDER) -> int:
    """Write every page, and remove those that are no longer made."""
    made = pages()
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.md"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
    print(f"{len(made)} pages in {folder}")  # noqa: T201 - a command
    return 0


if __name__ == "__main__":
    sys.exit(main())
