"""Comparisons as text: sets of figures side by side, and the kernels of two sets of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_accel.report.history import text_table
from pytest_accel.report.markdown import prose, table_row
from pytest_accel.report.terminal import changed, fitted, note, verdict_line
from pytest_accel.report.verdicts import word
from pytest_accel.stats.comparison import was_slowed
from pytest_accel.stats.environment import describe
from pytest_accel.stats.gate import LOSSES, THROUGHPUT, Outcome
from pytest_accel.stats.kernels import KernelChange, KernelDifference
from pytest_accel.stats.metric_gates import shown_name
from pytest_accel.stats.quantities import counted, inert, percent, printable, seconds, si
from pytest_accel.stats.results import status_of
from pytest_accel.storage.codec import encode
from pytest_accel.storage.codec import render as render_json
from pytest_accel.storage.comparison import Cell, Comparison, Judged, Row

SCHEMA_VERSION = 3
UNLIKE = "*"
TITLES = {
    "step_time": "time of a step",
    "first_step_time": "time of the first step",
    "scaling_efficiency": "scaling (throughput per device)",
    "mfu": "MFU (share of the dense peak)",
    "power_mean_w": "mean power",
    "power_peak_w": "peak power",
    "tdp_share": "share of TDP",
    "sm_clock_mhz": "SM clock",
    "memory_clock_mhz": "memory clock",
    "temperature_c": "peak temperature",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    title: str = ""
    headings: tuple[str, ...]  # one that ends in `>` is of figures
    rows: tuple[tuple[str, ...], ...]

    def lines(self) -> list[str]:
        return text_table(self.headings, self.rows)

    def markdown(self) -> list[str]:
        titles = [prose(heading.removesuffix(">")) for heading in self.headings]
        rules = ["---:" if heading.endswith(">") else "---" for heading in self.headings]
        return [table_row(row) for row in (titles, rules, *(map(prose, row) for row in self.rows))]


def render(comparison: Comparison, form: str) -> str:
    return FORMATS[form](comparison)


# --- tables ----------------------------------------------------------------------------------


def tables(comparison: Comparison) -> list[TextTable]:
    """Return a table for each metric; without empty columns."""
    grouped: dict[str, list[Row]] = {}
    for row in comparison.rows:
        grouped.setdefault(TITLES.get(row.metric, row.metric.replace("_", " ")), []).append(row)
    found = []
    for title, rows in grouped.items():
        headings, texts = zip(*_columns(rows, comparison), strict=True)
        found.append(TextTable(title=title, headings=headings, rows=tuple(zip(*texts, strict=True))))
    return found


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
        return _outcome(each).replace("-", " ")
    deciding = next(verdict for verdict in found.verdicts if status_of(verdict) is found.outcome)
    change = changed(deciding.slowdown.point, deciding.of) if deciding.slowdown else ""
    of = "" if deciding.of == THROUGHPUT else f"{shown_name(deciding.of)} "
    return f"{word(found.outcome)} {of}{change}".rstrip()


# --- notes below -----------------------------------------------------------------------------


def notes(comparison: Comparison) -> list[str]:
    """Return what the marks mean, and what differs; then the verdicts in words."""
    found = [*_sets(comparison), *_unlike(comparison), *_verdicts(comparison)]
    return [printable(line) for line in found]


def _sets(comparison: Comparison) -> Iterator[str]:
    """Yield the source of each column, and what the ratios are to."""
    for side in comparison.sides:
        platform = "" if side.platform in side.label else f" ({side.platform})"
        yield f"{side.label}{platform}: {side.about}"
    for side in comparison.sides:
        slowed = sum(was_slowed(run) for entry in side.entries.values() for run in entry.runs)
        if slowed:
            yield note(side.label, f"{counted(slowed, 'run')} delayed on purpose by --accel-slowdown")
    if any(cell.ratio is not None for row in comparison.rows for cell in row.cells):
        held = dict.fromkeys(comparison.sides[at].label for at in comparison.held_to)
        yield f"x is against {', '.join(held)}; above 1 is better."


def _unlike(comparison: Comparison) -> Iterator[str]:
    """Yield what is not alike between figures of one row."""
    found: dict[str, str] = {}
    for row in comparison.rows:
        for cell, side in zip(row.cells, comparison.sides, strict=True):
            if cell.differs:
                found.setdefault(f"{row.name}, {side.label}", cell.differs)
    yield from (f"{UNLIKE} {what}: {why}" for what, why in found.items())


def _verdicts(comparison: Comparison) -> Iterator[str]:
    """Yield every verdict that is not ok, with what changed; then what could not be judged, and why."""
    for each in comparison.judged:
        found = each.judgement
        for verdict in found.verdicts:
            if status_of(verdict) is not Outcome.OK:
                yield verdict_line(f"{each.name} ({each.side.label})", verdict)
        if found.outcome in LOSSES:
            changes = f"changed since {each.baseline.label}: {describe(found.changes)}"
            yield f"    {changes if found.changes else 'nothing in the recorded environment changed'}"
    reasons: dict[tuple[str, str], list[str]] = {}
    several = len({each.side.label for each in comparison.judged}) > 1
    for each in (each for each in comparison.judged if each.judgement.why_not):
        where = f" ({each.side.label})" if several else ""
        reasons.setdefault((where, each.judgement.why_not), []).append(each.name)
    for (where, why), names in reasons.items():
        few = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        yield note(f"{few}{where}", f"not judged: {why}")
    judged = [each.judgement for each in comparison.judged if each.judgement.outcome is not None]
    if judged:
        tolerances = ", ".join(dict.fromkeys(percent(each.verdicts[0].tolerance) for each in judged))
        yield f"Judged {counted(len(judged), 'benchmark')} by the gate, tolerance {tolerances}."


# --- formats ---------------------------------------------------------------------------------


def _terminal(comparison: Comparison) -> str:
    lines: list[str] = []
    for table in tables(comparison):
        lines += [printable(table.title), *table.lines(), ""]
    return "".join(f"{inert(line)}\n" for line in [*lines, *fitted(notes(comparison))])


def _markdown(comparison: Comparison) -> str:
    lines: list[str] = []
    for table in tables(comparison):
        lines += [f"### {prose(table.title)}", "", *table.markdown(), ""]
    return "\n".join([*lines, *(f"- {prose(line)}" for line in notes(comparison))]) + "\n"


def _json(comparison: Comparison) -> str:
    """Return everything, unrounded; the cells of a row are in the order of the sets."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "sets": [
            {**encode(replace(side, entries={})), "ratios_to": comparison.sides[at].label}
            for side, at in zip(comparison.sides, comparison.held_to, strict=True)
        ],
        "rows": encode(comparison.rows),
        "judged": [_judged(each) for each in comparison.judged],
    }
    return render_json(content) + "\n"


