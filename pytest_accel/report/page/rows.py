"""The verdict table: a row a benchmark, each cell as the terminal writes it and as a value to sort by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pytest_accel.report.page.metrics import change_of, metric_from_to
from pytest_accel.report.verdicts import VERDICTS, deciding, in_order, rank, shown_status, status_word, word
from pytest_accel.stats import energy
from pytest_accel.stats.gate import interval
from pytest_accel.stats.quantities import percent, si
from pytest_accel.stats.results import ReferenceFigure, Result
from pytest_accel.stats.verdict import THROUGHPUT, Policy, Verdict

Key: TypeAlias = str | float | None
# Its text, and what it is sorted by, None last either way; then, in some, what stands small below the text.
Cell: TypeAlias = tuple[str, Key] | tuple[str, Key, str]
NOTHING: Cell = ("", None)
_WIDTH_IN_TOLERANCES = 3.0  # to either side in the picture of a change; what lies beyond stands at the edge


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    key: str
    title: str
    cell: Callable[[Result], Cell]
    right: bool = False  # figures
    help: str = ""  # what it means
    lesser: int = 0  # on narrow screens the greater go first; the details have them all


def table(results: Sequence[Result]) -> dict[str, object]:
    """Columns and rows, the most pressing first; a column without a value in any row is left out."""
    position = {id(result): index for index, result in enumerate(results)}
    ordered = [(position[id(result)], result) for result in in_order(results)]
    cells = {column.key: [column.cell(result) for result in results] for column in COLUMNS}
    shown = [column for column in COLUMNS if any(cell[0] for cell in cells[column.key])]
    return {
        "columns": [
            {
                "key": column.key,
                "title": column.title,
                "right": column.right,
                "help": column.help,
                "lesser": column.lesser,
            }
            for column in shown
        ],
        "rows": [
            _row(index, result, [cells[column.key][index] for column in shown]) for index, result in ordered
        ],
        "statuses": [
            {"status": status.value, "word": word(status), "tone": look.tone, "icon": look.icon}
            for status, look in VERDICTS.items()
            if any(shown_status(result) is status for result in results)
        ],
    }


def _row(index: int, result: Result, cells: list[Cell]) -> dict[str, object]:
    decided = deciding(result)
    return {
        "id": index,
        "status": shown_status(result).value,
        "failed": result.failed,
        "name": result.name,
        "file": result.file or result.benchmark.partition("::")[0],
        "platform": result.platform,
        "suite": result.suite,
        "picture": picture(decided),
        "tone": VERDICTS[decided.outcome].tone
        if decided
        else "",  # of the picture: what failed may be something else
        "unsteady": not result.steady,
        "cells": cells,
    }


def picture(verdict: Verdict | None) -> list[float] | None:
    """The change as places between 0 (slower) and 1 (faster): low, point, high, and both ends of the tolerance."""
    if verdict is None or verdict.slowdown is None or verdict.tolerance <= 0:
        return None
    found, reach = verdict.slowdown, _WIDTH_IN_TOLERANCES * verdict.tolerance
    losses = (found.high, found.point, found.low, verdict.tolerance, -verdict.tolerance)
    return [round(min(1.0, max(0.0, 0.5 - 0.5 * loss / reach)), 3) for loss in losses]


# --- one function a column -------------------------------------------------------------------------------


def verdict_cell(result: Result) -> Cell:
    return status_word(result), float(rank(shown_status(result)) - (100 if result.failed else 0))


def benchmark(result: Result) -> Cell:
    return result.name, result.benchmark


def platform(result: Result) -> Cell:
    return result.platform, result.platform


def suite(result: Result) -> Cell:
    return result.suite, result.suite


def throughput(result: Result) -> Cell:
    value = result.throughput
    return NOTHING if value is None else (f"{si(value)} {result.unit}/s", value)


def noise(result: Result) -> Cell:
    if not result.runs:
        return NOTHING
    width = interval(result.runs, Policy()).relative_high
    return percent(width), width


def baseline(result: Result) -> Cell:
    value = result.baseline_throughput if result.runs else None
    return NOTHING if value is None else (si(value), value)


def change(result: Result) -> Cell:
    """By how much changed what decided, its throughput or a metric; sorted by loss."""
    verdict = deciding(result)
    if verdict is None or verdict.slowdown is None:
        return NOTHING
    if verdict.of == THROUGHPUT:  # its figures have columns of their own
        return change_of(verdict), verdict.slowdown.point
    return change_of(verdict), verdict.slowdown.point, metric_from_to(result, verdict.of)


def mfu(result: Result) -> Cell:
    value = result.metrics.get("mfu")
    return NOTHING if value is None else (percent(value), value)


def work_per_energy(result: Result) -> Cell:
    value = units_per_wh(result)
    return NOTHING if value is None else (si(value), value)


def scaling(result: Result) -> Cell:
    figure = result.scaling
    return (percent(figure.efficiency), figure.efficiency) if figure else NOTHING


def published(result: Result) -> Cell:
    return _first([each for each in result.references if not each.expected])


def expected(result: Result) -> Cell:
    return _first([each for each in result.references if each.expected])


def _first(figures: Sequence[ReferenceFigure]) -> Cell:
    """One that was missed, else the first that can be compared; all of them are in the details."""
    comparable = [each for each in figures if each.ratio is not None]
    found = next((each for each in comparable if each.shortfall), comparable[0] if comparable else None)
    if found is None or found.ratio is None:
        return NOTHING
    whose = "" if found.expected else f" {found.platform}"
    return f"{times(found.ratio)}{whose}", found.ratio, found.differs


def units_per_wh(result: Result) -> float | None:
    """Work a watt-hour buys, as the studies of energy give it."""
    step_j = result.metrics.get("energy_per_step_j")
    return energy.units_per_wh(step_j, result.work_per_step) if step_j else None


def times(ratio: float) -> str:
    return f"{ratio:.2f} x"


COLUMNS = (
    Column(key="verdict", title="Verdict", cell=verdict_cell),
    Column(key="benchmark", title="Benchmark", cell=benchmark),
    Column(key="platform", title="Platform", cell=platform),
    Column(key="suite", title="Suite", cell=suite, lesser=2),
    Column(key="throughput", title="Throughput", cell=throughput, right=True),
    Column(
        key="noise", title="±", cell=noise, right=True, help="95 % interval of run-to-run noise", lesser=1
    ),
    Column(
        key="baseline",
        title="Baseline",
        cell=baseline,
        right=True,
        help="Throughput of the stored runs that it was compared with",
    ),
    Column(
        key="change",
        title="Against baseline",
        cell=change,
        help="What decided, with its bounds: the shaded middle is the tolerance, left of it is worse",
    ),
    Column(
        key="mfu",
        title="MFU",
        cell=mfu,
        right=True,
        help="Model FLOP/s over the device's dense peak",
        lesser=2,
    ),
    Column(
        key="energy",
        title="Units/Wh",
        cell=work_per_energy,
        right=True,
        help="Work a watt-hour buys",
        lesser=3,
    ),
    Column(
        key="scaling",
        title="Scaling",
        cell=scaling,
        right=True,
        help="Throughput per device against the smaller platform",
        lesser=3,
    ),
    Column(
        key="published",
        title="Published",
        cell=published,
        help="This machine over a published figure, and whose platform that was; above 1 is better",
        lesser=2,
    ),
    Column(
        key="expected",
        title="Expected here",
        cell=expected,
        help="This machine over what its site expects of it; above 1 is better",
        lesser=1,
    ),
)
