"""Data of the plots: rounds and history of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_accel.report.history import unchanged
from pytest_accel.report.terminal import changed
from pytest_accel.stats.comparison import was_slowed
from pytest_accel.stats.gate import Outcome, Policy, interval
from pytest_accel.stats.quantities import percent
from pytest_accel.stats.results import Result
from pytest_accel.stats.run import Run

if TYPE_CHECKING:  # SQLite is loaded only where it is needed
    from pytest_accel.storage.history import Trend

_DIGITS = 6  # of what is only drawn: a pixel is a thousandth of a plot
MOST_ROUNDS = 60  # of a run
Nights = dict[tuple[str, str, str], int]  # time, session and revision, each once: benchmarks share them


def drawn(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def rounds(result: Result, most: int) -> dict[str, object] | None:
    """Return the rounds of this session's runs and of the baseline's, at most so many a run."""
    if not result.runs:
        return None
    work = result.work_per_step
    tolerance = result.verdict.tolerance if result.verdict else result.tolerance
    return {
        "unit": f"{result.unit}/s",
        "now": [_run(run, work, most) for run in result.runs],
        "then": [_run(run, work, most) for run in result.baseline],
        "now_interval": _interval(result.runs, work),
        "then_interval": _interval(result.baseline, work) if result.baseline else None,
        "tolerance": tolerance,
        "tolerance_text": percent(tolerance) if tolerance else "",
    }


def _run(run: Run, work: float, most: int) -> dict[str, object]:
    return {
        "session": run.session,
        "throughput": drawn(run.throughput(work)),
        "rounds": [drawn(work / seconds) for seconds in thinned(run.rounds_s, most)],
    }


def _interval(runs: Sequence[Run], work: float) -> list[float]:
    found = interval(runs, Policy())
    return [drawn(work / seconds) for seconds in (found.high_s, found.point_s, found.low_s)]


def thinned(values: Sequence[float], most: int) -> Sequence[float]:
    """Choose evenly, the first and the last among them."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def past(result: Result, trend: Trend | None, nights: Nights) -> dict[str, object] | None:
    """Return the newest values of the history and where they changed; None for fewer than two."""
    if trend is None or len(trend.points) < 2:
        return None
    left_out = ""
    if any(map(was_slowed, result.runs)):
        left_out = "This session is left out: it was slowed on purpose (--accel-slowdown)."
    elif result.status is Outcome.INVALID:
        left_out = "This session is left out: its figures are not valid."
    return {
        "unit": f"{result.unit}/s",
        "nights": [
            nights.setdefault((point.at, point.session, point.revision[:12]), len(nights))
            for point in trend.points
        ],
        "throughput": [drawn(point.throughput) for point in trend.points],
        "changes": [
            {
                "index": found.index,
                "before": drawn(found.before),
                "after": drawn(found.after),
                "text": changed(-found.relative),
            }
            for found in trend.changes
        ],
        "unchanged": unchanged(trend),
        "left_out": left_out,
    }
