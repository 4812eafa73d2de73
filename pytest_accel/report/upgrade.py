"""Reports of an upgrade: terminal screen, Markdown page, JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from pytest_accel.report.markdown import code, prose
from pytest_accel.report.terminal import Cell, Column, changed, in_words, lines_of
from pytest_accel.stats.environment import describe
from pytest_accel.stats.gate import loss
from pytest_accel.stats.paired import (
    JUDGED,
    MAX_BLOCKS,
    RUNS_PER_BLOCK,
    Decision,
    Effect,
    PairedComparison,
    PairedRow,
    blocks_needed,
    pair_differences,
)
from pytest_accel.stats.quantities import counted, inert, percent, printable, seconds, si
from pytest_accel.stats.verdict import Verdict
from pytest_accel.storage.codec import encode, render

KIND = "pytest-accel upgrade"
SCHEMA_VERSION = 2
_MAX_ROWS = 40  # on a screen; upgrade.md has all
_MAX_CHANGES = 12
_TITLES = ("benchmark", "platform", "unit", "old", "new", "change", "verdict")
_QUIET = frozenset({Effect.OK, Effect.IMPROVED})
_GRAVITY = (
    *(Effect.REGRESSED, Effect.LOST, Effect.INCONCLUSIVE, Effect.NOT_JUDGED),
    *(Effect.IMPROVED, Effect.OK),
)
_HEADLINES = {
    Decision.ACCEPT: "nothing is slower than is tolerated",
    Decision.REJECT: "the new environment is worse",
    Decision.REPEAT: "nothing was judged, and that is not green",
    Decision.UNDECIDED: "nothing is known to be worse, and not everything is known",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeContext:
    """What the reader needs beside the verdicts."""

    old: str  # the commands that lead into the environments
    new: str
    folder: str
    blocks: int  # at most
    processes: int
    duration_s: float  # of all of them
    resume: str  # the command that goes on
    status: int


# --- screen -----------------------------------------------------------------------------------------


def screen(found: PairedComparison, context: UpgradeContext) -> list[str]:
    """Return the lines that the command prints."""
    rows = in_order(found.rows)
    lines = [*_table(rows[:_MAX_ROWS]), *_left_out(rows), ""] if rows else []
    lines += [f"old: {context.old}", f"new: {context.new}", *_differences(found)]
    lines += [f"{title}  {text}" for row in rows for title, text in _row_lines(row, context.blocks)]
    lines += [f"note: {note}" for note in found.notes]
    lines += ["", headline(found), f"  next: {_next_step(found, context)}"]
    lines.append(
        f"{context.processes} process{'' if context.processes == 1 else 'es'}, {seconds(context.duration_s)}. "
        f"Everything is in {context.folder}: upgrade.md, upgrade.json, results and logs of each process."
    )
    return [inert(printable(line)) for line in lines]


def headline(found: PairedComparison) -> str:
    """Return the decision with the number of benchmarks of each effect."""
    counts = Counter(row.effect for row in found.rows)
    words = ", ".join(f"{counts[effect]} {effect_word(effect)}" for effect in _GRAVITY if counts[effect])
    tolerances = sorted({row.verdict.tolerance for row in found.rows if row.verdict})
    if tolerances:
        least, most = percent(tolerances[0]), percent(tolerances[-1])
        words += f"; tolerance {least}" if least == most else f"; tolerances {least} to {most}"
    return f"{found.decision.value.upper()}: {_HEADLINES[found.decision]} ({words or 'no benchmark'})."


def effect_word(effect: Effect) -> str:
    """Return the word for an effect; what needs attention in capitals."""
    return effect.value if effect in _QUIET else effect.value.upper()


def in_order(rows: Sequence[PairedRow]) -> list[PairedRow]:
    """Return rows with the gravest effect and the largest loss first."""

    def order(row: PairedRow) -> tuple[int, float]:
        is_loss = row.effect not in _QUIET and row.verdict is not None and row.verdict.slowdown is not None
        return _GRAVITY.index(row.effect), -row.verdict.slowdown.point if is_loss else 0.0  # type: ignore[union-attr]

    return sorted(rows, key=order)


def _table(rows: Sequence[PairedRow]) -> list[str]:
    columns = [Column(title=title, right=title in ("old", "new", "change")) for title in _TITLES]
    return lines_of(columns, [[Cell(text=printable(text)) for text in _cells(row)] for row in rows])


def _cells(row: PairedRow) -> tuple[str, ...]:
    old, new = ("" if (rate := row.throughput(side)) is None else si(rate) for side in ("old", "new"))
    change = changed(row.verdict.slowdown.point) if row.verdict and row.verdict.slowdown else ""
    unit = f"{row.unit}/s" if row.unit else ""
    return row.name, row.platform, unit, old, new, change, effect_word(row.effect)


def _left_out(rows: Sequence[PairedRow]) -> list[str]:
    hidden = Counter(effect_word(row.effect) for row in rows[_MAX_ROWS:])
    return [f"and {count} more that are {word} (upgrade.md)" for word, count in hidden.items()]


def _differences(found: PairedComparison) -> Iterator[str]:
    changes = found.changes
    if found.identity:
        yield f"another machine: {describe(found.identity)}"
    more = f", and {len(changes) - _MAX_CHANGES} more (upgrade.md)" if len(changes) > _MAX_CHANGES else ""
    yield f"differs: {describe(changes[:_MAX_CHANGES]) or 'nothing in the recorded environment'}{more}"


def _row_lines(row: PairedRow, max_blocks: int) -> Iterator[tuple[str, str]]:
    yield effect_word(row.effect), f"{row.name}: {explanation(row, max_blocks)}"
    if row.effect in _QUIET and row.failure:
        yield "FAILED", f"{row.name}: {row.failure}"
    if row.numerics:
        yield "note:", f"{row.name}: {row.numerics}"


def explanation(row: PairedRow, max_blocks: int) -> str:
    """Return by how much, how surely and from how many pairs; or why it was not judged."""
    verdict = row.verdict
    if row.effect not in JUDGED or verdict is None:
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
        remedy = f"--blocks {needed} in a new folder would hold the tolerance"
    else:  # the noise is small enough: the loss is where both answers are half right
        more = min(2 * max_blocks, MAX_BLOCKS)
        remedy = f"the loss is between half the tolerance and the whole; --blocks {more} narrows it"
    return f"noise {percent(noise)} resolves {percent(resolution)} here: {remedy}"


def _next_step(found: PairedComparison, context: UpgradeContext) -> str:
    if any(row.is_unfinished for row in found.rows):
        return context.resume
    match found.decision:
        case Decision.ACCEPT:
            return "switch to the new environment; the baselines hold as they are"
        case Decision.REJECT:
            return f"stay with the old environment, and send {context.folder}/upgrade.md to those who built the new one"
        case Decision.REPEAT:
            return "pytest-accel doctor; then the same in a new folder, on a quiet node"
        case Decision.UNDECIDED:
            return "what the lines above say; or accept, knowing that these benchmarks are not decided"
        case _ as never:
            assert_never(never)


# --- Markdown ---------------------------------------------------------------------------------------


def markdown(found: PairedComparison, context: UpgradeContext) -> str:
    """Return the page that is handed round."""
    rows = in_order(found.rows)
    words = [f"**{title}** {prose(text)}" for row in rows for title, text in _row_lines(row, context.blocks)]
    changes = [prose(str(each)) for each in (*found.identity, *found.changes)]
    parts = [
        f"# Upgrade: {prose(headline(found))}",
        "\n".join(f"- {side}: {code(words)}" for side, words in (("old", context.old), ("new", context.new))),
        *(["\n".join(_markdown_table(rows))] if rows else []),
        *_section("Verdicts", words),
        *_section("Differences between the environments", changes or ["nothing in the recorded environment"]),
        *_section("Notes", [prose(note) for note in found.notes]),
        *_section("Next", [prose(_next_step(found, context), characters=2000)]),
    ]
    return "\n\n".join(parts) + "\n"


def _markdown_table(rows: Sequence[PairedRow]) -> Iterator[str]:
    yield f"| {' | '.join(_TITLES)} |"
    yield "| --- | --- | --- | ---: | ---: | ---: | --- |"
    for row in rows:
        name, *cells = _cells(row)
        yield f"| {code(name, in_table=True)} | {' | '.join(map(prose, cells))} |"


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", "\n".join(f"- {line}" for line in lines)] if lines else []


# --- JSON -------------------------------------------------------------------------------------------


def as_json(found: PairedComparison, context: UpgradeContext) -> str:
    """Return everything, unrounded."""
    content = {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "decision": found.decision.value,
        "exit_status": context.status,
        "old": context.old,
        "new": context.new,
        "folder": context.folder,
        "max_blocks": context.blocks,
        "processes": context.processes,
        "duration_s": context.duration_s,
        "changes": encode(found.changes),
        "identity": encode(found.identity),
        "notes": list(found.notes),
        "benchmarks": [_plain(row, context.blocks) for row in found.rows],
    }
    return render(content) + "\n"


def _plain(row: PairedRow, max_blocks: int) -> dict[str, Any]:
    return {
        "benchmark": row.benchmark,
        "platform": row.platform,
        "unit": row.unit,
        "effect": row.effect.value,
        "fails": row.fails,
        "explanation": explanation(row, max_blocks),
        "numerics": row.numerics,
        "old_throughput": row.throughput("old"),
        "new_throughput": row.throughput("new"),
        "verdict": encode(row.verdict),
        "blocks": row.verdict.runs * 2 // RUNS_PER_BLOCK if row.verdict else 0,
        "old_step_time_s": [run.step_time_s for run in row.old],
        "new_step_time_s": [run.step_time_s for run in row.new],
        "pair_losses": [loss(d) for d in pair_differences(row.old, row.new)],  # also of an unfinished block
    }
