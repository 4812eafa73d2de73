"""Comparisons as text: sets of figures side by side, kernels of two sets of runs, an old and a new environment."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from pytest_accel.report import terminal
from pytest_accel.report.markdown import markdown_table, prose
from pytest_accel.report.verdicts import in_order, status_word, word
from pytest_accel.stats import paired
from pytest_accel.stats.causes import Cause, lost
from pytest_accel.stats.comparison import was_slowed
from pytest_accel.stats.environment import Environment, describe, diff, diff_identity
from pytest_accel.stats.gate import LOSSES, THROUGHPUT, Outcome, Verdict
from pytest_accel.stats.kernels import KernelChange, KernelDifference
from pytest_accel.stats.metric_gates import shown_name
from pytest_accel.stats.paired import IsolatedComponent, PairedBenchmark, Sessions
from pytest_accel.stats.quantities import counted, percent, printable, seconds, si
from pytest_accel.stats.results import Ending, ReportLine, Result, SessionResults, status_of
from pytest_accel.stats.run import short_name
from pytest_accel.storage.codec import encode
from pytest_accel.storage.codec import render as render_json
from pytest_accel.storage.comparison import Cell, Comparison, Judged, Row

SCHEMA_VERSION = 3
UNLIKE = "*"
# Title, headings (one that ends in `>` is of figures) and rows
Table: TypeAlias = tuple[str, tuple[str, ...], list[tuple[str, ...]]]


def render(comparison: Comparison, form: str) -> str:
    return FORMATS[form](comparison)


# --- tables ----------------------------------------------------------------------------------


def tables(comparison: Comparison) -> Iterator[Table]:
    """Yield a table for each metric; without empty columns."""
    grouped: dict[str, list[Row]] = {}
    for row in comparison.rows:
        grouped.setdefault(row.metric, []).append(row)
    for title, rows in grouped.items():
        headings, texts = zip(*_columns(rows, comparison), strict=True)
        yield title, headings, list(zip(*texts, strict=True))


def _columns(rows: Sequence[Row], comparison: Comparison) -> Iterator[tuple[str, list[str]]]:
    yield "benchmark", [row.name for row in rows]
    if rows[0].metric == THROUGHPUT:
        labels = dict.fromkeys(each.side.label for each in comparison.judged)
        for label in labels:
            words = {each.key: _short_verdict(each) for each in comparison.judged if each.side.label == label}
            heading = "verdict" if len(labels) == 1 else f"verdict {label}"
            yield heading, [words.get(row.key, "") for row in rows]
    for index, side in enumerate(comparison.sides):
        cells = [row.cells[index] for row in rows]
        if not any(cell.value for cell in cells):
            continue
        yield f"{side.label}>", [_figure(cell) for cell in cells]
        if any(cell.ratio is not None for cell in cells):
            yield "x>", ["" if cell.ratio is None else f"{cell.ratio:.2f}" for cell in cells]
    yield "unit", [row.unit for row in rows]


def _figure(cell: Cell) -> str:
    if cell.value is None:
        return ""
    value = cell.value.value
    return (f"{value:.1f}" if cell.value.unit == "%" else si(value)) + (UNLIKE if cell.differs else "")


def _short_verdict(each: Judged) -> str:
    found = each.judgement
    if found.outcome is None:
        return found.status.replace("-", " ")
    deciding = next(verdict for verdict in found.verdicts if status_of(verdict) is found.outcome)
    change = terminal.changed(deciding.slowdown.point, deciding.of) if deciding.slowdown else ""
    of = "" if deciding.of == THROUGHPUT else f"{shown_name(deciding.of)} "
    return f"{word(found.outcome)} {of}{change}".rstrip()


# --- notes below -----------------------------------------------------------------------------


def notes(comparison: Comparison) -> list[str]:
    """Return what the marks mean, and what differs; then the verdicts in words."""
    unlike = dict.fromkeys(
        f"{UNLIKE} {row.name}, {side.label}: {cell.differs}"
        for row in comparison.rows
        for cell, side in zip(row.cells, comparison.sides, strict=True)
        if cell.differs
    )
    return [printable(line) for line in (*_sets(comparison), *unlike, *_verdicts(comparison))]


def _sets(comparison: Comparison) -> Iterator[str]:
    """Yield the source of each column, and what the ratios are to."""
    for side in comparison.sides:
        platform = "" if side.platform in side.label else f" ({side.platform})"
        yield f"{side.label}{platform}: {side.about}"
    for side in comparison.sides:
        slowed = sum(was_slowed(run) for each in side.results.values() for run in each.runs)
        if slowed:
            text = f"{counted(slowed, 'run')} delayed on purpose by --accel-slowdown"
            yield terminal.note(side.label, text)
    if any(cell.ratio is not None for row in comparison.rows for cell in row.cells):
        held = dict.fromkeys(comparison.sides[at].label for at in comparison.held_to)
        yield f"x is against {', '.join(held)}; above 1 is better."


def _verdicts(comparison: Comparison) -> Iterator[str]:
    """Yield every verdict that is not ok, with what changed; then what could not be judged, and why."""
    for each in comparison.judged:
        found = each.judgement
        for verdict in found.verdicts:
            if status_of(verdict) is not Outcome.OK:
                label = f"{short_name(each.key)} ({each.side.label})"
                yield terminal.line_text(label, terminal.line_of(verdict))
        if found.outcome in LOSSES:
            changes = f"changed since {each.baseline.label}: {describe(found.changes)}"
            yield f"    {changes if found.changes else 'nothing in the recorded environment changed'}"
    reasons: dict[tuple[str, str], list[str]] = {}
    several = len({each.side.label for each in comparison.judged}) > 1
    for each in (each for each in comparison.judged if each.judgement.why_not):
        where = f" ({each.side.label})" if several else ""
        reasons.setdefault((where, each.judgement.why_not), []).append(short_name(each.key))
    for (where, why), names in reasons.items():
        few = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        yield terminal.note(f"{few}{where}", f"not judged: {why}")
    judged = [each.judgement for each in comparison.judged if each.judgement.outcome is not None]
    if judged:
        tolerances = ", ".join(dict.fromkeys(percent(each.verdicts[0].tolerance) for each in judged))
        yield f"Judged {counted(len(judged), 'benchmark')} by the gate, tolerance {tolerances}."


# --- formats ---------------------------------------------------------------------------------


def _terminal(comparison: Comparison) -> str:
    lines: list[str] = []
    for title, headings, rows in tables(comparison):
        lines += [printable(title), *terminal.text_table(headings, rows), ""]
    return "\n".join([*lines, *terminal.fitted(notes(comparison))]) + "\n"


def _markdown(comparison: Comparison) -> str:
    lines: list[str] = []
    for title, headings, rows in tables(comparison):
        shown = markdown_table(map(prose, headings), (map(prose, row) for row in rows))
        lines += [f"### {prose(title)}", "", *shown, ""]
    return "\n".join([*lines, *(f"- {prose(line)}" for line in notes(comparison))]) + "\n"


def _json(comparison: Comparison) -> str:
    """Return everything, unrounded; the cells of a row are in the order of the sets."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "sets": [
            {**encode(replace(side, results={}, environments={})), "ratios_to": comparison.sides[at].label}
            for side, at in zip(comparison.sides, comparison.held_to, strict=True)
        ],
        "rows": encode(comparison.rows),
        "judged": [_judged(each) for each in comparison.judged],
    }
    return render_json(content) + "\n"


