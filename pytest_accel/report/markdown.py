"""A session as Markdown: its summary, and the baselines that should move.

Names and values go into code spans, tracebacks and commands into fences. Sentences are escaped.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pytest_accel.report import verdicts
from pytest_accel.report.terminal import change
from pytest_accel.report.verdicts import VERDICTS
from pytest_accel.stats.comparison import was_slowed
from pytest_accel.stats.environment import describe, safe_arguments
from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.quantities import clipped, percent, printable, seconds, si
from pytest_accel.stats.results import ReferenceFigure, Result, SessionResults

ITEMS = 100  # of a list; GitHub shows nothing of a step beyond 1 MiB
_FOLDED_FROM = 10  # rows that are ok
_NAMES = 5  # in a sentence; the table has all
_DETAIL_LINES = 15
_REPRODUCED = 10  # benchmarks in one command
_SENTENCE_CHARACTERS = 1000
_SPECIAL = re.compile(r"[\\`*\[\]<~]|(?<![^\W_])_|_(?![^\W_])")  # `_` within a word is no markup
_FENCE = "````"  # a traceback may show a docstring with three


def render_summary(session: SessionResults) -> str:
    results = verdicts.in_order(session.results)
    failed = [result for result in results if result.failed]
    attention = [result for result in results if verdicts.needs_attention(result)]
    resolved = [result for result in results if not result.failed and not verdicts.needs_attention(result)]
    folded = resolved if len(resolved) > _FOLDED_FROM else []
    blocks = [
        _headline(session),
        _items(failed),
        _section("Changed since the baseline", _changes([*failed, *attention])),
        _section("Needs attention", _items(attention)),
        _section("The machine", _machine(session)),
        _section("Verdicts", _table([*failed, *attention, *([] if folded else resolved)])),
        _folded(verdicts.counts(verdicts.word(result.status) for result in folded), _table(folded)),
        _section("Reproduce", _reproduce(session, failed)),
    ]
    return "\n\n".join("\n".join(lines).strip("\n") for lines in blocks if lines) + "\n"


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"### {title}", "", *lines] if lines else []


def _folded(title: str, lines: Sequence[str]) -> list[str]:
    return [f"<details><summary>{title}</summary>", "", *lines, "", "</details>"] if lines else []


def _headline(session: SessionResults) -> list[str]:
    how = f": {verdicts.counts(map(verdicts.status_word, session.failures))}" if session.failures else ""
    facts = [
        " ".join(map(code, sorted({result.platform for result in session.results} - {""})[:_NAMES])),
        f"{verdicts.counts(verdicts.word(result.status) for result in session.results) or 'no benchmarks'} in {seconds(session.duration_s)}",
        *_origin(session),
        f"pytest-accel {code(session.version)}",
    ]
    return [f"## {verdicts.headline_of(session).text}{how}", "", " · ".join(filter(None, facts))]


def _origin(session: SessionResults) -> list[str]:
    """Return when, where and of what a session was."""
    return [
        code(session.at),
        f"host {code(session.host)}" if session.host else "",
        f"revision {code(session.revision[:12])}" if session.revision else "",
        f"session {code(session.session)}",
    ]


def _items(results: Sequence[Result]) -> list[str]:
    """Return a list: the verdict of each, its text, and further lines."""
    lines = []
    for result in results[:ITEMS]:
        where = f" ({code(result.platform)})" if result.platform else ""
        said = f": {prose(result.text)}" if result.text else ""
        lines.append(f"- **{verdicts.status_word(result)}** {code(result.benchmark)}{where}{said}")
        lines += [f"  - {prose(line.named)}" for line in result.lines[1:_DETAIL_LINES]]
        lines += [
            f"  - {heading}: {prose('; '.join(filter(None, (text, remedy))))}"
            for heading, text, remedy in result.cause_lines
        ]
        if result.traceback:
            block = fenced(result.traceback[-_DETAIL_LINES:], language="text")
            lines += ["", *(f"  {line}" for line in block), ""]
    if len(results) > ITEMS:
        more = len(results) - ITEMS
        lines += [
            "",
            f"**{more} more are left out here.** `--accel-json` and `--accel-report` have them all.",
        ]
    return lines


def _changes(results: Sequence[Result]) -> list[str]:
    """Return every difference of the environment once, with how many benchmarks it concerns."""
    compared = [result for result in results if result.baseline]
    counts = Counter(change for result in compared for change in result.changes)
    rows = [
        [prose(each.title), _value(each.old), _value(each.new), f"{count} of {len(compared)}"]
        for each, count in counts.items()
    ]
    if compared and not rows:
        return ["Nothing in the recorded environment."]
    return markdown_table(("", "baseline", "now", "benchmarks"), rows) if rows else []


def _value(text: str | None) -> str:
    return "absent" if text is None else code(text) or "empty"


def _machine(session: SessionResults) -> list[str]:
    lines = [f"- {prose(remark)}" for remark in session.remarks]
    for finding in verdicts.pressing_findings(session.findings):
        text = str(finding.get("text", ""))
        lines.append(f"- **{finding['level']}** {prose(verdicts.finding_subject(finding))}: {prose(text)}")
        if remedy := str(finding.get("remedy") or ""):
            lines.append(f"  - {prose(remedy)}")
    return lines


def _table(results: Sequence[Result]) -> list[str]:
    """Return a row for each result, without empty columns; a title that ends in `>` is of figures."""
    rows = list(map(_row, results))
    titles = [title for title in (rows[0] if rows else ()) if any(row[title] for row in rows)]
    return markdown_table(titles, ([row[title] for title in titles] for row in rows)) if rows else []


def _row(result: Result) -> dict[str, str]:
    unresolved = not verdicts.is_resolved(result.status) or result.status is Outcome.OK
    scaling = result.scaling
    return {
        "verdict": f"**{verdicts.status_word(result)}**" if result.failed else verdicts.status_word(result),
        "benchmark": code(result.name),
        "platform": code(result.platform),
        "throughput>": _rate(result.throughput, f" {result.unit}/s" if result.unit else ""),
        "baseline>": _rate(result.baseline_throughput, ""),
        "change": prose(change(result) if unresolved else result.text),
        "scaling": f"{percent(scaling.efficiency)} of {prose(scaling.against)}" if scaling else "",
        "reference": "<br>".join(map(_reference, result.references[:_NAMES])),
    }


def markdown_table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return a table of escaped texts; a title that ends in `>` is of figures."""
    known = list(titles)
    names = [title.removesuffix(">") for title in known]
    rules = ["---:" if title.endswith(">") else "---" for title in known]
    cells = ((cell.replace("|", "\\|") for cell in row) for row in (names, rules, *rows))
    return [f"| {' | '.join(row)} |" for row in cells]


