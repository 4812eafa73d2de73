"""Proposal of changes to baselines after a session, as the text of an issue or of a pull request.

Nothing moves by itself: each part ends with the command that moves it, and with what to look at before.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from pytest_accel.report.markdown import code, fenced, prose
from pytest_accel.report.remedies import kept_options, naming, with_values
from pytest_accel.report.verdicts import in_order
from pytest_accel.stats.baseline_quality import MIN_SESSIONS, BaselineQuality, baseline_quality
from pytest_accel.stats.comparison import was_slowed
from pytest_accel.stats.environment import Change, describe
from pytest_accel.stats.quantities import clipped, printable, si
from pytest_accel.stats.results import Ending, Result, SessionResults, Status
from pytest_accel.stats.run import MAX_RUNS, RECORD_RUNS
from pytest_accel.stats.verdict import Outcome

_TOGETHER = 40  # benchmarks in one table and one command: more are several
_CHANGES = 40
_REASON_CHANGES = 4  # in the ledger's line; the table has all
_REASON_CHARACTERS = 200
_NAME_CHARACTERS = 800  # of a name in a command
_LINE_CHARACTERS = 120
_RUNS_A_DAY = 2  # of a recording that goes on: a second run shows what is of the day and what of the process


class _Kind(Enum):
    """Kinds of changes, in the order of the text; the value is the word in the headline."""

    DECIDE = "regressed after a change"
    LEAVE = "regressed, and nothing recorded changed"
    RENEW = "stale"
    REFRESH = "improved"
    RECORD = "without a baseline"
    QUIETEN = "recorded too noisily"
    COMPLETE = "recorded provisionally"
    REMOVE = "vanished"


_TEXTS: dict[_Kind, tuple[str, str]] = {
    _Kind.DECIDE: (
        "Regressed after a change: decide",
        "Undo the change and the baseline stays as it is. Where the change is worth the loss, accept it:",
    ),
    _Kind.LEAVE: (
        "Regressed, and nothing recorded changed: leave the baseline",
        "A baseline that follows a fault hides it. Look at the machine (clocks, power cap, other users), then measure again:",
    ),
    _Kind.RENEW: (
        "Stale: record anew",
        "The stored runs are of something else. A machine that is not as it should be is put right; else record anew:",
    ),
    _Kind.REFRESH: (
        "Improved: refresh",
        "Until the baseline is refreshed, losing this gain will go unnoticed:",
    ),
    _Kind.RECORD: ("Without a baseline: record", "Nothing is judged until there is one:"),
    _Kind.QUIETEN: (
        "Recorded, and too noisy for the tolerance: record anew",
        "The gate cannot hold their tolerance with such runs. Quieten the machine, then record anew:",
    ),
    _Kind.COMPLETE: (
        "Recorded, and provisional: record on more days",
        f"Runs of one session resemble each other. Repeat this on other days, until runs of {MIN_SESSIONS} sessions are stored:",
    ),
    _Kind.REMOVE: ("Vanished: restore or remove", "Restore them, or take them out of the baseline:"),
}


_KINDS: dict[Status, _Kind] = {  # of which no more has to be known
    Outcome.STALE_BASELINE: _Kind.RENEW,
    Outcome.NO_BASELINE: _Kind.RECORD,
    Outcome.VANISHED: _Kind.REMOVE,
}
_RECORDED = frozenset({_Kind.QUIETEN, _Kind.COMPLETE})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Benchmarks that one command moves."""

    kind: _Kind
    platform: str
    changes: tuple[Change, ...]  # of the environment; they may explain it
    why: str  # where something else explains it
    runs: int = 0  # to record on each further day; 0 where nothing more can be appended
    results: tuple[Result, ...]


