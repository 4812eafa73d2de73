"""What the plots of a benchmark show, as plain numbers: the page's script draws them in the colours of its theme."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pytest_accel.report.history import unchanged
from pytest_accel.report.terminal import changed
from pytest_accel.stats.changepoints import Trend
from pytest_accel.stats.comparison import was_slowed
from pytest_accel.stats.gate import interval
from pytest_accel.stats.quantities import percent
from pytest_accel.stats.results import Result
from pytest_accel.stats.run import Run
from pytest_accel.stats.verdict import Outcome, Policy

_DIGITS = 6  # of what is only drawn: a pixel is a thousandth of a plot
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
        "tolerance_text": percent(tolerance) if tolerance else "",
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


def past(result: Result, trend: Trend[Past] | None, nights: Nights) -> dict[str, object] | None:
    """The newest values of the history, and where they changed; nothing of fewer than two."""
    if trend is None or len(trend.points) < 2:
        return None
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
        "left_out": _left_out(result),
    }


def _left_out(result: Result) -> str:
    """Why the history has this session and does not count it; empty where it does."""
    if any(map(was_slowed, result.runs)):
        return "This session is left out: it was slowed on purpose (--accel-slowdown)."
    if result.status is Outcome.INVALID:
        return "This session is left out: its figures are not valid."
    return ""


def thinned(values: Sequence[float], most: int) -> Sequence[float]:
    """Evenly chosen, the first and the last among them."""
    if len(values) <= most:
        return values
    if most == 1:
        return values[:1]
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def drawn(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