def _outcome(each: Judged) -> str:
    found = each.judgement
    return found.outcome.value if found.outcome else found.status


def _judged(each: Judged) -> dict[str, Any]:
    sides = {"set": each.side.label, "baseline": each.baseline.label}
    return {"key": each.key, **sides, **encode(each.judgement), "outcome": _outcome(each)}


FORMATS: dict[str, Callable[[Comparison], str]] = {
    "table": _terminal,
    "markdown": _markdown,
    "json": _json,
}


# --- kernels ---------------------------------------------------------------------------------

# As `text_table` takes them: the most important first, `>` ends those of figures.
KERNEL_HEADINGS = ("a step", "change>", "of the loss>", "baseline>", "now>", "calls", "kernel")
_SMALL = 0.01  # of the loss: such changes share a row
_NONE_S = 1e-9
_BARS = 8  # of operations in a waterfall


def kernel_rows(found: KernelDifference) -> list[tuple[str, ...]]:
    """Return the changes of operations, of idle time, what is unexplained and the measured step time; they sum up."""
    least_s = _SMALL * abs(found.loss_s)
    shown = [each for each in found.rows if abs(each.change_s) >= least_s]
    small = [each for each in found.rows if abs(each.change_s) < least_s]
    if small:
        sums = (math.fsum(each.before_s for each in small), math.fsum(each.after_s for each in small))
        name = f"{counted(len(small), 'operation')} nearly as before"
        shown.append(KernelChange(operation=name, before_s=sums[0], after_s=sums[1]))
    measured = KernelChange(operation="measured", before_s=found.before_s, after_s=found.after_s)
    rows = [_kernel_row(found, each) for each in (*shown, found.idle)]
    rows.append(
        ("unexplained", signed(found.unexplained_s), _share_of_loss(found, found.unexplained_s), *[""] * 4)
    )
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
