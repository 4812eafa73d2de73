"""A duet as people and programs read it: a table, a line for each verdict, what differs, what to do; and one JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import assert_never

from pytest_accel.report.terminal import in_words
from pytest_accel.report.upgrade import (
    effect_word,
    headline,
    in_order,
    plain_verdict,
    table_lines,
    what_differs,
)
from pytest_accel.report.verdicts import status_word
from pytest_accel.stats.duet import RUNS_PER_GROUP, groups_for, pairs
from pytest_accel.stats.gate import loss, summaries
from pytest_accel.stats.quantities import counted, inert, percent, printable, seconds
from pytest_accel.stats.run import Run
from pytest_accel.stats.upgrade import JUDGED, Decision, Effect, Row, Upgrade
from pytest_accel.stats.verdict import Verdict
from pytest_accel.storage.schema import rendered

KIND = "pytest-accel duet"
SCHEMA_VERSION = 1
MOST_GROUPS = 20  # that anybody is advised to take: 80 processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the reader has to know beside the verdicts."""

    old: str  # the commands that lead into the environments
    new: str
    folder: str
    most_groups: int
    processes: int
    lasted_s: float  # of all of them
    again: str  # the command that goes on
    status: int


# --- the screen -------------------------------------------------------------------------------------


def screen(duet: Upgrade, told: Told) -> list[str]:
    """What a person reads."""
    rows = in_order(duet.rows)
    lines = [*table_lines(rows), ""] if rows else []
    # Two settings of one environment may differ in nothing but these words.
    lines += [f"old: {told.old}", f"new: {told.new}", *what_differs(duet, "duet.json")]
    lines += [f"{title}  {text}" for row in rows for title, text in _words(row, told.most_groups)]
    lines += [f"note: {remark}" for remark in _remarks(duet)]
    lines += ["", headline(duet), f"  {_next(duet, told)}"]
    lines.append(
        f"{told.processes} process{'' if told.processes == 1 else 'es'}, {seconds(told.lasted_s)}. "
        f"All of it: {told.folder} (duet.json, results and logs of each process)."
    )
    return [inert(printable(line)) for line in lines]


def _words(row: Row, most_groups: int) -> Iterator[tuple[str, str]]:
    yield effect_word(row.effect), f"{row.name}: {explanation(row, most_groups)}"
    if row.effect in {Effect.OK, Effect.IMPROVED} and row.fails and row.new:
        yield status_word(row.new), f"{row.name}: {row.new.text}"
    if row.numerics:
        yield "NUMERICS", f"{row.name}: {row.numerics}"


def explanation(row: Row, most_groups: int) -> str:
    """By how much, how surely and from how many pairs; or why nobody can say."""
    verdict = row.new.verdict if row.new else None
    if row.effect not in JUDGED or verdict is None:
        return row.why
    return explain(verdict, most_groups)


def explain(verdict: Verdict, most_groups: int) -> str:
    """The gate's line, of pairs."""
    pairs = counted(verdict.looks, "pair")
    return in_words(verdict, observed=pairs, way_out=lambda: _way_out(verdict, most_groups))


def _way_out(verdict: Verdict, most_groups: int) -> str:
    """What would decide an open question."""
    if verdict.wants_another_run:
        return "it ended before this was decided"
    noise, resolution = verdict.noise or 0.0, verdict.resolution or 0.0
    needed = groups_for(noise, verdict.tolerance, MOST_GROUPS)
    if needed is None:
        remedy = (
            "quieten the machine (pytest-accel doctor), measure longer (--accel-budget), or tolerate "
            f"{percent(resolution, 0)}"
        )
    elif needed > most_groups:
        remedy = f"--groups {needed} in a new folder would hold the tolerance"
    else:  # the noise is small enough, and the truth lies where both answers are half right
        more = min(2 * most_groups, MOST_GROUPS)
        remedy = f"the loss lies between half the tolerance and the whole; --groups {more} narrows it"
    return f"noise {percent(noise)} resolves {percent(resolution)} here: {remedy}"


def _remarks(duet: Upgrade) -> Iterator[str]:
    yield from duet.remarks
    if duet.skipped:
        yield f"{counted(duet.skipped, 'benchmark')} of other machines skipped in both"


def _next(duet: Upgrade, told: Told) -> str:
    if any(_is_unfinished(row) for row in duet.rows):
        return f"go on       {told.again}"
    match duet.decision:
        case Decision.ACCEPT:
            return "accept      switch to the new one; the site's baselines hold as they are"
        case Decision.REJECT:
            return "reject      stay with the old one, and show these lines to who made the new one"
        case Decision.REPEAT:
            return "repeat      pytest-accel doctor; then the same in a new folder, on a quiet node"
        case Decision.LOOK:
            return "look again  what the lines above say; or accept, knowing that for these nobody can say"
        case _ as never:
            assert_never(never)


def _is_unfinished(row: Row) -> bool:
    verdict = row.new.verdict if row.new else None
    return row.effect is Effect.INCONCLUSIVE and verdict is not None and verdict.wants_another_run


# --- JSON -------------------------------------------------------------------------------------------


def as_json(duet: Upgrade, told: Told) -> str:
    """Everything, unrounded."""
    content = {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "decision": duet.decision.value,
        "exit_status": told.status,
        "old": told.old,
        "new": told.new,
        "folder": told.folder,
        "most_groups": told.most_groups,
        "processes": told.processes,
        "duration_s": told.lasted_s,
        "skipped": duet.skipped,
        "changes": [asdict(change) for change in duet.changes],
        "identity": [asdict(change) for change in duet.identity],
        "remarks": list(_remarks(duet)),
        "benchmarks": [_plain(row, told.most_groups) for row in duet.rows],
    }
    return rendered(content, "") + "\n"


def _plain(row: Row, most_groups: int) -> dict[str, object]:
    verdict = row.new.verdict if row.new else None
    old, new = (_runs(each.runs if each else ()) for each in (row.old, row.new))
    return {
        "benchmark": row.benchmark,
        "platform": row.platform,
        "unit": row.unit,
        "effect": row.effect.value,
        "fails": row.fails,
        "explanation": explanation(row, most_groups),
        "numerics": row.numerics,
        "old_throughput": row.old_throughput,
        "new_throughput": row.new_throughput,
        "verdict": plain_verdict(verdict) if verdict else None,
        "groups": verdict.looks * 2 // RUNS_PER_GROUP if verdict else 0,
        "old_step_s": old,
        "new_step_s": new,
        "pair_losses": _pair_losses(row),
    }


def _runs(runs: Sequence[Run]) -> list[float]:
    return [run.step_time_s for run in runs]


def _pair_losses(row: Row) -> list[float]:
    """Of each pair, also of a group that was not finished."""
    old, new = (summaries(each.runs if each else ()) for each in (row.old, row.new))
    whole = min(len(old), len(new))
    return [loss(d) for d in pairs(old[:whole], new[:whole])]
