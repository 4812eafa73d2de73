"""Proposal of changes to baselines after a session, as the text of an issue or of a pull request.

Nothing moves by itself: each part ends with the command that moves it, and with what to look at before.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_accel.report.markdown import code, fenced, prose
from pytest_accel.report.remedies import kept_options, naming, with_values
from pytest_accel.report.verdicts import VERDICTS, in_order
from pytest_accel.stats.baseline_quality import MIN_SESSIONS, baseline_quality
from pytest_accel.stats.comparison import was_slowed
from pytest_accel.stats.environment import Change, describe
from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.quantities import clipped, printable, si
from pytest_accel.stats.results import Ending, Result, SessionResults
from pytest_accel.stats.run import MAX_RUNS

LIMIT_CHARACTERS = 60_000  # GitHub takes 65,536 in an issue, and nothing of a longer one
_TOGETHER = 40  # benchmarks in one table and one command: more are several
_REASON_CHARACTERS = 200
_RUNS_A_DAY = 2  # of a recording that goes on: a second run shows what is of the day and what of the process


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one command does, and why; benchmarks that share it are one part of the text."""

    platform: str
    title: str
    advice: str
    changes: tuple[Change, ...] = ()  # of the environment; they may explain it
    remark: str = ""  # on each benchmark
    options: tuple[str, ...] = ()  # of the pytest that measures them again


def render_proposal(session: SessionResults) -> str:
    """Return the text, a headline first; empty where no baseline should move."""
    found: dict[_Part, list[Result]] = {}
    for result in in_order(session.results):
        if part := _part(result, session):
            found.setdefault(part, []).append(result)
    if not found:
        return ""
    counts = Counter({part.title: 0 for part in found})
    for part, results in found.items():
        counts[part.title] += len(results)
    platforms = ", ".join(dict.fromkeys(each.platform for each in found if each.platform))
    summary = ", ".join(f"{count} {title}" for title, count in counts.items())
    blocks = [f"# {prose(platforms, characters=80)}: {summary}", _facts(session)]
    for part, results in found.items():
        blocks.append(f"## {part.title.capitalize()}")
        for start in range(0, len(results), _TOGETHER):
            blocks += _blocks(part, results[start : start + _TOGETHER], session)
    return _assembled(blocks)


def _assembled(blocks: Sequence[str]) -> str:
    """Return as many complete blocks as an issue has room for, and a note where some are left out."""
    note = "**The rest is left out: there is no room for it.**"
    room, kept = LIMIT_CHARACTERS - len(note) - 3, list[str]()
    for block in blocks:
        room -= len(block) + 2
        if room < 0:
            return "\n\n".join([*kept, note]) + "\n"
        kept.append(block)
    return "\n\n".join(kept) + "\n"


# --- what to do -------------------------------------------------------------------------------------


def _part(result: Result, session: SessionResults) -> _Part | None:
    """Return what should be done about a baseline; ok, inconclusive, broken, skipped: no baseline moves for it."""
    row = VERDICTS[result.status]
    title, advice = row.word.lower(), row.remedy
    changes: tuple[Change, ...] = ()
    options: tuple[str, ...] = ()
    match result.status:
        case Ending.RECORDED if result.runs:
            return _after_recording(result, is_update="--accel-update" in session.command)
        case Outcome.NO_BASELINE:
            options = ("--accel-record",)
        case Outcome.STALE_BASELINE:  # the first clause is the finding, without the remedy
            finding = result.text.partition(";")[0].removesuffix(" and are never compared")
            options = _update(finding)
        case Outcome.REGRESSED | Outcome.IMPROVED:
            if result.is_platform or any(map(was_slowed, result.runs)):  # on purpose: nothing to decide
                return None
            changes = result.changes
            revision = f" at revision {session.revision[:12]}" if session.revision else ""
            options = _update(describe(changes) or f"faster{revision}")
            if result.status is Outcome.REGRESSED and changes:
                title += " after a change"
            elif result.status is Outcome.REGRESSED:
                title, options = f"{title}, and nothing recorded changed", ()
                advice = (
                    "Leave the baseline: one that follows a fault hides it. Look at the machine with pytest-accel doctor "
                    "(clocks, power cap, other users), then measure again:"
                )
        case Outcome.VANISHED:
            pass
        case _:
            return None
    return _Part(platform=result.platform, title=title, advice=advice, changes=changes, options=options)


