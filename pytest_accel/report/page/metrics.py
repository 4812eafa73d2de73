"""A metric as people read it: by its name, in the unit that its name carries, and from the baseline to now."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median

from pytest_accel.report.terminal import changed
from pytest_accel.report.verdicts import deciding, is_settled, misses_reference, shown_verdicts
from pytest_accel.stats.metric_gates import is_rate, less_is_better, shown_name
from pytest_accel.stats.quantities import percent, seconds, si
from pytest_accel.stats.results import Result
from pytest_accel.stats.run import Run
from pytest_accel.stats.verdict import THROUGHPUT, Outcome, Verdict

_PERCENTAGES = re.compile(r"(^|_)(mfu|accuracy|share|efficiency|felt)$")
_FIGURES = {"mfu": "MFU", "tflops": "TFLOP/s"}


def metric(name: str, value: float) -> tuple[str, str]:
    """Its title, and its value with a unit."""
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
    return _FIGURES.get(name, shown_name(name).replace("_", " "))


def change_of(verdict: Verdict) -> str:
    """`7.8 % slower`, or `loader efficiency 32.3 % lower`; empty where nothing was compared."""
    if verdict.slowdown is None:
        return ""
    said = changed(verdict.slowdown.point, verdict.of)
    return said if verdict.of == THROUGHPUT else f"{title(verdict.of)} {said}"


def from_to(result: Result) -> str:
    """`21,305 → 6,822 products/s`, `loader efficiency 152.0 % → 98.0 %`: what its verdict compared; empty where nothing was."""
    verdict = deciding(result)
    if misses_reference(result):
        return ""  # its sentence has the figures that it failed on, and the baseline's is none of them
    if verdict is not None and verdict.of != THROUGHPUT:
        found = metric_from_to(result, verdict.of)
        return f"{title(verdict.of)} {found}" if found else ""
    now, then = result.throughput, result.baseline_throughput
    if now is None or then is None:
        return ""
    return f"{si(then)} → {si(now)} {result.unit}/s"


def metric_from_to(result: Result, name: str) -> str:
    then, now = _values(result.baseline, name), _values(result.runs, name)
    if not then or not now:
        return ""
    return f"{metric(name, median(then))[1]} → {metric(name, median(now))[1]}"


def _values(runs: Sequence[Run], name: str) -> list[float]:
    return [run.metrics[name] for run in runs if name in run.metrics]


def failed_metrics(result: Result) -> list[dict[str, object]]:
    """The runs of every metric that a failed benchmark was not well in, for a plot each."""
    if not result.failed:
        return []
    return [
        {
            "title": title(verdict.of),
            "is_share": bool(_PERCENTAGES.search(verdict.of)),
            "then": _points(result.baseline, verdict.of),
            "now": _points(result.runs, verdict.of),
            "limit": median(then)
            * (1 + verdict.tolerance if less_is_better(verdict.of) else 1 - verdict.tolerance),
            "tolerance_text": percent(verdict.tolerance),
        }
        for verdict in shown_verdicts(result)
        if verdict.of != THROUGHPUT
        and not is_settled(verdict.outcome)
        and verdict.outcome is not Outcome.IMPROVED
        and (then := _values(result.baseline, verdict.of))
    ]


def _points(runs: Sequence[Run], name: str) -> list[tuple[float, str]]:
    return [(value, metric(name, value)[1]) for value in _values(runs, name)]