def _judged(each: Judged) -> dict[str, Any]:
    found, sides = each.judgement, {"set": each.side.label, "baseline": each.baseline.label}
    outcome = found.outcome.value if found.outcome else found.status
    return {"key": each.key, **sides, **encode(found), "outcome": outcome}


FORMATS: dict[str, Callable[[Comparison], str]] = {"table": _terminal, "markdown": _markdown, "json": _json}


# --- kernels ---------------------------------------------------------------------------------

# As `text_table` takes them: the most important first, `>` ends those of figures.
KERNEL_HEADINGS = ("a step", "change>", "of the loss>", "baseline>", "now>", "calls", "kernel")
_SMALL = 0.01  # of the loss: such changes share a bar
_NONE_S = 1e-9
_BARS = 8  # of operations in a waterfall


def kernel_rows(found: KernelDifference) -> list[tuple[str, ...]]:
    """Return the changes of operations, of idle time, what is unexplained and the measured step time; they sum up."""
    measured = KernelChange(operation="measured", before_s=found.before_s, after_s=found.after_s)
    rows = [_kernel_row(found, each) for each in (*found.rows, found.idle)]
    rest_s = found.unexplained_s
    rows.append(("unexplained", signed(rest_s), _share_of_loss(found, rest_s), *[""] * 4))
    return [*rows, _kernel_row(found, measured)]