def render_proposal(session: SessionResults, *, limit_characters: int = 0) -> str:
    """Return the text, a headline first; empty where no baseline should move. A limit of 0 is none."""
    groups = list(_groups(in_order(session.results), updated="--accel-update" in session.command))
    if not groups:
        return ""
    blocks = [_headline(groups), _facts(session)]
    for kind in _Kind:
        of_kind = [group for group in groups if group.kind is kind]
        title, advice = _TEXTS[kind]
        for number, group in enumerate(of_kind):
            head = [f"## {title}", ""] if number == 0 else []
            first, *more = _group_blocks(group, advice, session)
            blocks += ["\n".join([*head, first]), *more]
    return _assembled(blocks, limit_characters)


def _assembled(blocks: Sequence[str], limit_characters: int) -> str:
    """Return as many complete blocks as fit, and a note where some do not."""
    whole = "\n\n".join(blocks) + "\n"
    if not limit_characters or len(whole) <= limit_characters:
        return whole
    note = "**The rest is left out: there is no room for it.** `pytest-accel baseline accept --markdown results.json` prints it all."
    room, kept = limit_characters - len(note) - 3, []
    for block in blocks:
        room -= len(block) + 2
        if room < 0:
            break
        kept.append(block)
    return "\n\n".join([*kept, note]) + "\n"


# --- what belongs together --------------------------------------------------------------------------


def _groups(results: Iterable[Result], *, updated: bool) -> Iterator[_Group]:
    found: dict[tuple[_Kind, str, tuple[Change, ...], str, int], list[Result]] = {}
    for result in results:
        if kind := _kind(result, updated=updated):
            # What changed explains a verdict; it says nothing of a baseline that is stale, missing or gone.
            changes = result.changes if kind in {_Kind.DECIDE, _Kind.REFRESH} else ()
            why, runs = _clause(result.text) if kind is _Kind.RENEW else "", 0
            if kind in _RECORDED:
                now = _standing(result, updated=updated)
                why = now.too_noisy if kind is _Kind.QUIETEN else f"provisional: {now.provisional}"
                runs = _runs_a_day(now) if kind is _Kind.COMPLETE else 0
            found.setdefault((kind, result.platform, changes, why, runs), []).append(result)
    for (kind, platform, changes, why, runs), members in found.items():
        for start in range(0, len(members), _TOGETHER):
            together = tuple(members[start : start + _TOGETHER])
            yield _Group(kind=kind, platform=platform, changes=changes, why=why, runs=runs, results=together)


def _clause(text: str) -> str:
    """Return the first clause of a text: the finding without the remedy."""
    return text.partition(";")[0].removesuffix(" and are never compared")


def _kind(result: Result, *, updated: bool) -> _Kind | None:
    if result.status in _KINDS:
        return _KINDS[result.status]
    if result.status is Ending.RECORDED and result.runs:
        now = _standing(result, updated=updated)
        if now.is_surely_noisy:
            return _Kind.QUIETEN
        return _Kind.COMPLETE if now.provisional else None
    if result.is_platform or any(map(was_slowed, result.runs)):  # slowed on purpose: nothing to decide
        return None
    if result.status is Outcome.REGRESSED:
        return _Kind.DECIDE if result.changes else _Kind.LEAVE
    # ok, inconclusive, broken, skipped: no baseline moves for it
    return _Kind.REFRESH if result.status is Outcome.IMPROVED else None


def _standing(result: Result, *, updated: bool) -> BaselineQuality:
    """Return the quality of the baseline after the recording; an update has replaced the stored runs."""
    return baseline_quality(result.runs if updated else (*result.baseline, *result.runs), result.tolerance)


