"""Proposal of changes to baselines after a session, as the text of an issue or of a pull request.

Nothing moves by itself: each part ends with the command that moves it, and with what to look at before.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from pytest_accel.report.markdown import code, fenced, prose
from pytest_accel.report.remedies import kept_options, naming, with_values
from pytest_accel.report.verdicts import in_order
from pytest_accel.stats.baseline_quality import MIN_SESSIONS, BaselineQuality, baseline_quality
from pytest_accel.stats.comparison import was_slowed
from pytest_accel.stats.environment import Change, describe
from pytest_accel.stats.quantities import clipped, printable, si
from pytest_accel.stats.results import Ending, Result, SessionResults
from pytest_accel.stats.run import MAX_RUNS
from pytest_accel.stats.verdict import Outcome

LIMIT_CHARACTERS = 60_000  # GitHub takes 65,536 in an issue, and nothing of a longer one
_TOGETHER = 40  # benchmarks in one table and one command: more are several
_REASON_CHARACTERS = 200
_LINE_CHARACTERS = 120
_RUNS_A_DAY = 2  # of a recording that goes on: a second run shows what is of the day and what of the process


class _Kind(Enum):
    """Kinds of changes, in the order of the text."""

    def __init__(self, word: str, title: str, advice: str) -> None:
        self.word = word  # in the headline
        self.title = title
        self.advice = advice

    DECIDE = (
        "regressed after a change",
        "Regressed after a change: decide",
        "Undo the change and the baseline stays as it is. Where the change is worth the loss, accept it:",
    )
    LEAVE = (
        "regressed, and nothing recorded changed",
        "Regressed, and nothing recorded changed: leave the baseline",
        "A baseline that follows a fault hides it. Look at the machine (clocks, power cap, other users), then measure again:",
    )
    RENEW = (
        "stale",
        "Stale: record anew",
        "The stored runs are of something else. A machine that is not as it should be is put right; else record anew:",
    )
    REFRESH = (
        "improved",
        "Improved: refresh",
        "Until the baseline is refreshed, losing this gain will go unnoticed:",
    )
    RECORD = (
        "without a baseline",
        "Without a baseline: record",
        "Nothing is judged until there is one:",
    )
    QUIETEN = (
        "recorded too noisily",
        "Recorded, and too noisy for the tolerance: record anew",
        "The gate cannot hold their tolerance with such runs. Quieten the machine, then record anew:",
    )
    COMPLETE = (
        "recorded provisionally",
        "Recorded, and provisional: record on more days",
        f"Runs of one session resemble each other. Repeat this on other days, until runs of {MIN_SESSIONS} sessions are stored:",
    )
    REMOVE = (
        "vanished",
        "Vanished: restore or remove",
        "Restore them, or take them out of the baseline:",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Proposal:
    """What one command does, and why; benchmarks that share it are one part of the text."""

    kind: _Kind
    platform: str
    changes: tuple[Change, ...] = ()  # of the environment; they may explain it
    why: str = ""  # where something else explains it
    runs: int = 0  # to record on each further day; 0 where nothing more can be appended


def render_proposal(session: SessionResults) -> str:
    """Return the text, a headline first; empty where no baseline should move."""
    found: dict[_Proposal, list[Result]] = {}
    is_update = "--accel-update" in session.command
    for result in in_order(session.results):
        if proposal := _proposal(result, is_update=is_update):
            found.setdefault(proposal, []).append(result)
    if not found:
        return ""
    blocks = [_headline(found), _facts(session)]
    for kind in _Kind:
        head = f"## {kind.title}\n\n"
        for proposal, results in found.items():
            if proposal.kind is kind:
                for start in range(0, len(results), _TOGETHER):
                    first, *more = _blocks(proposal, results[start : start + _TOGETHER], session)
                    blocks += [head + first, *more]
                    head = ""
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


def _proposal(result: Result, *, is_update: bool) -> _Proposal | None:  # noqa: PLR0911 - one return a case
    """Return what should be done about a baseline; ok, inconclusive, broken, skipped: no baseline moves for it."""
    of = partial(_Proposal, platform=result.platform)
    match result.status:
        case Outcome.STALE_BASELINE:  # the first clause is the finding, without the remedy
            return of(
                kind=_Kind.RENEW, why=result.text.partition(";")[0].removesuffix(" and are never compared")
            )
        case Outcome.NO_BASELINE:
            return of(kind=_Kind.RECORD)
        case Outcome.VANISHED:
            return of(kind=_Kind.REMOVE)
        case Ending.RECORDED if result.runs:
            runs = result.runs if is_update else (*result.baseline, *result.runs)
            return _after_recording(of, baseline_quality(runs, result.tolerance))
        case Outcome.REGRESSED | Outcome.IMPROVED:
            if result.is_platform or any(map(was_slowed, result.runs)):  # on purpose: nothing to decide
                return None
            if result.status is Outcome.IMPROVED:
                return of(kind=_Kind.REFRESH, changes=result.changes)
            return of(kind=_Kind.DECIDE if result.changes else _Kind.LEAVE, changes=result.changes)
        case _:
            return None


def _after_recording(of: Callable[..., _Proposal], now: BaselineQuality) -> _Proposal | None:
    if now.is_surely_noisy:
        return of(kind=_Kind.QUIETEN, why=now.too_noisy)
    if not now.provisional:
        return None
    days = max(MIN_SESSIONS - now.sessions, 1)
    a_day = min(_RUNS_A_DAY, (MAX_RUNS - now.runs) // days)
    return of(kind=_Kind.COMPLETE, why=f"provisional: {now.provisional}", runs=a_day)


# --- text -------------------------------------------------------------------------------------------


def _headline(found: dict[_Proposal, list[Result]]) -> str:
    counts: Counter[_Kind] = Counter()
    for proposal, results in found.items():
        counts[proposal.kind] += len(results)
    platforms = ", ".join(dict.fromkeys(each.platform for each in found if each.platform))
    summary = ", ".join(f"{counts[kind]} {kind.word}" for kind in _Kind if counts[kind])
    return f"# {prose(platforms, characters=80)}: {summary}"


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


def _blocks(proposal: _Proposal, results: Sequence[Result], session: SessionResults) -> list[str]:
    """Return the results, the changes, and the commands."""
    changes = [_changes(proposal.changes)] if proposal.changes else []
    commands = fenced(_commands(proposal, results, session), language="sh", characters=LIMIT_CHARACTERS)
    return [_table(proposal, results), *changes, "\n".join([proposal.kind.advice, "", *commands])]


def _table(proposal: _Proposal, results: Iterable[Result]) -> str:
    rows = []
    for result in results:
        baseline, now = _figure(result.baseline_throughput, result), _figure(result.throughput, result)
        text = f"{result.text}; {proposal.why}" if result.status is Ending.RECORDED else result.text
        rows.append(
            f"| {code(result.benchmark, in_table=True)} | {baseline} | {now} | {prose(text, characters=300)} |"
        )
    return "\n".join(["| benchmark | baseline | now | |", "|---|---|---|---|", *rows])


def _figure(throughput: float | None, result: Result) -> str:
    if throughput is None or result.status is Outcome.STALE_BASELINE:  # the two are not of one kind
        return ""
    return prose(f"{si(throughput)} {result.unit}/s", characters=80)


def _changes(changes: Sequence[Change]) -> str:
    def value(text: str | None) -> str:
        return "absent" if text is None else code(text, characters=120, in_table=True) or "empty"

    rows = [f"| {prose(each.title)} | {value(each.old)} | {value(each.new)} |" for each in changes]
    return "\n".join(["| changed | baseline | now |", "|---|---|---|", *rows])


def _commands(proposal: _Proposal, results: Sequence[Result], session: SessionResults) -> list[str]:
    """Return lines to paste."""
    kept = kept_options(session.command)
    if proposal.kind is _Kind.REMOVE:
        folder = next((word for name, word in with_values(kept) if name == "--accel-baselines"), "")
        return _command(
            *("pytest-accel", "baseline", "edit", results[0].disk_name or proposal.platform),
            *(f"--remove={result.key or result.benchmark}" for result in results),
            *([f"--baselines={folder}"] if folder else []),
            "--reason=it is gone",
        )
    named = naming([result.benchmark for result in results], session.command)
    match proposal.kind:
        case _Kind.LEAVE:
            action = []
        case _Kind.RECORD:
            action = ["--accel-record"]
        case _Kind.COMPLETE if proposal.runs:
            action = [f"--accel-record={proposal.runs}"]
        case _:
            action = ["--accel-update", f"--accel-reason={_reason(proposal, session)}"]
    look = ["pytest-accel doctor"] if proposal.kind in {_Kind.LEAVE, _Kind.QUIETEN} else []
    return [*look, *_command("pytest", *named, "-m", proposal.platform, *kept, *action)]


def _command(*words: str) -> list[str]:
    """Return one line where that is short, else an argument a line."""
    parts: list[str] = []
    for word in map(printable, words):
        begins = not parts or word.startswith("-") or "::" in word  # else it belongs to the word before it
        if begins:
            parts.append(shlex.quote(word))
        else:
            parts[-1] += f" {shlex.quote(word)}"
    line = " ".join(parts)
    return [line] if len(line) <= _LINE_CHARACTERS else " \\\n    ".join(parts).splitlines()


def _reason(proposal: _Proposal, session: SessionResults) -> str:
    """Return the reason for the ledger that the command suggests."""
    revision = f" at revision {session.revision[:12]}" if session.revision else ""
    return clipped(describe(proposal.changes) or proposal.why or f"faster{revision}", _REASON_CHARACTERS)
