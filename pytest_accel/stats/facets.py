"""Gated figures beside throughput, such as an accuracy or energy: each is judged by the same gate, and the worst decides."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_accel.stats.gate import judge
from pytest_accel.stats.metrics import less_is_better
from pytest_accel.stats.verdict import Estimate, Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_accel.stats.runs import Run
    from pytest_accel.stats.verdict import Policy

_LEAST_KEPT = (
    2.0**-53
)  # of 1: a loss that rounds to all of it is an increase beyond counting, and still a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    """One gated metric of a benchmark, judged."""

    name: str
    verdict: Verdict

    @property
    def was_judged(self) -> bool:
        """Whether the baseline had something to compare with."""
        return self.verdict.outcome is not Outcome.NO_BASELINE


def judge_metrics(
    baseline: Sequence[Run], runs: Sequence[Run], gates: Mapping[str, float], policy: Policy
) -> tuple[Facet, ...]:
    """Judge each gated metric with its own tolerance and the policy otherwise as it is, in the order of `gates`.

    The tolerance is a loss of the metric, or its increase where less of it is better.
    """
    return tuple(
        Facet(name=name, verdict=_judged(name, baseline, runs, tolerance, policy))
        for name, tolerance in gates.items()
    )


def worst(throughput: Verdict, facets: Sequence[Facet]) -> Outcome:
    """What all together say: anything regressed, else anything open, else what the throughput says.

    A metric alone improves nothing, and one that its baseline does not know decides nothing.
    """
    outcomes = [throughput.outcome, *(facet.verdict.outcome for facet in facets)]
    for outcome in (Outcome.REGRESSED, Outcome.INCONCLUSIVE):
        if outcome in outcomes:
            return outcome
    return throughput.outcome


def want_another_run(throughput: Verdict, facets: Sequence[Facet]) -> bool:
    """Whether any question is open that one more run could answer; a regression ends all of them."""
    if worst(throughput, facets) is Outcome.REGRESSED:
        return False
    return any(verdict.wants_another_run for verdict in (throughput, *(facet.verdict for facet in facets)))


def is_gateable(value: float) -> bool:
    """Positive, and so is its reciprocal, as a number: the gate works on logarithms."""
    return value > 0 and math.isfinite(value) and math.isfinite(1 / value)


def _judged(
    name: str, baseline: Sequence[Run], runs: Sequence[Run], tolerance: float, policy: Policy
) -> Verdict:
    stored = _as_times(baseline, name)
    if not stored:
        return Verdict(
            outcome=Outcome.NO_BASELINE,
            tolerance=tolerance,
            looks=len(runs),
            reason="no stored run has it above zero, so that it was not judged; add runs that do with --accel-record",
            of=name,
        )
    # An increase by r is the loss r/(1+r) of what it buys: delta is then ln(1+r).
    lost = tolerance / (1 + tolerance) if less_is_better(name) else tolerance
    found = judge(stored, _as_times(runs, name), replace(policy, tolerance=lost), slows_alone=False)
    told = _as_increases(found) if less_is_better(name) else found
    return replace(told, of=name, tolerance=tolerance)


def _as_increases(verdict: Verdict) -> Verdict:
    found, resolution = verdict.slowdown, verdict.resolution
    return replace(
        verdict,
        slowdown=found
        and Estimate(point=_increase(found.point), low=_increase(found.low), high=_increase(found.high)),
        resolution=None if resolution is None else _increase(resolution),
    )


def _increase(loss: float) -> float:
    """From 1 - exp(-d) to exp(d) - 1."""
    return loss / max(1 - loss, _LEAST_KEPT)


def _as_times(runs: Sequence[Run], name: str) -> list[Run]:
    """The runs that measured a metric q, each with one round in place of its step times: of q where less is better.

    Where more is, of 1/q: the summary is then -ln q, and a lower metric a slower run.
    """
    is_time = less_is_better(name)
    return [
        replace(run, rounds_s=(value if is_time else 1 / value,), steps_per_round=1)
        for run in runs
        if is_gateable(value := run.metrics.get(name, 0.0))
    ]
