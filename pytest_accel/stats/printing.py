"""Words from outside, made fit for a terminal and a log: shown, never obeyed."""

from __future__ import annotations

_COMMAND = "::"  # with it begins a line that GitHub's runner obeys: ::error::, ::add-mask::


def printable(text: str) -> str:
    """Without control characters, directions of writing and half characters: those are spelled out."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text
    )


def inert(line: str, *, mark: str = "\\") -> str:
    """A line that no runner takes for a command, whatever name it begins with."""
    return f"{mark}{line}" if line.lstrip().startswith(_COMMAND) else line


def clipped(text: str, characters: int) -> str:
    """The middle is left out: a name says most at its beginning and its end."""
    if len(text) <= characters:
        return text
    end = characters // 3
    return f"{text[: characters - end - 1]}…{text[-end:]}"
