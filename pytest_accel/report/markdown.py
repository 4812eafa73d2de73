"""A session as Markdown: its summary, and the baselines that should move; all text from outside escaped.

Names of benchmarks, values of the environment and texts of exceptions may hold anything. In a code span or a fence
neither Markdown nor GitHub and GitLab (mentions, issues, emoji) interpret anything, so names go there. Sentences are
escaped character by character.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from pytest_accel.report import verdicts
from pytest_accel.report.terminal import change
from pytest_accel.report.verdicts import VERDICTS
from pytest_accel.stats.comparison import was_slowed
from pytest_accel.stats.environment import Change, describe, safe_arguments
from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.quantities import clipped, percent, printable, seconds, si
from pytest_accel.stats.results import ReferenceFigure, Result, SessionResults

ITEMS = 100  # of a list; GitHub shows nothing of a step beyond 1 MiB
ROWS = 1000  # of a table
_FOLDED_FROM = 10  # rows that are ok
_NAMES = 5  # in a sentence; the table has all
_DETAIL_LINES = 15
_DETAIL_CHARACTERS = 300
_COMMAND_CHARACTERS = 2000
_REPRODUCED = 10  # benchmarks in one command
_CHANGES = 40
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


def render_summary(session: SessionResults) -> str:
    results = verdicts.in_order(session.results)
    name = _namer(results)
    failed = [result for result in results if result.failed]
    attention = [result for result in results if verdicts.needs_attention(result)]
    resolved = [result for result in results if not result.failed and not verdicts.needs_attention(result)]
    folded = resolved if len(resolved) > _FOLDED_FROM else []
    blocks = [
        _headline(session),
        _items(failed, name),
        _section("Changed since the baseline", _changes([*failed, *attention], name)),
        _section("Needs attention", _items(attention, name)),
        _section("The machine", _machine(session)),
        _section("Verdicts", _table([*failed, *attention, *([] if folded else resolved)], name)),
        _folded(verdicts.counts(verdicts.word(result.status) for result in folded), _table(folded, name)),
        _section("Reproduce", _reproduce(session, failed)),
    ]
    return "\n\n".join("\n".join(lines).strip("\n") for lines in blocks if lines) + "\n"


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"### {title}", "", *lines] if lines else []


def _folded(title: str, lines: Sequence[str]) -> list[str]:
    return [f"<details><summary>{title}</summary>", "", *lines, "", "</details>"] if lines else []


def _left_out(count: int, what: str) -> list[str]:
    text = f"**{count:,} more {what} are left out here.** `--accel-json` and `--accel-report` have them all."
    return ["", text] if count > 0 else []


# --- the headline -----------------------------------------------------------------------------------


def _headline(session: SessionResults) -> list[str]:
    how = f": {verdicts.counts(map(verdicts.status_word, session.failures))}" if session.failures else ""
    facts = [
        " ".join(map(_code_short, sorted({result.platform for result in session.results} - {""})[:_NAMES])),
        f"{verdicts.counts(verdicts.word(result.status) for result in session.results) or 'no benchmarks'} in {seconds(session.duration_s)}",
        *_origin(session),
        f"pytest-accel {_code_short(session.version)}",
    ]
    return [f"## {verdicts.headline_of(session).text}{how}", "", " · ".join(filter(None, facts))]


def _origin(session: SessionResults) -> list[str]:
    """Return when, where and of what a session was."""
    return [
        _code_short(session.at),
        f"host {_code_short(session.host)}" if session.host else "",
        f"revision {_code_short(session.revision[:12])}" if session.revision else "",
        f"session {_code_short(session.session)}",
    ]


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


def _items(results: Sequence[Result], name: _Namer) -> list[str]:
    """Return a list: the verdict of each, its text, and further lines."""
    lines = []
    for result in results[:ITEMS]:
        where = f" ({_code_short(result.platform)})" if result.platform else ""
        said = f": {prose(result.text)}" if result.text else ""
        lines.append(f"- **{verdicts.status_word(result)}** {code(name(result))}{where}{said}")
        more = result.lines[1:_DETAIL_LINES]
        lines += [f"  - {prose(line.named, characters=_DETAIL_CHARACTERS)}" for line in more]
        lines += [
            f"  - {heading}: {prose('; '.join(filter(None, (text, remedy))))}"
            for heading, text, remedy in result.cause_lines
        ]
        if result.traceback:
            end = result.traceback[-_DETAIL_LINES:]
            block = fenced(end, language="text", characters=_DETAIL_CHARACTERS)
            lines += ["", *(f"  {line}" for line in block), ""]
    return [*lines, *_left_out(len(results) - ITEMS, "benchmarks")]


# --- what changed -----------------------------------------------------------------------------------


def _changes(results: Sequence[Result], name: _Namer) -> list[str]:
    """Return every distinct difference of the environment once."""
    groups: dict[tuple[Change, ...], list[Result]] = {}
    for result in results:
        if result.baseline:
            groups.setdefault(result.changes, []).append(result)
    lines = []
    for changes, members in list(groups.items())[:ITEMS]:
        whose = _named([name(result) for result in members])
        if not changes:
            lines += [f"Of {whose}: nothing in the recorded environment.", ""]
            continue
        rows = [[prose(each.title), _value(each.old), _value(each.new)] for each in changes[:_CHANGES]]
        more = len(changes) - _CHANGES
        rows += [[f"{more} more", "", ""]] if more > 0 else []
        lines += [f"Of {whose}:", "", *markdown_table(("", "baseline", "now"), rows), ""]
    return lines


def _value(text: str | None) -> str:
    return "absent" if text is None else code(text, characters=120, in_table=True) or "empty"


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(code(name, characters=120) for name in names[:_NAMES])
    return f"{shown} and {len(names) - _NAMES} more" if len(names) > _NAMES else shown


# --- the machine ------------------------------------------------------------------------------------


def _machine(session: SessionResults) -> list[str]:
    lines = [f"- {prose(remark)}" for remark in session.remarks[:ITEMS]]
    for finding in verdicts.pressing_findings(session.findings):
        text = str(finding.get("text", ""))
        lines.append(f"- **{finding['level']}** {prose(verdicts.finding_subject(finding))}: {prose(text)}")
        if remedy := str(finding.get("remedy") or ""):
            lines.append(f"  - {prose(remedy)}")
    return lines


# --- the table --------------------------------------------------------------------------------------


def _table(results: Sequence[Result], name: _Namer) -> list[str]:
    """Return a row for each result, without empty columns; a title that ends in `>` is of figures."""
    rows = [_row(result, name) for result in results[:ROWS]]
    titles = [title for title in (rows[0] if rows else ()) if any(row[title] for row in rows)]
    if not titles:
        return []
    table = markdown_table(titles, ([row[title] for title in titles] for row in rows))
    return [*table, *_left_out(len(results) - ROWS, "rows")]


def _row(result: Result, name: _Namer) -> dict[str, str]:
    unresolved = not verdicts.is_resolved(result.status) or result.status is Outcome.OK
    scaling = result.scaling
    scaled = f"{percent(scaling.efficiency)} of {prose(scaling.against, characters=80)}" if scaling else ""
    return {
        "verdict": f"**{verdicts.status_word(result)}**" if result.failed else verdicts.status_word(result),
        "benchmark": code(name(result), in_table=True),
        "platform": code(result.platform, characters=80, in_table=True),
        "throughput>": _rate(result.throughput, f" {result.unit}/s" if result.unit else ""),
        "baseline>": _rate(result.baseline_throughput, ""),
        "change": prose(change(result) if unresolved else result.text, characters=200),
        "scaling": scaled,
        "reference": "<br>".join(map(_reference, result.references[:_NAMES])),
    }


def markdown_table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return a table of escaped texts; a title that ends in `>` is of figures."""
    known = list(titles)
    names = [title.removesuffix(">") for title in known]
    rules = ["---:" if title.endswith(">") else "---" for title in known]
    return [f"| {' | '.join(row)} |" for row in (names, rules, *rows)]


