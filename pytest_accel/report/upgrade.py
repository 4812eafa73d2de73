"""Reports of an upgrade: terminal screen, Markdown page, JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_accel.report.comparison import TextTable
from pytest_accel.report.markdown import prose
from pytest_accel.report.terminal import changed, in_words
from pytest_accel.stats.environment import describe
from pytest_accel.stats.gate import Verdict, loss
from pytest_accel.stats.paired import (
    MAX_BLOCKS,
    Decision,
    Effect,
    PairedBenchmark,
    PairedComparison,
    blocks_needed,
    pair_differences,
)
from pytest_accel.stats.quantities import counted, inert, percent, printable, seconds, si
from pytest_accel.storage.codec import encode, render

KIND = "pytest-accel upgrade"
SCHEMA_VERSION = 3
_HEADINGS = ("benchmark", "platform", "unit", "old", "new", "change", "verdict")
_QUIET = frozenset({Effect.OK, Effect.IMPROVED})
_GRAVITY = tuple(Effect)
# By decision: what it means, and what to do next.
_DECISIONS = {
    Decision.ACCEPT: (
        "nothing is slower than is tolerated",
        "switch to the new environment; the baselines hold as they are",
    ),
    Decision.REJECT: (
        "the new environment is worse",
        "stay with the old environment, and send upgrade.md to those who built the new one",
    ),
    Decision.REPEAT: (
        "nothing was judged, and that is not green",
        "pytest-accel doctor; then the same again on a quiet node",
    ),
    Decision.UNDECIDED: (
        "nothing is known to be worse, and not everything is known",
        "what the lines above say; or accept, knowing that these benchmarks are not decided",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeContext:
    """What the reader needs beside the verdicts."""

    old: str  # the commands that lead into the environments
    new: str
    arguments: tuple[str, ...]  # pytest's
    folder: str
    max_blocks: int
    processes: int
    duration_s: float  # of all of them
    exit_status: int


def screen(found: PairedComparison, context: UpgradeContext) -> list[str]:
    """Return the lines that the command prints."""
    table = _table(in_order(found.rows)).lines()
    count = f"{context.processes} process{'' if context.processes == 1 else 'es'}"
    end = (
        f"{count}, {seconds(context.duration_s)}. Everything is in {context.folder}: upgrade.md, upgrade.json, "
        "results and logs of each process."
    )
    lines = [*([*table, ""] if found.rows else []), *_below(found, context), "", headline(found), end]
    return [inert(printable(line)) for line in lines]


def markdown(found: PairedComparison, context: UpgradeContext) -> str:
    """Return the page that is handed round."""
    table = [*_table(in_order(found.rows)).markdown(), ""] if found.rows else []
    lines = [f"- {prose(line, characters=2000)}" for line in _below(found, context)]
    return "\n".join([f"# Upgrade: {prose(headline(found))}", "", *table, *lines]) + "\n"


def headline(found: PairedComparison) -> str:
    """Return the decision with the number of benchmarks of each effect."""
    counts = Counter(row.effect for row in found.rows)
    words = ", ".join(f"{counts[effect]} {effect_word(effect)}" for effect in _GRAVITY if counts[effect])
    tolerances = sorted({row.verdict.tolerance for row in found.rows if row.verdict})
    if tolerances:
        least, most = percent(tolerances[0]), percent(tolerances[-1])
        words += f"; tolerance {least}" if least == most else f"; tolerances {least} to {most}"
    meaning, _ = _DECISIONS[found.decision]
    return f"{found.decision.value.upper()}: {meaning} ({words or 'no benchmark'})."


def effect_word(effect: Effect) -> str:
    """Return the word for an effect; what needs attention in capitals."""
    return effect.value if effect in _QUIET else effect.value.upper()


def in_order(rows: Sequence[PairedBenchmark]) -> list[PairedBenchmark]:
    """Return rows with the gravest effect and the largest loss first."""

    def order(row: PairedBenchmark) -> tuple[int, float]:
        lost = row.verdict.slowdown.point if row.verdict and row.verdict.slowdown else 0.0
        return _GRAVITY.index(row.effect), 0.0 if row.effect in _QUIET else -lost

    return sorted(rows, key=order)


def _table(rows: Sequence[PairedBenchmark]) -> TextTable:
    left = tuple(heading not in ("old", "new", "change") for heading in _HEADINGS)
    return TextTable(headings=_HEADINGS, left=left, rows=tuple(map(_cells, rows)))


def _cells(row: PairedBenchmark) -> tuple[str, ...]:
    old, new = ("" if (rate := row.throughput(side)) is None else si(rate) for side in ("old", "new"))
    change = changed(row.verdict.slowdown.point) if row.verdict and row.verdict.slowdown else ""
    newest = row.newest
    unit = f"{newest.unit}/s" if newest and newest.unit else ""
    return row.name, newest.platform if newest else "", unit, old, new, change, effect_word(row.effect)


def _below(found: PairedComparison, context: UpgradeContext) -> Iterator[str]:
    """Yield the lines below the table."""
    yield f"old: {context.old}"
    yield f"new: {context.new}"
    yield f"differs: {describe(found.changes) or 'nothing in the recorded environment'}"
    for row in in_order(found.rows):
        yield f"{effect_word(row.effect)}  {row.name}: {explanation(row, context.max_blocks)}"
        if row.effect in _QUIET and row.failure:
            yield f"FAILED  {row.name}: {row.failure}"
        if row.numerics:
            yield f"note: {row.name}: {row.numerics}"
    yield from (f"note: {note}" for note in found.notes)
    _, next_step = _DECISIONS[found.decision]
    yield f"next: {next_step}"


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


def as_json(found: PairedComparison, context: UpgradeContext) -> str:
    """Return everything, unrounded."""
    content = {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        **encode(context),
        "decision": found.decision.value,
        "changes": encode(found.changes),
        "notes": list(found.notes),
        "benchmarks": [_plain(row, context.max_blocks) for row in found.rows],
    }
    return render(content) + "\n"


def _plain(row: PairedBenchmark, max_blocks: int) -> dict[str, Any]:
    newest = row.newest
    old, new = ([each.runs[-1] for each in side] for side in (row.old, row.new))
    return {
        "benchmark": row.benchmark,
        "platform": newest.platform if newest else "",
        "unit": newest.unit if newest else "",
        "effect": row.effect.value,
        "fails": row.fails,
        "explanation": explanation(row, max_blocks),
        "numerics": row.numerics,
        "old_throughput": row.throughput("old"),
        "new_throughput": row.throughput("new"),
        "verdict": encode(row.verdict),
        "old_step_time_s": [run.step_time_s for run in old],
        "new_step_time_s": [run.step_time_s for run in new],
        "pair_losses": [loss(d) for d in pair_differences(old, new)],  # also of an unfinished block
    }