def _kernel_row(found: KernelDifference, each: KernelChange) -> tuple[str, ...]:
    times = (seconds(each.before_s), seconds(each.after_s))
    share = _share_of_loss(found, each.change_s)
    return each.operation, signed(each.change_s), share, *times, each.calls_text, each.kernel


def _share_of_loss(found: KernelDifference, change_s: float) -> str:
    return percent(change_s / found.loss_s, 0) if found.loss_s else ""


def signed(value_s: float) -> str:
    """Return a change with its sign; less than a nanosecond is none."""
    return f"{'-' if value_s < 0 else '+'}{seconds(abs(value_s))}" if abs(value_s) >= _NONE_S else seconds(0)


def waterfall(found: KernelDifference) -> list[tuple[str, float]]:
    """Return names and milliseconds: the baseline's step time, changes with small ones together, that of this session."""
    bars = [(each.operation, each.change_s) for each in (*found.rows[:_BARS], found.idle)]
    bars.append(("unexplained", found.unexplained_s))
    large = [(name, change_s) for name, change_s in bars if abs(change_s) >= _SMALL * abs(found.loss_s)]
    rest_s = found.loss_s - math.fsum(change_s for _, change_s in large)
    rest = [("other changes", rest_s)] if abs(rest_s) >= _NONE_S else []
    whole = [("baseline", found.before_s), *large, *rest, ("now", found.after_s)]
    return [(name, 1e3 * value_s) for name, value_s in whole]


# --- upgrades --------------------------------------------------------------------------------

JUDGED = LOSSES | {Outcome.INCONCLUSIVE, Outcome.IMPROVED, Outcome.OK}
_FAILS = frozenset({*LOSSES, Outcome.INVALID, Ending.FAILED})


def upgrade_results(
    sessions: Sessions, max_blocks: int, *, strict: bool = False, isolated: Sequence[IsolatedComponent] = ()
) -> SessionResults:
    """Return the results of all benchmarks, with the runs of the old environment as their baselines.

    `strict`: an inconclusive benchmark fails.
    """
    environments = {key: each for session in sessions.values() for key, each in session.environments.items()}
    rows = paired.follow(sessions, max_blocks).values()
    return replace(
        next(iter(sessions.values())),
        duration_s=sum(each.duration_s for each in sessions.values()),
        command=(),
        environments=environments,
        results=tuple(
            _with_causes(_result(row, environments, max_blocks, strict=strict), isolated) for row in rows
        ),
        findings=(),
        remarks=(),
    )


