"""The table of verdicts: a row a benchmark, each cell as text and as a value to sort by; metrics in their units."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from pytest_accel.report.terminal import changed
from pytest_accel.report.verdicts import (
    VERDICTS,
    deciding,
    in_order,
    is_settled,
    misses_reference,
    rank,
    shown_status,
    shown_verdicts,
    status_word,
)
from pytest_accel.stats import energy
from pytest_accel.stats.gate import interval
from pytest_accel.stats.metric_gates import is_rate, less_is_better, shown_name
from pytest_accel.stats.quantities import percent, seconds, si
from pytest_accel.stats.results import Result
from pytest_accel.stats.run import Run
from pytest_accel.stats.verdict import THROUGHPUT, Outcome, Policy, Verdict

SortKey: TypeAlias = str | float | None
# Text, sort key (None is last either way), and in some a small text below.
PageCell: TypeAlias = tuple[str, SortKey] | tuple[str, SortKey, str]
NOTHING: PageCell = ("", None)
_WIDTH_IN_TOLERANCES = 3.0  # of the picture of a change, to either side
_PERCENTAGES = re.compile(r"(^|_)(mfu|accuracy|share|efficiency|felt)$")
_TITLES = {"mfu": "MFU", "tflops": "TFLOP/s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageColumn:
    key: str
    title: str
    cell: Callable[[Result], PageCell]
    right: bool = False  # figures
    help: str = ""
    lesser: int = 0  # narrow screens drop the greater first; the details have them all


def table(results: Sequence[Result]) -> dict[str, object]:
    """Return columns and rows in the order of attention, without columns that are empty."""
    position = {id(result): index for index, result in enumerate(results)}
    cells = {column.key: [column.cell(result) for result in results] for column in COLUMNS}
    shown = [column for column in COLUMNS if any(cell[0] for cell in cells[column.key])]
    return {
        "columns": [
            {name: getattr(column, name) for name in ("key", "title", "right", "help", "lesser")}
            for column in shown
        ],
        "rows": [
            _row(index, result, [cells[column.key][index] for column in shown])
            for result in in_order(results)
            for index in (position[id(result)],)
        ],
        "statuses": [
            {"status": status.value, "word": row.word, "tone": row.tone, "icon": row.icon}
            for status, row in VERDICTS.items()
            if any(shown_status(result) is status for result in results)
        ],
    }


def _row(index: int, result: Result, cells: list[PageCell]) -> dict[str, object]:
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
        "tone": VERDICTS[decided.outcome].tone if decided else "",  # of the picture, not of the row
        "unsteady": not result.steady,
        "cells": cells,
    }


def picture(verdict: Verdict | None) -> list[float] | None:
    """Return a change as places from 0 (worse) to 1 (better): low, point, high, both ends of the tolerance."""
    if verdict is None or verdict.slowdown is None or verdict.tolerance <= 0:
        return None
    found, reach = verdict.slowdown, _WIDTH_IN_TOLERANCES * verdict.tolerance
    losses = (found.high, found.point, found.low, verdict.tolerance, -verdict.tolerance)
    return [round(min(1.0, max(0.0, 0.5 - 0.5 * loss / reach)), 3) for loss in losses]


# --- columns ----------------------------------------------------------------------------------------


def _figure(value: float | None, text: Callable[[float], str]) -> PageCell:
    return NOTHING if value is None else (text(value), value)


def _verdict(result: Result) -> PageCell:
    return status_word(result), float(rank(shown_status(result)) - (100 if result.failed else 0))


def _throughput(result: Result) -> PageCell:
    return _figure(result.throughput, lambda value: f"{si(value)} {result.unit}/s")


def _noise(result: Result) -> PageCell:
    return _figure(interval(result.runs, Policy()).relative_high if result.runs else None, percent)


def _change(result: Result) -> PageCell:
    """Return by how much the throughput or metric that decided has changed."""
    verdict = deciding(result)
    if verdict is None or verdict.slowdown is None:
        return NOTHING
    text = changed(verdict.slowdown.point, verdict.of)
    if verdict.of == THROUGHPUT:  # its figures have columns of their own
        return text, verdict.slowdown.point
    return f"{title(verdict.of)} {text}", verdict.slowdown.point, _metric_from_to(result, verdict.of)


def _reference(result: Result, *, expected: bool) -> PageCell:
    """Return the reference that was missed, else the first that can be compared."""
    comparable = [each for each in result.references if each.expected is expected and each.ratio is not None]
    found = next((each for each in comparable if each.shortfall), comparable[0] if comparable else None)
    if found is None or found.ratio is None:
        return NOTHING
    return f"{times(found.ratio)}{'' if expected else f' {found.platform}'}", found.ratio, found.differs


COLUMNS = (
    PageColumn(key="verdict", title="Verdict", cell=_verdict),
    PageColumn(key="benchmark", title="Benchmark", cell=lambda result: (result.name, result.benchmark)),
    PageColumn(key="platform", title="Platform", cell=lambda result: (result.platform, result.platform)),
    PageColumn(key="suite", title="Suite", cell=lambda result: (result.suite, result.suite), lesser=2),
    PageColumn(key="throughput", title="Throughput", cell=_throughput, right=True),
    PageColumn(
        key="noise", title="±", cell=_noise, right=True, help="95 % interval of run-to-run noise", lesser=1
    ),
    PageColumn(
        key="baseline",
        title="Baseline",
        cell=lambda result: _figure(result.baseline_throughput if result.runs else None, si),
        right=True,
        help="Throughput of the stored runs that it was compared with",
    ),
    PageColumn(
        key="change",
        title="Against baseline",
        cell=_change,
        help="What decided, with its bounds: the shaded middle is the tolerance, left of it is worse",
    ),
    PageColumn(
        key="mfu",
        title="MFU",
        cell=lambda result: _figure(result.metrics.get("mfu"), percent),
        right=True,
        help="Model FLOP/s over the device's dense peak",
        lesser=2,
    ),
    PageColumn(
        key="energy",
        title="Units/Wh",
        cell=lambda result: _figure(units_per_wh(result), si),
        right=True,
        help="Work per watt-hour",
        lesser=3,
    ),
    PageColumn(
        key="scaling",
        title="Scaling",
        cell=lambda result: _figure(result.scaling.efficiency if result.scaling else None, percent),
        right=True,
        help="Throughput per device against the smaller platform",
        lesser=3,
    ),
    PageColumn(
        key="published",
        title="Published",
        cell=lambda result: _reference(result, expected=False),
        help="This machine over a published figure, and whose platform that was; above 1 is better",
        lesser=2,
    ),
    PageColumn(
        key="expected",
        title="Expected here",
        cell=lambda result: _reference(result, expected=True),
        help="This machine over what its site expects of it; above 1 is better",
        lesser=1,
    ),
)


# --- metrics ----------------------------------------------------------------------------------------


def metric(name: str, value: float) -> tuple[str, str]:
    """Return the title of a metric, and its value in the unit that its name carries."""
    if _PERCENTAGES.search(name):
        return title(name), percent(value)
    if name == "temperature_c":
        return "peak temperature", f"{value:.0f} °C"
    if is_rate(name):
        return title(name), f"{value:.6g}"
    for suffix, unit in (("_j", "J"), ("_w", "W"), ("_mhz", "MHz")):
        if name.endswith(suffix):
            return title(name.removesuffix(suffix)), f"{si(value)} {unit}"
    if name.endswith(("_s", "_s_per_step")) and value > 0:
        return title(re.sub(r"_s(_per_step)?$", r"\1", name)), seconds(value)
    return title(name), f"{value:.6g}"


def title(name: str) -> str:
    return _TITLES.get(name, shown_name(name).replace("_", " "))


def units_per_wh(result: Result) -> float | None:
    step_j = result.metrics.get("energy_per_step_j")
    return energy.units_per_wh(step_j, result.work_per_step) if step_j else None


def times(ratio: float) -> str:
    return f"{ratio:.2f} x"


def from_to(result: Result) -> str:
    """Return what its verdict compared, `21,305 → 6,822 products/s`; empty where nothing was."""
    verdict = deciding(result)
    if misses_reference(result):
        return ""  # its sentence has the figures that it failed on
    if verdict is not None and verdict.of != THROUGHPUT:
        found = _metric_from_to(result, verdict.of)
        return f"{title(verdict.of)} {found}" if found else ""
    now, then = result.throughput, result.baseline_throughput
    return "" if now is None or then is None else f"{si(then)} → {si(now)} {result.unit}/s"


def _metric_from_to(result: Result, name: str) -> str:
    then, now = _values(result.baseline, name), _values(result.runs, name)
    if not then or not now:
        return ""
    return f"{metric(name, median(then))[1]} → {metric(name, median(now))[1]}"


def _values(runs: Sequence[Run], name: str) -> list[float]:
    return [run.metrics[name] for run in runs if name in run.metrics]


def failed_metrics(result: Result) -> list[dict[str, object]]:
    """Return the runs of every metric that failed a benchmark, for a plot each."""
    found = []
    for verdict in shown_verdicts(result) if result.failed else ():
        then = _values(result.baseline, verdict.of)
        is_fine = is_settled(verdict.outcome) or verdict.outcome is Outcome.IMPROVED
        if verdict.of == THROUGHPUT or is_fine or not then:
            continue
        sign = 1 if less_is_better(verdict.of) else -1
        found.append(
            {
                "title": title(verdict.of),
                "is_share": bool(_PERCENTAGES.search(verdict.of)),
                "then": [(value, metric(verdict.of, value)[1]) for value in then],
                "now": [(value, metric(verdict.of, value)[1]) for value in _values(result.runs, verdict.of)],
                "limit": median(then) * (1 + sign * verdict.tolerance),
                "tolerance_text": percent(verdict.tolerance),
            }
        )
    return found
