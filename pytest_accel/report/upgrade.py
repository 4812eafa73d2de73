"""An upgrade as results of a session: the runs of the new environment, judged in pairs with those of the old."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_accel.report.comparison import TextTable
from pytest_accel.report.terminal import change, fitted, in_words, line_text
from pytest_accel.report.verdicts import in_order, status_word
from pytest_accel.stats.causes import Cause, cause_text, lost
from pytest_accel.stats.environment import Change, Environment, describe, diff, diff_identity
from pytest_accel.stats.gate import LOSSES, Outcome, Verdict
from pytest_accel.stats.paired import (
    MAX_BLOCKS,
    IsolatedComponent,
    PairedBenchmark,
    Sessions,
    blocks_needed,
    follow,
    notes,
)
from pytest_accel.stats.quantities import counted, inert, percent, printable, si
from pytest_accel.stats.results import Ending, ReportLine, Result, SessionResults, status_of

JUDGED = LOSSES | {Outcome.INCONCLUSIVE, Outcome.IMPROVED, Outcome.OK}
_FAILS = frozenset({*LOSSES, Outcome.INVALID, Ending.FAILED})


def upgrade_results(
    sessions: Sessions,
    max_blocks: int,
    *,
    strict: bool = False,
    isolated: Sequence[IsolatedComponent] = (),
) -> SessionResults:
    """Return the results of all benchmarks, with the runs of the old environment as their baselines.

    `strict`: an inconclusive benchmark fails.
    """
    environments = {key: each for session in sessions.values() for key, each in session.environments.items()}
    rows = follow(sessions, max_blocks).values()
    return replace(
        next(iter(sessions.values())),
        duration_s=sum(each.duration_s for each in sessions.values()),
        command=(),
        environments=environments,
        results=tuple(
            _with_causes(_result(row, environments, max_blocks, strict=strict), isolated) for row in rows
        ),
        findings=(),
        remarks=tuple(notes(sessions)),
    )


def _result(
    row: PairedBenchmark, environments: Mapping[str, Environment], max_blocks: int, *, strict: bool
) -> Result:
    is_judged = row.verdict is not None and row.status in JUDGED
    status = status_of(row.verdict) if row.verdict and is_judged else row.status
    lines = [ReportLine(text=explanation(row, max_blocks), status=status)]
    if is_judged and row.failure:
        lines.append(ReportLine(text=row.failure, status=Ending.FAILED))
    if row.numerics:
        lines.append(ReportLine(text=row.numerics))
    known = [*row.new[-1:], *row.old[-1:], *filter(None, [row.ended_by])]
    undecided = status in (Outcome.INCONCLUSIVE, Ending.NOT_GATED)
    return replace(
        known[0] if known else Result(benchmark=row.benchmark, status=status),
        status=status,
        failed=row.status in _FAILS or bool(row.failure) or (strict and undecided),
        lines=tuple(lines),
        traceback=row.ended_by.traceback if row.ended_by else (),
        runs=tuple(each.runs[-1] for each in row.new),
        baseline=tuple(each.runs[-1] for each in row.old),
        verdicts=(row.verdict,) if row.verdict and is_judged else (),
        changes=_changes(row, environments),
    )


def _changes(row: PairedBenchmark, environments: Mapping[str, Environment]) -> tuple[Change, ...]:
    old, new = (environments.get(side[-1].environment) if side else None for side in (row.old, row.new))
    return (*diff_identity(old, new), *diff(old, new)) if old and new else ()


def _with_causes(result: Result, isolated: Sequence[IsolatedComponent]) -> Result:
    """Return a regressed result with a line for each component that was swapped, and those that explain it as causes."""
    name = result.benchmark
    shown = [each for each in isolated if name in each.lost]
    if not shown:
        return result
    causes = tuple(
        Cause(
            kind="package",
            text=f"{describe(each.changes)} alone"
            + (", shown one way only" if len(each.verdicts(name)) == 1 else ""),
            explained=min(-math.log1p(-found.point), lost(result.verdict)),
        )
        for each in shown
        if each.is_convicted(name) and (found := each.explained(name))
    )
    lines = [ReportLine(text=_swap_line(each, name)) for each in shown]
    if not causes:
        lines.append(ReportLine(text="no package was found that alone explains more than half of the loss"))
    return replace(result, lines=(*result.lines, *lines), causes=causes)


def _swap_line(component: IsolatedComponent, name: str) -> str:
    """Return how much of a loss a component explains alone, and what each direction showed."""
    ways = []
    for swap, what, effect in (
        (component.into_old, "OLD with NEW's", "loses"),
        (component.out_of_new, "NEW with OLD's", "recovers"),
    ):
        verdict = swap.verdict(name)
        shown = verdict.slowdown if verdict else None
        ways.append(
            f"{what} {effect} {percent(shown.point)}" if shown else f"{what} not possible: {swap.impossible}"
        )
    found = component.explained(name)
    if found is None:
        return f"{describe(component.changes)}: {'; '.join(ways)}"
    share = f"{percent(found.point)[:-2]} of {percent(component.lost[name])}"
    interval = f"{percent(found.low)[:-2]} to {percent(found.high)}"
    return f"{describe(component.changes)} alone explains {share} ({interval}): {'; '.join(ways)}"


def explanation(row: PairedBenchmark, max_blocks: int) -> str:
    """Return by how much, how surely and from how many pairs; or why it was not judged."""
    verdict = row.verdict
    if row.why or verdict is None:
        return row.why
    pairs = counted(verdict.runs, "pair")
    return in_words(verdict, observed=pairs, way_out=lambda: _remedy(verdict, max_blocks))


def _remedy(verdict: Verdict, max_blocks: int) -> str:
    """Return what would decide an open question."""
    if verdict.wants_another_run:
        return "it ended before this was decided"
    noise, resolution = verdict.noise or 0.0, verdict.resolution or 0.0
    needed = blocks_needed(noise, verdict.tolerance)
    if needed is None:
        remedy = (
            "quieten the machine (pytest-accel doctor), measure longer (--accel-budget), or tolerate "
            f"{percent(resolution, 0)}"
        )
    elif needed > max_blocks:
        remedy = f"--blocks {needed} would hold the tolerance"
    else:  # the noise is small enough: the loss is where both answers are half right
        more = min(2 * max_blocks, MAX_BLOCKS)
        remedy = f"the loss is between half the tolerance and the whole; --blocks {more} narrows it"
    return f"noise {percent(noise)} resolves {percent(resolution)} here: {remedy}"


def screen(session: SessionResults) -> list[str]:
    """Return the table, what differs between the environments, and a line for each verdict."""
    shown = [each for each in in_order(session.results) if each.status is not Ending.SKIPPED]
    changes = dict.fromkeys(each for result in shown for each in result.changes)
    table = TextTable(
        headings=("benchmark", "verdict", "old>", "new>", "unit", "platform"),
        rows=tuple(_row(result) for result in shown),
    )
    lines = [
        *session.remarks,
        f"differs: {describe(tuple(changes)) or 'nothing in the recorded environment'}",
        *(line_text(result.name, line) for result in shown for line in result.lines),
        *(
            f"cause: {result.name}: {cause_text(cause, lost(result.verdict))}"
            for result in shown
            for cause in result.causes
        ),
    ]
    return [inert(line) for line in [*(table.lines() if shown else []), "", *fitted(map(printable, lines))]]


def _row(result: Result) -> tuple[str, ...]:
    old, new = ("" if each is None else si(each) for each in (result.baseline_throughput, result.throughput))
    unit = f"{result.unit}/s" if result.unit else ""
    verdict = f"{status_word(result)} {change(result)}".rstrip()
    return result.name, verdict, old, new, unit, result.platform
