"""Comparison of two sets of runs: figures by metric, comparability, judgement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, Protocol

from pytest_accel.stats.energy import units_per_wh, wh_per_epoch
from pytest_accel.stats.environment import Change, Environment, describe, diff, diff_identity
from pytest_accel.stats.gate import THROUGHPUT, Outcome, Policy, Verdict, interval, judge
from pytest_accel.stats.metric_gates import is_rate, judge_metrics
from pytest_accel.stats.results import Ending, Result, Status, worst_status
from pytest_accel.stats.run import Run, Scalar

_SHARES = (
    "mfu",
    "scaling_efficiency",
    "tdp_share",
    "roofline_share",
    "power_capped_share",
    "throttled_share",
)
# Unit and factor of metrics by the end of their names.
_UNITS = {
    **dict.fromkeys(_SHARES, ("%", 100.0)),
    "accuracy": ("fraction", 1.0),  # as the studies give it
    "peak_memory": ("GiB", 2.0**-30),
    "_bytes": ("B", 1.0),
    "_gb_per_s": ("GB/s", 1.0),
    "temperature_c": ("°C", 1.0),
    **{f"_{unit.lower()}": (unit, 1.0) for unit in ("W", "MHz", "J")},
    **dict.fromkeys(("_s", "_time"), ("s", 1.0)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    value: float
    unit: str
    low: float | None = None  # of its 95 % interval, where runs give one
    high: float | None = None


def figures(runs: Sequence[Run], work_per_step: float, unit: str) -> dict[str, Value]:
    """Return a figure for each metric: throughput and step time with their interval, others as the median of the runs that have them."""
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
        of_unit, scale = next((found for ending, found in _UNITS.items() if name.endswith(ending)), ("", 1.0))
        if is_rate(name) and of_unit in ("s", "J"):
            of_unit = ""
        shown = "epoch_time" if name == "epoch_s" else name
        found.setdefault(shown, Value(value=scale * median(values), unit=of_unit))
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
    if epoch := next((run.metrics["epoch_size"] for run in runs if run.metrics.get("epoch_size")), None):
        found["energy"] = Value(value=wh_per_epoch(step_j, epoch, work_per_step), unit="Wh/epoch")
    return found


_SAME_RUN = 1e-6  # baselines keep seven digits of a round

# Runs of a benchmark that ended so say nothing of its speed: the machine was at fault, or it did other work.
NOT_VALID: Mapping[Status, str] = {
    Ending.FAILED: "it failed",
    Ending.SKIPPED: "it was skipped",
    Outcome.INVALID: "it was invalid",
    Outcome.DOES_NOT_FIT: "it did not fit",
}


class HasConfiguration(Protocol):
    @property
    def configuration(self) -> Mapping[str, Scalar]: ...

    @property
    def work_per_step(self) -> float: ...

    @property
    def unit(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Verdicts on a candidate, or why it was not judged."""

    verdicts: tuple[Verdict, ...] = ()  # of the throughput first, then of gated metrics
    outcome: Status | None = None  # the worst of them; None where nothing was judged
    changes: tuple[Change, ...] = ()  # of the environment, most likely causes first
    why_not: str = ""
    # `same-runs`: the very same. `failed`, `missing`: it is not known there, so that a loss could hide.
    status: Literal["judged", "same-runs", "not-judged", "failed", "missing"] = "judged"


def judged(
    baseline: Result,
    candidate: Result,
    environments: Mapping[str, Environment],
    tolerance: float | None = None,
) -> Judgement:
    """Judge the runs of a candidate that the baseline does not have, where both are comparable."""
    if why := why_unusable(candidate.measured_as, candidate.runs):
        return Judgement(why_not=why, status="failed")
    if why := why_unusable(baseline.measured_as, baseline.runs):
        return Judgement(why_not=f"{why} in the first set", status="not-judged")
    if changes := configuration_changes(baseline, candidate):
        return Judgement(why_not=f"the benchmark changed ({', '.join(changes)})", status="not-judged")
    fresh = [run for run in candidate.runs if not is_stored(run, baseline.runs)]
    if not fresh:
        return Judgement(status="same-runs")
    newest = environments[fresh[-1].environment]
    stored, runs = (
        [run for run in side if environments[run.environment].identity == newest.identity]
        for side in (baseline.runs, fresh)
    )
    if not stored:
        elsewhere = describe(diff_identity(environments[baseline.runs[-1].environment], newest))
        return Judgement(why_not=f"another machine ({elsewhere})", status="not-judged")
    tolerances = (tolerance, candidate.tolerance, baseline.tolerance, Policy().tolerance)
    policy = Policy(tolerance=next(each for each in tolerances if each is not None))
    verdict = judge(stored, runs, policy)
    measured = {
        gated.of: gated.tolerance
        for gated in candidate.verdicts[1:]
        if all(run.metrics.get(gated.of, 0.0) > 0 for run in runs)
    }
    metrics = judge_metrics(stored, runs, measured, policy)
    return Judgement(
        verdicts=(verdict, *(each for each in metrics if each.was_judged)),
        outcome=worst_status(verdict, metrics),
        changes=diff(environments[stored[-1].environment], newest),
    )


def why_unusable(status: Status, runs: Sequence[Run]) -> str:
    """Return why runs of a benchmark that ended so are neither judged nor stored; empty where they are."""
    if status in NOT_VALID:
        return NOT_VALID[status]
    if not runs:
        return "it was not measured"
    # As in an interrupted session.
    return "nothing says how it ended" if status is Ending.NOT_MEASURED else ""


def is_stored(run: Run, stored: Iterable[Run]) -> bool:
    """Return whether a run is among the stored ones; baselines round to seven digits."""
    return any(
        run.session == other.session
        and len(run.rounds_s) == len(other.rounds_s)
        and all(
            math.isclose(a, b, rel_tol=_SAME_RUN) for a, b in zip(run.rounds_s, other.rounds_s, strict=True)
        )
        for other in stored
    )


def was_slowed(run: Run) -> bool:
    """Return whether it was measured with --accel-slowdown."""
    return "slowdown_felt" in run.metrics


def configuration_changes(old: HasConfiguration, new: HasConfiguration) -> list[str]:
    """Return the changes of configuration, work and unit, old -> new."""
    then = {**old.configuration, "work per step": f"{old.work_per_step:.7g}", "unit": old.unit}
    now = {**new.configuration, "work per step": f"{new.work_per_step:.7g}", "unit": new.unit}
    changed = [name for name in dict.fromkeys([*then, *now]) if then.get(name) != now.get(name)]
    return [str(Change(name=name, old=_shown(then, name), new=_shown(now, name))) for name in changed]


def _shown(values: Mapping[str, Scalar], name: str) -> str | None:
    if name not in values:
        return None
    return f"{values[name]:g}" if isinstance(values[name], float) else str(values[name])
