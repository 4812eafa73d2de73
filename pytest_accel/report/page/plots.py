"""Data of the plots of a benchmark: its rounds and its history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_accel.report.history import changes_of, unchanged
from pytest_accel.report.terminal import changed
from pytest_accel.stats.gate import Policy, interval
from pytest_accel.stats.quantities import percent
from pytest_accel.stats.results import Result
from pytest_accel.stats.run import Run

if TYPE_CHECKING:  # SQLite is loaded only where it is needed
    from pytest_accel.storage.history import Point

_DIGITS = 6  # of what is only drawn: a pixel is a thousandth of a plot
_MOST_ROUNDS = 40  # of a run: 500 benchmarks of ten runs take a megabyte, which mail and CI artifacts allow
Nights = dict[tuple[str, str, str], int]  # time, session and revision, each once: benchmarks share them


def drawn(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def rounds(result: Result) -> dict[str, object] | None:
    """Return the rounds of this session's runs and of the baseline's."""
    if not result.runs:
        return None
    work = result.work_per_step
    tolerance = result.verdict.tolerance if result.verdict else result.tolerance
    return {
        "unit": f"{result.unit}/s",
        "now": [_run(run, work) for run in result.runs],
        "then": [_run(run, work) for run in result.baseline],
        "now_interval": _interval(result.runs, work),
        "then_interval": _interval(result.baseline, work) if result.baseline else None,
        "tolerance": tolerance,
        "tolerance_text": percent(tolerance) if tolerance else "",
    }


def _run(run: Run, work: float) -> dict[str, object]:
    return {
        "session": run.session,
        "throughput": drawn(run.throughput(work)),
        "rounds": [drawn(work / seconds) for seconds in _thinned(run.rounds_s)],
    }


def _interval(runs: Sequence[Run], work: float) -> list[float]:
    found = interval(runs, Policy())
    return [drawn(work / seconds) for seconds in (found.high_s, found.point_s, found.low_s)]


def _thinned(values: Sequence[float]) -> Sequence[float]:
    """Choose evenly, the first and the last among them."""
    count = min(len(values), _MOST_ROUNDS)
    return [values[i * (len(values) - 1) // max(count - 1, 1)] for i in range(count)]


def past(result: Result, points: Sequence[Point], nights: Nights) -> dict[str, object] | None:
    """Return the newest values of the history and where they changed; None for fewer than two."""
    if len(points) < 2:
        return None
    named = [(point.at, point.session, point.revision[:12]) for point in points]
    return {
        "unit": f"{result.unit}/s",
        "nights": [nights.setdefault(night, len(nights)) for night in named],
        "throughput": [drawn(point.throughput) for point in points],
        "changes": [
            {
                "index": found.index,
                "before": drawn(found.before),
                "after": drawn(found.after),
                "text": changed(-found.relative),
            }
            for found in changes_of(points)
        ],
        "unchanged": unchanged(points),
    }