def _result(
    row: PairedBenchmark, environments: Mapping[str, Environment], max_blocks: int, *, strict: bool
) -> Result:
    verdict, status = row.deciding, row.shown_status
    lines = [ReportLine(text=explanation(row, max_blocks), status=status)]
    if verdict and row.failure:
        lines.append(ReportLine(text=row.failure, status=Ending.FAILED))
    if row.numerics:
        lines.append(ReportLine(text=row.numerics))
    known = [*row.new[-1:], *row.old[-1:], *filter(None, [row.ended_by])]
    old, new = (environments.get(side[-1].environment) if side else None for side in (row.old, row.new))
    undecided = status in (Outcome.INCONCLUSIVE, Ending.NOT_GATED)
    return replace(
        known[0] if known else Result(benchmark=row.benchmark, status=status),
        status=status,
        failed=row.status in _FAILS or bool(row.failure) or (strict and undecided),
        lines=tuple(lines),
        traceback=row.ended_by.traceback if row.ended_by else (),
        runs=tuple(each.runs[-1] for each in row.new),
        baseline=tuple(each.runs[-1] for each in row.old),
        verdicts=(verdict,) if verdict else (),
        changes=(*diff_identity(old, new), *diff(old, new)) if old and new else (),
    )


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
        lines.append(ReportLine(text="no package alone surely explains more than half of the loss"))
    changes = tuple(dict.fromkeys((*result.changes, *(change for each in shown for change in each.changes))))
    return replace(result, lines=(*result.lines, *lines), causes=causes, changes=changes)


def _swap_line(component: IsolatedComponent, name: str) -> str:
    """Return how much of a loss a component explains alone, and what each direction showed."""
    ways = []
    for swap, what, effect in (
        (component.into_old, "OLD with NEW's", "loses"),
        (component.out_of_new, "NEW with OLD's", "recovers"),
    ):
        verdict = swap.verdict(name)
        shown = verdict.slowdown if verdict else None
        does = f"{effect} {percent(shown.point)}" if shown else f"not possible: {swap.impossible}"
        ways.append(f"{what} {does}")
    found = component.explained(name)
    if found is None:
        return f"{describe(component.changes)}: {'; '.join(ways)}"
    cost = f"{percent(found.point)} ({percent(found.low)[:-2]} to {percent(found.high)})"
    return f"{describe(component.changes)} alone costs {cost}, the upgrade {percent(component.lost[name])}: {'; '.join(ways)}"


def explanation(row: PairedBenchmark, max_blocks: int) -> str:
    """Return by how much, how surely and from how many pairs; or why it was not judged."""
    verdict = row.verdict
    if row.why or verdict is None:
        return row.why
    pairs = counted(verdict.runs, "pair")
    return terminal.in_words(verdict, observed=pairs, way_out=_remedy(verdict, max_blocks))


def _remedy(verdict: Verdict, max_blocks: int) -> str:
    """Return what would decide an open question."""
    if verdict.wants_another_run:
        return "it ended before this was decided"
    noise, resolution = verdict.noise or 0.0, verdict.resolution or 0.0
    more = min(2 * max_blocks, paired.MAX_BLOCKS)
    return (
        f"noise {percent(noise)} resolves {percent(resolution)} here: take more blocks (--blocks {more}), quieten the machine "
        f"(pytest-accel doctor), measure longer (--accel-budget), or tolerate {percent(resolution, 0)}"
    )


def screen(session: SessionResults) -> list[str]:
    """Return the table, what differs between the environments, and a line for each verdict."""
    shown = [each for each in in_order(session.results) if each.status is not Ending.SKIPPED]
    changes = dict.fromkeys(each for result in shown for each in result.changes)
    headings = ("benchmark", "verdict", "old>", "new>", "unit", "platform")
    table = terminal.text_table(headings, map(_upgrade_row, shown))
    lines = [
        *session.remarks,
        f"differs: {describe(tuple(changes)) or 'nothing in the recorded environment'}",
        *(terminal.line_text(result.name, line) for result in shown for line in result.lines),
        *(f"cause: {result.name}: {text}" for result in shown for text in result.cause_texts),
    ]
    return [*(table if shown else []), "", *terminal.fitted(map(printable, lines))]


def _upgrade_row(result: Result) -> tuple[str, ...]:
    old, new = ("" if each is None else si(each) for each in (result.baseline_throughput, result.throughput))
    unit = f"{result.unit}/s" if result.unit else ""
    verdict = f"{status_word(result)} {terminal.change(result)}".rstrip()
    return result.name, verdict, old, new, unit, result.platform