def _runs_a_day(now: BaselineQuality) -> int:
    """On each of the days that are missing, so that the baseline has room for all of them."""
    days = max(MIN_SESSIONS - now.sessions, 1)
    wanted = max(_RUNS_A_DAY, -(-(RECORD_RUNS - now.runs) // days))
    return min(wanted, (MAX_RUNS - now.runs) // days)


# --- the words --------------------------------------------------------------------------------------


def _headline(groups: Sequence[_Group]) -> str:
    counts: Counter[_Kind] = Counter()
    for group in groups:
        counts[group.kind] += len(group.results)
    platforms = ", ".join(dict.fromkeys(group.platform for group in groups if group.platform))
    summary = ", ".join(f"{counts[kind]} {kind.value}" for kind in _Kind if counts[kind])
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


def _group_blocks(group: _Group, advice: str, session: SessionResults) -> list[str]:
    """Return the blocks of a group: results, changes, commands."""
    blocks = [_table(group)]
    if group.changes:
        blocks.append(_changes(group.changes))
    commands = _commands(group, session)
    blocks.append("\n".join([advice, "", *fenced(commands, language="sh", characters=2 * _NAME_CHARACTERS)]))
    return blocks if commands else [*blocks[:-1], advice]


def _table(group: _Group) -> str:
    rows = []
    for result in group.results:
        baseline, now = _figure(result.baseline_throughput, result), _figure(result.throughput, result)
        text = f"{result.text}; {group.why}" if group.kind in _RECORDED else result.text
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

    rows = [f"| {prose(each.title)} | {value(each.old)} | {value(each.new)} |" for each in changes[:_CHANGES]]
    more = [f"| {len(changes) - _CHANGES} more | | |"] if len(changes) > _CHANGES else []
    return "\n".join(["| changed | baseline | now |", "|---|---|---|", *rows, *more])


# --- the commands -----------------------------------------------------------------------------------


def _commands(group: _Group, session: SessionResults) -> list[str]:
    """Lines to paste. What cannot be pasted, a name of control characters or of pages, is left out of them."""
    kept = kept_options(session.command)
    usable = [result for result in group.results if _can_be_pasted(result.benchmark)]
    if not usable:
        return []
    again = [*naming([result.benchmark for result in usable], session.command), "-m", group.platform, *kept]
    update = ("--accel-update", f"--accel-reason={_reason(group, session)}")
    match group.kind:
        case _Kind.REMOVE:
            return _removal(group, usable, kept)
        case _Kind.LEAVE:
            doing: tuple[str, ...] = ()
        case _Kind.RECORD:
            doing = ("--accel-record",)
        case _Kind.COMPLETE if group.runs:
            doing = (f"--accel-record={group.runs}",)
        case _:
            doing = update
    look = _command("pytest-accel", "doctor") if group.kind in {_Kind.LEAVE, _Kind.QUIETEN} else []
    return [*look, *_command("pytest", *again, *doing)]


def _can_be_pasted(name: str) -> bool:
    return name.isprintable() and len(name) <= _NAME_CHARACTERS


def _command(*words: str) -> list[str]:
    """On one line where that is short, else an argument a line."""
    parts: list[str] = []
    for word in map(printable, words):
        quoted = shlex.quote(word)
        begins = not parts or word.startswith("-") or "::" in word  # else it belongs to the word before it
        parts[-1:] = [*parts[-1:], quoted] if begins else [f"{parts[-1]} {quoted}"]
    line = " ".join(parts)
    if len(line) <= _LINE_CHARACTERS:
        return [line]
    first, *others = parts
    return [f"{first} \\", *(f"    {part} \\" for part in others[:-1]), f"    {others[-1]}"]


def _removal(group: _Group, usable: Sequence[Result], kept: Sequence[str]) -> list[str]:
    folder = next((word for name, word in with_values(kept) if name == "--accel-baselines"), "")
    return _command(
        *("pytest-accel", "baseline", "edit", group.results[0].disk_name or group.platform),
        *(f"--remove={result.key or result.benchmark}" for result in usable),
        *([f"--baselines={folder}"] if folder else []),
        "--reason=it is gone",
    )


def _reason(group: _Group, session: SessionResults) -> str:
    """Return the reason for the ledger that the command suggests."""
    if group.changes:
        more = len(group.changes) - _REASON_CHANGES
        said = describe(group.changes[:_REASON_CHANGES]) + (f" and {more} more" if more > 0 else "")
    elif group.why:
        said = group.why
    else:
        said = "faster" + (f" at revision {session.revision[:12]}" if session.revision else "")
    return clipped(said, _REASON_CHARACTERS)