def _after_recording(result: Result, *, is_update: bool) -> _Part | None:
    runs = result.runs if is_update else (*result.baseline, *result.runs)
    now = baseline_quality(runs, result.tolerance)
    if now.is_surely_noisy:
        return _Part(
            platform=result.platform,
            title="recorded too noisily",
            advice="The gate cannot hold their tolerance with such runs. Quieten the machine (pytest-accel doctor), "
            "then record anew:",
            remark=now.too_noisy,
            options=_update(now.too_noisy),
        )
    if not now.provisional:
        return None
    remark, days = f"provisional: {now.provisional}", max(MIN_SESSIONS - now.sessions, 1)
    a_day = min(_RUNS_A_DAY, (MAX_RUNS - now.runs) // days)
    return _Part(
        platform=result.platform,
        title="recorded provisionally",
        advice="Runs of one session resemble each other. Repeat this on other days, until runs of "
        f"{MIN_SESSIONS} sessions are stored:",
        remark=remark,
        options=(f"--accel-record={a_day}",) if a_day else _update(remark),
    )


def _update(reason: str) -> tuple[str, ...]:
    return "--accel-update", f"--accel-reason={clipped(reason, _REASON_CHARACTERS)}"


# --- text -------------------------------------------------------------------------------------------


def _facts(session: SessionResults) -> str:
    facts = [
        f"Session {code(session.session, characters=80)}",
        code(session.at, characters=80),
        f"host {code(session.host, characters=80)}" if session.host else "",
        f"revision {code(session.revision[:12])}" if session.revision else "",
    ]
    recorded = any(result.status is Ending.RECORDED for result in session.results)
    advice = (
        "Baselines were recorded. The commands below are for the project's root folder on that machine."
        if recorded
        else "No baseline was moved. The commands below do it, in the project's root folder on that machine. They "
        "measure anew: runs that a verdict has chosen are no baseline."
    )
    return f"{' · '.join(filter(None, facts))}\n\n{advice}"


def _blocks(part: _Part, results: Sequence[Result], session: SessionResults) -> list[str]:
    """Return the results, the changes, and the command."""
    blocks = ["| benchmark | baseline | now | |\n|---|---|---|---|"]
    for result in results:
        figures = [_figure(each, result) for each in (result.baseline_throughput, result.throughput)]
        text = prose("; ".join(filter(None, [result.text, part.remark])), characters=300)
        blocks[0] += f"\n| {code(result.benchmark, in_table=True)} | {' | '.join(figures)} | {text} |"
    if part.changes:
        rows = [f"| {prose(each.title)} | {_value(each.old)} | {_value(each.new)} |" for each in part.changes]
        blocks.append("\n".join(["| changed | baseline | now |", "|---|---|---|", *rows]))
    command = fenced(_command(part, results, session), language="sh", characters=LIMIT_CHARACTERS)
    return [*blocks, "\n".join([part.advice, "", *command])]


def _figure(throughput: float | None, result: Result) -> str:
    if throughput is None or result.status is Outcome.STALE_BASELINE:  # the two are not of one kind
        return ""
    return prose(f"{si(throughput)} {result.unit}/s", characters=80)


def _value(text: str | None) -> str:
    return "absent" if text is None else code(text, characters=120, in_table=True) or "empty"


def _command(part: _Part, results: Sequence[Result], session: SessionResults) -> list[str]:
    """Return the command to paste, an argument a line."""
    kept = kept_options(session.command)
    if results[0].status is Outcome.VANISHED:
        folder = next((word for name, word in with_values(kept) if name == "--accel-baselines"), "")
        words = [
            *(f"pytest-accel baseline edit {results[0].disk_name or part.platform}".split()),
            *(f"--remove={result.key or result.benchmark}" for result in results),
            *([f"--baselines={folder}"] if folder else []),
            "--reason=it is gone",
        ]
    else:
        named = naming([result.benchmark for result in results], session.command)
        words = ["pytest", *named, "-m", part.platform, *kept, *part.options]
    text = ""
    for word in map(printable, words):
        begins = word.startswith("-") or "::" in word  # else it belongs to the word before it
        text += f" \\\n    {shlex.quote(word)}" if begins else f" {shlex.quote(word)}"
    return text.lstrip().splitlines()