def _rate(throughput: float | None, unit: str) -> str:
    return "" if throughput is None else prose(f"{si(throughput)}{unit}")


def _reference(reference: ReferenceFigure) -> str:
    """Return this machine over a published figure; the figure alone where they cannot be compared."""
    flags = "".join(f", {flag}" for flag in reference.flags)
    source = prose(f"{reference.source} ({reference.platform}{flags})")
    if reference.ratio is None:
        return f"{si(reference.value)} {prose(reference.unit)}, {source}"
    return f"{reference.ratio:.2f} x {source}"


def _reproduce(session: SessionResults, failed: Sequence[Result]) -> list[str]:
    if not session.command:  # of an upgrade, which one pytest does not reproduce
        return []
    again = list(filter(verdicts.can_rerun, failed))[:_REPRODUCED]
    command = safe_arguments(session.command)
    lines = ["# this session", shlex.join(["pytest", *command])]
    if again:
        lines += [f"# {len(again)} of {len(failed)} that failed", verdicts.rerun(again, command)]
    return fenced(lines, language="sh")


# --- changes to baselines -------------------------------------------------------------------------------

# Nothing moves by itself: each part ends with the command that moves it, and with what to look at before.
_TOGETHER = 40  # benchmarks in one list and one command
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
        f"# {prose(platforms)}: {summary}",
        " · ".join(filter(None, _origin(session))),
        "The commands are for the project's root folder on that machine. They measure again.",
    ]
    blocks += [_proposed(members, session) for members in groups.values()]
    return "\n\n".join(blocks) + "\n"


def _proposed(members: Sequence[Result], session: SessionResults) -> str:
    """Return benchmarks of one status and the same changes, and one command for them."""
    shown, first = members[:_TOGETHER], members[0]
    row = VERDICTS[first.status]
    lines = [f"## {row.word.capitalize()}", ""]
    lines += [f"- {code(each.benchmark)}: {prose(each.text)}" for each in shown]
    lines += [f"- and {len(members) - len(shown)} more"] if len(members) > len(shown) else []
    if first.changes:
        lines += ["", f"Changed: {prose(describe(first.changes))}"]
    asked = verdicts.remedy(shown, session.command, session.results)
    if asked is None or (first.status is Outcome.REGRESSED and not first.changes):
        advice, line = _LEAVE, verdicts.rerun(shown, session.command, session.results)
    else:
        advice, line = row.remedy or f"{asked[0]}:", asked[1]
    return "\n".join([*lines, "", advice, "", *fenced([line], language="sh")])


# --- escaping ----------------------------------------------------------------------------------------


def code(text: str) -> str:
    """Return a code span that shows just this text."""
    shown = printable(text)
    return f"`` {shown} ``" if "`" in shown else f"`{shown}`" if shown else ""


def prose(text: str) -> str:
    """Return one line that reads like this text, and mentions nobody."""
    line = clipped(printable(" ".join(text.split())), _SENTENCE_CHARACTERS)
    return _SPECIAL.sub(r"\\\g<0>", line).replace("@", "@&#8203;")


def fenced(lines: Iterable[str], *, language: str) -> list[str]:
    """Return a block of code, line by line."""
    return [f"{_FENCE}{language}", *(printable(line.expandtabs()) for line in lines), _FENCE]


# --- the summary of a step on GitHub ----------------------------------------------------------------

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


def append_step_summary(environ: Mapping[str, str], text: str) -> None:
    """Append to the file of the step, where there is one."""
    if name := environ.get(STEP_SUMMARY):
        with Path(name).open("a", encoding="utf-8") as stream:
            stream.write(f"\n\n{text}")