def _rate(throughput: float | None, unit: str) -> str:
    return "" if throughput is None else prose(f"{si(throughput)}{unit}", characters=60)


def _reference(reference: ReferenceFigure) -> str:
    """Return this machine over a published figure; the figure alone where they cannot be compared."""
    flags = "".join(f", {flag}" for flag in reference.flags)
    source = prose(f"{reference.source} ({reference.platform}{flags})", characters=160)
    if reference.ratio is None:
        return f"{si(reference.value)} {prose(reference.unit, characters=40)}, {source}"
    return f"{reference.ratio:.2f} x {source}"


# --- reproduce ------------------------------------------------------------------------------------------


def _reproduce(session: SessionResults, failed: Sequence[Result]) -> list[str]:
    if not session.command:  # of an upgrade, which one pytest does not reproduce
        return []
    again = [each for each in failed if verdicts.can_rerun(each) and each.benchmark.isprintable()]
    again = again[:_REPRODUCED]
    command = shlex.join(["pytest", *safe_arguments(session.command)])
    lines = ["# this session", clipped(printable(command), _COMMAND_CHARACTERS)]
    if again:
        some = f"{len(again)} of {len(failed)} that failed"
        what = "only what failed" if len(again) == len(failed) else some
        lines += [f"# {what}", printable(verdicts.rerun(again, safe_arguments(session.command)))]
    return fenced(lines, language="sh", characters=_COMMAND_CHARACTERS)


