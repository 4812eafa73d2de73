"""How good a baseline is: how many runs from how many sessions, how noisy, and what loss the gate can catch with it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from pytest_accel.stats.gate import (
    baseline_squares,
    count_sessions,
    interval,
    loss,
    resolution_factor,
    scale_of,
    settled,
    within_run_variance,
)
from pytest_accel.stats.quantities import counted, percent
from pytest_accel.stats.run import RECORD_RUNS, Run, spread
from pytest_accel.stats.verdict import Policy, StepTime

SESSIONS = 3  # runs of one evening resemble each other
# Of tolerance="auto": a machine that resolves less is not asked for more than anybody acts upon.
LEAST_AUTO = 0.03
NO_GATE = 0.3  # a loss that large needs none to be noticed
GRAIN = 0.005  # of a tolerance that is proposed or frozen
_RUNS_THAT_TELL = 3  # of the noise; of fewer it is said that they are few


# Of a platform's prior. A benchmark whose runs are few says too little of its variance; of few benchmarks the spread is not known.
PRIOR_BENCHMARKS = 4
PRIOR_RUNS = 3
PRIOR_NOISE_RANGE = (0.003, 0.03)
PRIOR_DEGREES_RANGE = (2.0, 6.0)
# A benchmark this many times as variable as its platform is not one of the kind that the prior describes.
CONFLICT = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisePrior:
    """Run-to-run noise to expect of a benchmark before its own runs show it: s0 and nu0 of the gate."""

    noise: float = Policy().prior_noise
    degrees_of_freedom: float = Policy().prior_degrees_of_freedom
    benchmarks: int = 0  # that it was estimated from; 0: the default

    def applied(self, policy: Policy, runs: Sequence[Run]) -> Policy:
        """Return the policy for a benchmark with these stored runs; the default where they contradict the prior.

        A prior learned from quiet benchmarks would make false alarms on a noisy one.
        """
        if len(runs) >= PRIOR_RUNS and _own_variance(runs) > CONFLICT * self.noise**2:
            return policy
        return replace(policy, prior_noise=self.noise, prior_degrees_of_freedom=self.degrees_of_freedom)


DEFAULT_PRIOR = NoisePrior()


def platform_prior(groups: Iterable[Sequence[Run]]) -> NoisePrior:
    """Estimate the prior of a platform from the stored runs of its benchmarks, one group each (empirical Bayes).

    The variances of the benchmarks are taken for draws from a scaled inverse chi-squared distribution: their median is s0
    squared, and ln(variance) spreads by trigamma(nu/2) of its own few runs and by trigamma(nu0/2) between benchmarks.
    """
    known = [runs for runs in groups if len(runs) >= PRIOR_RUNS]
    if len(known) < PRIOR_BENCHMARKS:
        return DEFAULT_PRIOR
    variances = [_own_variance(runs) for runs in known]
    noise = _clamped(math.sqrt(median(variances)), PRIOR_NOISE_RANGE)
    own_spread = median(_trigamma((len(runs) - 1) / 2) for runs in known)
    between = spread([math.log(variance) for variance in variances]) ** 2 - own_spread
    degrees = _inverse_trigamma(between) * 2 if between > 0 else math.inf
    return NoisePrior(
        noise=noise, degrees_of_freedom=_clamped(degrees, PRIOR_DEGREES_RANGE), benchmarks=len(known)
    )


def _own_variance(runs: Sequence[Run]) -> float:
    """Return the between-run variance of one benchmark, without any prior; never 0."""
    measured = baseline_squares(runs, Policy()) / (len(runs) - 1)
    return max(measured, within_run_variance(runs), PRIOR_NOISE_RANGE[0] ** 2)


def _trigamma(x: float) -> float:
    """Return the variance of ln(chi-squared / 2) with 2x degrees of freedom, to the second order in 1/x."""
    return 1 / x + 1 / (2 * x * x)


def _inverse_trigamma(y: float) -> float:
    return (1 + math.sqrt(1 + 2 * y)) / (2 * y)


def _clamped(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Of the stored runs of one benchmark."""

    runs: int
    sessions: int
    step: StepTime
    noise: float  # s of the gate: run-to-run standard deviation of ln(step time)
    resolution: float  # loss of throughput that is caught in 80 % of cases
    tolerance: float

    @property
    def provisional(self) -> str:
        """Why more should be recorded; empty where it is enough."""
        few = []
        if self.runs < RECORD_RUNS:
            few.append(f"{counted(self.runs, 'run')} of {RECORD_RUNS}")
        if self.sessions < SESSIONS:
            few.append(f"{counted(self.sessions, 'session')} of {SESSIONS}")
        return ", ".join(few)

    @property
    def too_noisy(self) -> str:
        """That the noise does not allow what the tolerance asks; empty where the gate can hold it."""
        return "too noisy for its tolerance" if self.resolution > self.tolerance else ""

    @property
    def no_gate(self) -> str:
        """That its tolerance lets everything pass but a breakdown; empty where it is one to gate by."""
        return f"no gate: {percent(self.tolerance, 0)} is tolerated" if self.tolerance > NO_GATE else ""

    @property
    def is_surely_noisy(self) -> bool:
        """Whether enough runs say so for somebody to be told unasked."""
        return bool(self.too_noisy) and self.runs >= _RUNS_THAT_TELL


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """What a recording made of tolerance="auto": it is chosen once, and moves only where somebody asks for it."""

    chosen: float  # from the runs that are stored now
    stored: float | None  # by which the benchmark is judged; None where the recording was not finished
    before: float | None = None  # what stood in the baseline

    @property
    def would_widen(self) -> bool:
        return self.before is not None and self.chosen > self.before


def auto_tolerance(runs: Sequence[Run], prior: NoisePrior = DEFAULT_PRIOR) -> float:
    """Return what tolerance="auto" is with these runs: their resolution, at least 3 %, rounded up."""
    return rounded_up(max(LEAST_AUTO, standing(runs, None, prior).resolution))


def rounded_up(loss: float) -> float:
    """The smallest tolerance that is worth writing down and holds that loss."""
    return min(round(math.ceil(round(loss / GRAIN, 6)) * GRAIN, 6), 1 - GRAIN)


def standing(runs: Sequence[Run], tolerance: float | None, prior: NoisePrior = DEFAULT_PRIOR) -> Standing:
    asked = prior.applied(Policy() if tolerance is None else Policy(tolerance=tolerance), runs)
    sessions = count_sessions(runs)
    policy, scale = settled(asked, lambda each: scale_of(runs, each))
    return Standing(
        runs=len(runs),
        sessions=sessions,
        step=interval(runs, asked),
        noise=scale.noise,
        resolution=loss(scale.noise * resolution_factor(len(runs), sessions, policy)),
        tolerance=policy.tolerance,
    )
