"""Words from outside, made harmless for Markdown: a name is shown, never obeyed.

Names of benchmarks, values of the environment and texts of exceptions may hold anything. Inside a code span or a fence
nothing is interpreted, neither by Markdown nor by what GitHub and GitLab do to the page afterwards (mentions, issues,
emoji); so names go there. Sentences cannot, and are escaped character by character.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pytest_accel.stats.quantities import clipped, printable

__all__ = ["clipped", "code", "fenced", "printable", "prose"]

NAME_CHARACTERS = 300  # of a name: a longer one is no name any more
SENTENCE_CHARACTERS = 1000
# Between a sign and the word after it: invisible, and what turns `@name` and `#12` into links looks no further.
_APART = "&#8203;"

_ESCAPED = {
    "&": "&amp;",
    "<": "&lt;",
    "|": "&#124;",  # an escaped one ends a table's cell in some readers
    "$": "<span>&#36;</span>",  # mathematics; the way out that GitHub documents, and GitLab's parser too
    **{sign: f"\\{sign}" for sign in "\\`*_[]~"},
}
# What GitHub and GitLab link after Markdown is done, where escaping has no say any more: people, issues,
# merge requests, labels, milestones, epics, snippets, emoji, addresses.
_LINKED = re.compile(
    r"""
      [@#!~%&$^](?=[\w"'])
    | :(?=//|[\w+-]+:)
    | (?i:\bwww)(?=\.)
    | (?i:\bG[HL])(?=-\d)
    """,
    re.VERBOSE,
)
_INSIDE_A_WORD = r"(?<=[A-Za-z0-9])_(?=[A-Za-z0-9])"  # means nothing there, and is in most names
_SPECIAL = re.compile(rf"{_LINKED.pattern}|(?!{_INSIDE_A_WORD})[{re.escape(''.join(_ESCAPED))}]", re.VERBOSE)
_NUMBERED = re.compile(r"\A(\d{1,9})([.)])(?=\s|\Z)")


def code(text: str, *, characters: int = NAME_CHARACTERS, in_table: bool = False) -> str:
    """A code span that shows just this; nothing for nothing."""
    shown = clipped(printable(text), characters)
    if not shown:
        return ""
    if in_table:  # the only escape that holds inside a code span, and only there
        shown = shown.replace("|", "\\|")
    quotes = "`" * (_longest_run(shown) + 1)
    apart = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return f"{quotes}{apart}{shown}{apart}{quotes}"


def prose(text: str, *, characters: int = SENTENCE_CHARACTERS) -> str:
    """One line that reads like this text, wherever it stands."""
    line = clipped(printable(" ".join(text.split())), characters)
    escaped = _SPECIAL.sub(lambda found: _harmless(found[0], found.string, found.end()), line)
    if escaped.startswith(("-", "+", "=", "#", ">")):
        return f"\\{escaped}"
    return _NUMBERED.sub(r"\1\\\2", escaped)


def fenced(lines: Iterable[str], *, language: str = "", characters: int = SENTENCE_CHARACTERS) -> list[str]:
    """A block of code, line by line."""
    shown = [clipped(printable(line.expandtabs()), characters) for line in lines]
    fence = "`" * max(3, _longest_run("\n".join(shown)) + 1)
    return [f"{fence}{language}", *shown, fence]


def _harmless(found: str, text: str, end: int) -> str:
    escaped = _ESCAPED.get(found, found)
    return escaped + _APART if _LINKED.match(text, end - len(found)) else escaped


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
