"""What the plots of a benchmark show, as plain numbers: the page's script draws them in the colours of its theme."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pytest_accel.core.changepoints import change_points
from pytest_accel.core.gate import interval
from pytest_accel.core.quantities import percent
from pytest_accel.core.results import Result
from pytest_accel.core.runs import Run
from pytest_accel.core.verdict import Policy

_DIGITS = 6  # of what is only drawn: a pixel is a thousandth of a plot
# A season. Change points are looked for in all of them, which takes 8 ms a benchmark of 60 values on one core here.
MOST_NIGHTS = 90
Nights = dict[tuple[str, str, str], int]  # time, session and revision, each once: benchmarks share them


class Past(Protocol):
    """What a plot needs of a run that the history holds."""

    @property
    def at(self) -> str: ...  # ISO 8601
    @property
    def session(self) -> str: ...
    @property
    def revision(self) -> str: ...
    @property
    def throughput(self) -> float: ...


def rounds(result: Result, most: int) -> dict[str, object] | None:
    """The rounds of this session's runs beside those of the baseline's; at most so many a run."""
    if not result.runs or most == 0:
        return None
    work = result.work_per_step
    verdict = result.verdict
    tolerance = verdict.tolerance if verdict else result.tolerance
    return {
        "unit": f"{result.unit}/s",
        "now": [_run(run, work, most) for run in result.runs],
        "then": [_run(run, work, most) for run in result.baseline],
        "now_interval": _interval(result.runs, work),
        "then_interval": _interval(result.baseline, work) if result.baseline else None,
        "tolerance": tolerance,
        "tolerance_text": f"tolerance {percent(tolerance)}" if tolerance else "",
    }


def _run(run: Run, work: float, most: int) -> dict[str, object]:
    return {
        "session": run.session,
        "throughput": drawn(run.throughput(work)),
        "rounds": [drawn(work / seconds) for seconds in thinned(run.rounds_s, most)],
    }


def _interval(runs: Sequence[Run], work: float) -> list[float]:
    """Low, point, high of throughput: the terminal's ±."""
    found = interval(runs, Policy())
    return [drawn(work / seconds) for seconds in (found.high_s, found.point_s, found.low_s)]


def past(result: Result, series: Sequence[Past], nights: Nights) -> dict[str, object] | None:
    """The newest values of the history, and where they changed; nothing of fewer than two."""
    shown = [point for point in series if point.throughput > 0][-MOST_NIGHTS:]
    if len(shown) < 2:
        return None
    values = [point.throughput for point in shown]
    return {
        "unit": f"{result.unit}/s",
        "nights": [
            nights.setdefault((point.at, point.session, point.revision[:12]), len(nights)) for point in shown
        ],
        "throughput": [drawn(value) for value in values],
        "changes": [
            {
                "index": found.index,
                "before": drawn(found.before),
                "after": drawn(found.after),
                "text": _step(found.after / found.before - 1),
            }
            for found in change_points(values)
        ],
    }


def _step(relative: float) -> str:
    return f"{percent(-relative)} slower" if relative < 0 else f"{percent(relative)} faster"


def thinned(values: Sequence[float], most: int) -> Sequence[float]:
    """Evenly chosen, the first and the last among them."""
    if len(values) <= most:
        return values
    if most == 1:
        return values[:1]
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def drawn(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
