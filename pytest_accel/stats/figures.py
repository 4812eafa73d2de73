"""The runs of a benchmark as figures: each metric one value in its unit, as tables and comparisons show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from pytest_accel.stats.energy import units_per_wh, wh_per_epoch
from pytest_accel.stats.gate import interval
from pytest_accel.stats.metrics import is_rate
from pytest_accel.stats.runs import Run
from pytest_accel.stats.verdict import THROUGHPUT, Policy

# Stored as fractions, read as percentages.
SHARES = frozenset(
    {"mfu", "scaling_efficiency", "tdp_share", "power_capped_share", "throttled_share", "roofline_share"}
)
_FRACTIONS = frozenset({"accuracy"})  # as the studies give it
# Of our own names alone: what a user's name ends in need not be a unit.
_UNITS = {
    "power_mean_w": "W",
    "power_peak_w": "W",
    "sm_clock_mhz": "MHz",
    "memory_clock_mhz": "MHz",
    "temperature_c": "°C",
    "memory_gb_per_s": "GB/s",
}
_SECONDS = {"epoch_s": "epoch_time"}  # by the name that a published figure has


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One figure, raw."""

    value: float
    unit: str
    low: float | None = None  # of its 95 % interval, where runs give one
    high: float | None = None
    flags: tuple[str, ...] = ()  # of a published figure


def figures(runs: Sequence[Run], work_per_step: float, unit: str) -> dict[str, Value]:
    """By metric; throughput and step time with their interval, everything else the median of the runs that have it."""
    step = interval(runs, Policy())
    found = {
        THROUGHPUT: Value(
            value=work_per_step / step.point_s,
            unit=f"{unit}/s",
            low=work_per_step / step.high_s,
            high=work_per_step / step.low_s,
        ),
        "step_time": Value(value=step.point_s, unit="s", low=step.low_s, high=step.high_s),
    }
    found |= _energy(runs, work_per_step, unit)
    for name, values in _measured(runs).items():
        metric, of_unit, scale = _named(name)
        if metric not in found:
            found[metric] = Value(value=scale * median(values), unit=of_unit)
    return found


def _measured(runs: Sequence[Run]) -> Mapping[str, list[float]]:
    values: dict[str, list[float]] = {}
    for run in runs:
        own = {
            "peak_memory": run.peak_memory_bytes,
            "first_step_time": run.first_step_s,
            "warmup_time": run.warmup_s,
            **run.metrics,
        }
        for name, value in own.items():
            if value is not None:
                values.setdefault(name, []).append(float(value))
    return values


def _energy(runs: Sequence[Run], work_per_step: float, unit: str) -> dict[str, Value]:
    steps_j = [run.metrics["energy_per_step_j"] for run in runs if run.metrics.get("energy_per_step_j")]
    if not steps_j:
        return {}
    step_j = median(steps_j)
    found = {"work_per_energy": Value(value=units_per_wh(step_j, work_per_step), unit=f"{unit}/Wh")}
    epoch = next((run.metrics["epoch_size"] for run in runs if run.metrics.get("epoch_size")), None)
    if epoch:
        found["energy"] = Value(value=wh_per_epoch(step_j, epoch, work_per_step), unit="Wh/epoch")
    return found


def _named(name: str) -> tuple[str, str, float]:
    """What a metric is called beside published ones, its unit, and what its stored number is multiplied by."""
    if name in SHARES:
        return name, "%", 100.0
    if name in _FRACTIONS:
        return name, "fraction", 1.0
    if name == "peak_memory":
        return name, "GiB", 2.0**-30
    if name.endswith("_time"):
        return name, "s", 1.0
    for ending, unit in (("_s", "s"), ("_j", "J"), ("_bytes", "B")):
        if name.endswith(ending) and not is_rate(name):
            return _SECONDS.get(name, name), unit, 1.0
    return name, _UNITS.get(name, ""), 1.0