# --- changes to baselines -------------------------------------------------------------------------------

# Nothing moves by itself: each part ends with the command that moves it, and with what to look at before.
LIMIT_CHARACTERS = 60_000  # GitHub takes 65,536 in an issue, and nothing of a longer one
_TOGETHER = 40  # benchmarks in one list and one command
_REST = "**The rest is left out: there is no room for it.**"
_LEAVE = (
    "Nothing recorded changed, and your own code is not recorded. Leave the baseline: one that follows a fault hides it. "
    "Look at what was committed since, and at the machine with pytest-accel doctor (clocks, power cap, other users), "
    "then measure again:"
)


def render_proposal(session: SessionResults) -> str:
    """Return the text, a headline first; empty where no baseline should move."""
    groups: dict[tuple[object, ...], list[Result]] = {}
    for result in verdicts.in_order(session.results):
        # A slowdown on purpose is nothing to decide.
        if verdicts.remedy([result], session.command) and not any(map(was_slowed, result.runs)):
            groups.setdefault((result.platform, result.status, result.changes), []).append(result)
    if not groups:
        return ""
    concerned = [each for members in groups.values() for each in members]
    counts = Counter(VERDICTS[each.status].word.lower() for each in concerned)
    platforms = ", ".join(dict.fromkeys(filter(None, (each.platform for each in concerned))))
    summary = ", ".join(f"{count} {word}" for word, count in counts.items())
    blocks = [
        f"# {prose(platforms, characters=80)}: {summary}",
        " · ".join(filter(None, _origin(session))),
        "The commands are for the project's root folder on that machine. They measure again.",
    ]
    blocks += [_proposed(members, session) for members in groups.values()]
    if sum(len(block) + 2 for block in blocks) > LIMIT_CHARACTERS:
        while sum(len(block) + 2 for block in blocks) > LIMIT_CHARACTERS - len(_REST) - 2:
            blocks.pop()
        blocks.append(_REST)
    return "\n\n".join(blocks) + "\n"


def _proposed(members: Sequence[Result], session: SessionResults) -> str:
    """Return benchmarks of one status and the same changes, and one command for them."""
    shown, first = members[:_TOGETHER], members[0]
    row = VERDICTS[first.status]
    lines = [f"## {row.word.capitalize()}", ""]
    lines += [f"- {code(each.benchmark)}: {prose(each.text, characters=300)}" for each in shown]
    lines += [f"- and {len(members) - len(shown)} more"] if len(members) > len(shown) else []
    if first.changes:
        lines += ["", f"Changed: {prose(describe(first.changes))}"]
    asked = verdicts.remedy(shown, session.command, session.results)
    if asked is None or (first.status is Outcome.REGRESSED and not first.changes):
        advice, line = _LEAVE, verdicts.rerun(shown, session.command, session.results)
    else:
        advice, line = row.remedy or f"{asked[0]}:", asked[1]
    return "\n".join([*lines, "", advice, "", *fenced([printable(line)], language="sh", characters=20_000)])


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


# --- the summary of a step on GitHub ----------------------------------------------------------------

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
STEP_BYTES = 1024 * 1024  # a larger file of a step is not shown at all
_SPARE_BYTES = 8 * 1024  # for what the step may write after us
_TOO_LONG = "the summary is left out, GitHub shows 1 MiB a step."
_CUT = f"\n\n**Of this session {_TOO_LONG}** The log and `--accel-report` have it.\n"


def append_step_summary(environ: Mapping[str, str], text: str) -> str:
    """Append to the file of the step, as far as there is room; return a warning where that failed or was cut."""
    name = environ.get(STEP_SUMMARY, "")
    if not name:
        return ""
    try:
        return _append(Path(name), text)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        why = getattr(error, "strerror", None) or error
        return f"{STEP_SUMMARY}={name}: the summary cannot be written: {why}. --accel-report writes it elsewhere."


def _append(path: Path, text: str) -> str:
    # Not created: the runner reads only the file that it made. Non-blocking: a FIFO would wait for ever.
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "ab") as stream:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            return f"{STEP_SUMMARY}={path}: is not a regular file, and was left alone. --accel-report writes one."
        apart = "\n\n" if facts.st_size else ""
        headline = text.partition("\n")[0] + _CUT
        for part in (text, headline):
            data = f"{apart}{part}".encode("utf-8", "backslashreplace")
            if facts.st_size + len(data) <= STEP_BYTES - _SPARE_BYTES:
                stream.write(data)
                break
        return "" if part is text else f"{STEP_SUMMARY}: {_TOO_LONG} --accel-report writes all of it."
