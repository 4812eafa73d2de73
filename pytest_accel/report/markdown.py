"""A session as Markdown: failures first, what is ok folded; all text from outside escaped.

Names of benchmarks, values of the environment and texts of exceptions may hold anything. In a code span or a fence
neither Markdown nor GitHub and GitLab (mentions, issues, emoji) interpret anything, so names go there. Sentences are
escaped character by character.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from pytest_accel.report.terminal import changed
from pytest_accel.report.verdicts import (
    can_rerun,
    counts,
    finding_subject,
    headline_of,
    in_order,
    is_settled,
    needs_attention,
    shortfalls,
    shown_verdicts,
    status_word,
    word,
)
from pytest_accel.stats.environment import Change, safe_arguments
from pytest_accel.stats.metric_gates import shown_name
from pytest_accel.stats.quantities import clipped, percent, printable, seconds, si
from pytest_accel.stats.results import Ending, ReferenceFigure, Result, SessionResults
from pytest_accel.stats.verdict import THROUGHPUT, Outcome

LIMIT_BYTES = 900 * 1024  # GitHub shows nothing of a step beyond 1 MiB
LEAST_BYTES = 32 * 1024
_FOLDED_FROM = 10  # rows that are ok
_NAMES = 5  # in a sentence; the table has all
_DETAIL_LINES = 15
_DETAIL_CHARACTERS = 300
_COMMAND_CHARACTERS = 2000
_REPRODUCED = 10  # benchmarks in one command
_CHANGES = 40
_NOTE_BYTES = 300  # of "n more are left out"
NAME_CHARACTERS = 300
SENTENCE_CHARACTERS = 1000
# Invisible: between a sign and the word after it, it keeps `@name` and `#12` from becoming links.
_APART = "&#8203;"

_ESCAPED = {
    "&": "&amp;",
    "<": "&lt;",
    "|": "&#124;",  # an escaped one ends a table's cell in some readers
    "$": "<span>&#36;</span>",  # mathematics; GitHub documents this escape
    **{sign: f"\\{sign}" for sign in "\\`*_[]~"},
}
# GitHub and GitLab link these after Markdown is done: people, issues, merge requests, labels, milestones, epics,
# snippets, emoji, addresses.
_LINKED = re.compile(
    r"""
      [@#!~%&$^](?=[\w"'])
    | :(?=//|[\w+-]+:)
    | (?i:\bwww)(?=\.)
    | (?i:\bG[HL])(?=-\d)
    """,
    re.VERBOSE,
)
_INSIDE_A_WORD = r"(?<=[A-Za-z0-9])_(?=[A-Za-z0-9])"  # no markup there, and in most names
_SPECIAL = re.compile(rf"{_LINKED.pattern}|(?!{_INSIDE_A_WORD})[{re.escape(''.join(_ESCAPED))}]", re.VERBOSE)
_NUMBERED = re.compile(r"\A(\d{1,9})([.)])(?=\s|\Z)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A section; its rows may be cut from the end, with a note."""

    head: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    tail: tuple[str, ...] = ()
    rows_are: str = "rows"
    rank: int = 0  # the lower gets room first

    @property
    def fixed_bytes(self) -> int:
        return _size(self.head) + _size(self.tail) + _NOTE_BYTES

    def lines(self, room_bytes: int) -> tuple[list[str], int]:
        """Return as many lines as fit, and the room that is left."""
        kept = 0
        for row in self.rows:
            if (size := _size([row])) > room_bytes:
                break
            room_bytes -= size
            kept += 1
        left_out = len(self.rows) - kept
        note = (
            f"**{left_out:,} more {self.rows_are} are left out here: there is no room for them.** The terminal, "
            "`--accel-json` and `--accel-report` have them all."
        )
        return [*self.head, *self.rows[:kept], *(["", note] if left_out else []), *self.tail], room_bytes


def render_summary(session: SessionResults, *, limit_bytes: int = LIMIT_BYTES) -> str:
    """Return the page, at most `limit_bytes` of UTF-8."""
    if limit_bytes < LEAST_BYTES:
        raise ValueError(
            f"limit_bytes: {limit_bytes} is too little for a summary. Give at least {LEAST_BYTES}."
        )
    results = in_order(session.results)
    name = _namer(results)
    item = partial(_item, name=name)
    failed = [result for result in results if result.failed]
    attention = [result for result in results if needs_attention(result)]
    settled = [result for result in results if not result.failed and not needs_attention(result)]
    is_folded = len(settled) > _FOLDED_FROM
    parts = [
        _Part(head=_headline(session)),
        _Part(rows=tuple(map(item, failed)), rows_are="benchmarks that failed", rank=1),
        *_changes(results, name),
        *_section("Needs attention", map(item, attention), "benchmarks that need attention", rank=4),
        *_machine(session),
        _table("Verdicts", [*failed, *attention, *([] if is_folded else settled)], name, rank=6),
        *([_folded(settled, name)] if is_folded else []),
        _Part(head=_reproduce(session, failed)),
    ]
    return _assembled(parts, limit_bytes)


def _section(title: str, rows: Iterable[str], rows_are: str, *, rank: int) -> list[_Part]:
    shown = tuple(rows)
    return [_Part(head=(f"### {title}", ""), rows=shown, rows_are=rows_are, rank=rank)] if shown else []


def _assembled(parts: Sequence[_Part], limit_bytes: int) -> str:
    room_bytes = limit_bytes - sum(part.fixed_bytes for part in parts)
    texts: dict[int, list[str]] = {}
    for index in sorted(range(len(parts)), key=lambda index: parts[index].rank):
        texts[index], room_bytes = parts[index].lines(room_bytes)
    blocks = ["\n".join(texts[index]).strip("\n") for index in range(len(parts)) if texts[index]]
    return "\n\n".join(blocks) + "\n"


def _size(lines: Iterable[str]) -> int:
    return sum(len(line.encode("utf-8")) + 2 for line in lines)


# --- the headline -----------------------------------------------------------------------------------


def _headline(session: SessionResults) -> tuple[str, ...]:
    how = f": {counts(map(status_word, session.failures))}" if session.failures else ""
    facts = [
        " ".join(map(_code_short, sorted({result.platform for result in session.results} - {""})[:_NAMES])),
        f"{counts(word(result.status) for result in session.results) or 'no benchmarks'} in {seconds(session.duration_s)}",
        _code_short(session.at),
        f"host {_code_short(session.host)}" if session.host else "",
        f"revision {_code_short(session.revision[:12])}" if session.revision else "",
        f"session {_code_short(session.session)}",
        f"pytest-accel {_code_short(session.version)}",
    ]
    return (f"## {headline_of(session).text}{how}", "", " · ".join(filter(None, facts)))


def _code_short(text: str) -> str:
    return code(text, characters=80)


# --- one benchmark, in words ------------------------------------------------------------------------

_Namer = Callable[[Result], str]


def _namer(results: Sequence[Result]) -> _Namer:
    """Name a result by its short name where that is unique."""
    met = Counter((result.name, result.platform) for result in results)
    return lambda result: (
        result.name if met[result.name, result.platform] == 1 and result.name else result.benchmark
    )


def _item(result: Result, name: _Namer) -> str:
    """Return an item of a list: the verdict, its text, and further lines."""
    where = f" ({_code_short(result.platform)})" if result.platform else ""
    said = f": {prose(result.text)}" if result.text else ""
    lines = [f"- **{status_word(result)}** {code(name(result))}{where}{said}"]
    is_traceback = result.status is Ending.FAILED and not result.misses_reference
    further = [
        *shortfalls(result),
        *([f"numerics changed too: {result.numerics}"] if result.numerics else []),
    ]
    if not is_traceback:
        further += result.details[:_DETAIL_LINES]
    lines += [
        f"  - {prose(line, characters=_DETAIL_CHARACTERS)}"
        for line in dict.fromkeys(further)
        if line.strip() and line != result.text
    ]
    if is_traceback and result.details:
        block = fenced(result.details[-_DETAIL_LINES:], language="text", characters=_DETAIL_CHARACTERS)
        lines += ["", *(f"  {line}" for line in block), ""]
    return "\n".join(lines)


# --- what changed -----------------------------------------------------------------------------------


def _changes(results: Sequence[Result], name: _Namer) -> list[_Part]:
    """Return every distinct diff once: open where it may explain something, folded where all is ok."""
    groups: dict[tuple[Change, ...], list[Result]] = {}
    for result in results:
        if result.baseline:
            groups.setdefault(result.changes, []).append(result)
    suspects = {
        result.changes for result in results if result.baseline and (result.failed or needs_attention(result))
    }
    is_only = len(groups) == 1
    opened = [_diff(c, m, name, is_only=is_only) for c, m in groups.items() if c in suspects]
    quiet = [_diff(c, m, name, is_only=is_only) for c, m in groups.items() if c and c not in suspects]
    title = "Changed since the baseline"
    parts = _section(title, opened, "sets of changes", rank=3)
    if quiet:
        head, tail = _details(f"{title} of those that are well")
        parts.append(_Part(head=head, rows=tuple(quiet), tail=tail, rows_are="sets of changes", rank=5))
    return parts


def _diff(changes: tuple[Change, ...], members: Sequence[Result], name: _Namer, *, is_only: bool) -> str:
    whose = "all that were compared" if is_only else _named([name(result) for result in members])
    if not changes:
        return f"Of {whose}: nothing in the recorded environment.\n"
    shown = [
        f"| {prose(change.title)} | {_value(change.old)} | {_value(change.new)} |"
        for change in changes[:_CHANGES]
    ]
    more = [f"| {len(changes) - _CHANGES} more | | |"] if len(changes) > _CHANGES else []
    return "\n".join([f"Of {whose}:", "", "| | baseline | now |", "|---|---|---|", *shown, *more, ""])


def _value(text: str | None) -> str:
    return "absent" if text is None else code(text, characters=120, in_table=True) or "empty"


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(code(name, characters=120) for name in names[:_NAMES])
    return f"{shown} and {len(names) - _NAMES} more" if len(names) > _NAMES else shown


# --- the machine ------------------------------------------------------------------------------------


def _machine(session: SessionResults) -> list[_Part]:
    """Return the notes of the session, and what doctor found wrong."""
    found = sorted(
        (each for each in session.findings if each.get("level") in {"problem", "warning"}),
        key=lambda each: each["level"] != "problem",
    )
    rows = [f"- {prose(remark)}" for remark in session.remarks]
    for finding in found:
        rows.append(
            f"- **{finding['level']}** {prose(finding_subject(finding))}: {prose(str(finding.get('text', '')))}"
        )
        if remedy := str(finding.get("remedy") or ""):
            rows[-1] += f"\n  - {prose(remedy)}"
    return _section("The machine", rows, "remarks", rank=2)


# --- the table --------------------------------------------------------------------------------------


def _table(title: str, results: Sequence[Result], name: _Namer, *, rank: int) -> _Part:
    if not results:
        return _Part()
    columns = [column for column in _columns(name) if any(map(column.text, results))]
    rules = ("--:" if column.right else "---" for column in columns)
    head = (f"### {title}", "") if title else ()
    return _Part(
        head=(*head, table_row(column.title for column in columns), table_row(rules)),
        rows=tuple(table_row(column.text(result) for column in columns) for result in results),
        rank=rank,
    )


def table_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _folded(results: Sequence[Result], name: _Namer) -> _Part:
    head, tail = _details(counts(word(result.status) for result in results))
    table = _table("", results, name, rank=7)
    return _Part(head=(*head, *table.head), rows=table.rows, tail=tail, rows_are="rows that are ok", rank=7)


def _details(title: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return (f"<details><summary>{title}</summary>", ""), ("", "</details>")


def _rate(throughput: float | None, unit: str) -> str:
    if throughput is None:
        return ""
    return f"{si(throughput)} {prose(f'{unit}/s', characters=40)}" if unit else si(throughput)


def _change(result: Result) -> str:
    """Return the change of throughput, and of metrics that are not ok; the reason where nothing was compared."""
    if is_settled(result.status) and result.status is not Outcome.OK:
        return prose(result.text, characters=200)
    said = [
        changed(verdict.slowdown.point)
        if verdict.of == THROUGHPUT
        else f"{prose(shown_name(verdict.of), characters=80)} {changed(verdict.slowdown.point, verdict.of)}"
        for verdict in shown_verdicts(result)
        if verdict.slowdown and (verdict.of == THROUGHPUT or not is_settled(verdict.outcome))
    ]
    return ", ".join(said)


def _scaling(result: Result) -> str:
    found = result.scaling
    return (
        f"{percent(found.efficiency)} of {code(found.against, characters=80, in_table=True)}" if found else ""
    )


def _reference(reference: ReferenceFigure) -> str:
    """Return this machine over a published figure; the figure alone where they cannot be compared."""
    flags = "".join(f", {flag}" for flag in reference.flags)
    source = prose(f"{reference.source} ({reference.platform}{flags})", characters=160)
    if reference.ratio is None:
        return f"{si(reference.value)} {prose(reference.unit, characters=40)}, {source}"
    return f"{reference.ratio:.2f} x {source}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    title: str
    text: Callable[[Result], str]
    right: bool = False


def _columns(name: _Namer) -> tuple[_Column, ...]:
    def verdict(result: Result) -> str:
        return f"**{status_word(result)}**" if result.failed else status_word(result)

    return (
        _Column(title="verdict", text=verdict),
        _Column(title="benchmark", text=lambda result: code(name(result), in_table=True)),
        _Column(title="platform", text=lambda result: code(result.platform, characters=80, in_table=True)),
        _Column(title="throughput", text=lambda result: _rate(result.throughput, result.unit), right=True),
        _Column(title="baseline", text=lambda result: _rate(result.baseline_throughput, ""), right=True),
        _Column(title="change", text=_change),
        _Column(title="scaling", text=_scaling),
        _Column(
            title="reference", text=lambda result: "<br>".join(map(_reference, result.references[:_NAMES]))
        ),
    )


# --- reproduce ------------------------------------------------------------------------------------------


def _reproduce(session: SessionResults, failed: Sequence[Result]) -> tuple[str, ...]:
    again = [each.benchmark for each in failed if can_rerun(each)]
    shown: list[str] = []
    for node_id in again[:_REPRODUCED]:
        if node_id.isprintable() and len(_command([*shown, node_id])) <= _COMMAND_CHARACTERS:
            shown.append(node_id)
    lines = []
    if session.command:
        lines += ["# this session", clipped(_command(session.command), _COMMAND_CHARACTERS)]
    if shown:
        what = "only what failed" if len(shown) == len(again) else f"{len(shown)} of {len(again)} that failed"
        lines += [f"# {what}", _command(shown)]
    if not lines:
        return ()
    return ("### Reproduce", "", *fenced(lines, language="sh", characters=_COMMAND_CHARACTERS))


def _command(arguments: Sequence[str]) -> str:
    return printable(shlex.join(["pytest", *safe_arguments(arguments)]))


# --- escaping ----------------------------------------------------------------------------------------


def code(text: str, *, characters: int = NAME_CHARACTERS, in_table: bool = False) -> str:
    """Return a code span that shows just this text."""
    shown = clipped(printable(text), characters)
    if not shown:
        return ""
    if in_table:  # the only escape that holds inside a code span, and only there
        shown = shown.replace("|", "\\|")
    quotes = "`" * (_longest_run(shown) + 1)
    apart = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return f"{quotes}{apart}{shown}{apart}{quotes}"


def prose(text: str, *, characters: int = SENTENCE_CHARACTERS) -> str:
    """Return one line that reads like this text, anywhere in a page."""
    line = clipped(printable(" ".join(text.split())), characters)
    escaped = _SPECIAL.sub(lambda found: _harmless(found[0], found.string, found.end()), line)
    if escaped.startswith(("-", "+", "=", "#", ">")):
        return f"\\{escaped}"
    return _NUMBERED.sub(r"\1\\\2", escaped)


def fenced(lines: Iterable[str], *, language: str = "", characters: int = SENTENCE_CHARACTERS) -> list[str]:
    """Return a block of code, line by line."""
    shown = [clipped(printable(line.expandtabs()), characters) for line in lines]
    fence = "`" * max(3, _longest_run("\n".join(shown)) + 1)
    return [f"{fence}{language}", *shown, fence]


def _harmless(found: str, text: str, end: int) -> str:
    escaped = _ESCAPED.get(found, found)
    return escaped + _APART if _LINKED.match(text, end - len(found)) else escaped


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
