"""Baseline quality: runs, sessions, noise and resolution of stored runs, and the noise prior of a platform."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from pytest_accel.stats import gate
from pytest_accel.stats.gate import Policy, StepTime
from pytest_accel.stats.quantities import counted, percent
from pytest_accel.stats.run import RECORD_RUNS, Run, RunSummary, spread

MIN_SESSIONS = 3  # runs of one evening resemble each other
LEAST_AUTO = 0.03  # of tolerance="auto": a smaller loss is seldom acted upon
NO_GATE = 0.2  # a tolerance above it is no gate: a loss that large is noticed without one
GRAIN = 0.005  # of a tolerance that is proposed or frozen
_MIN_RUNS_FOR_NOISE = 3  # to report a benchmark as noisy
MOST_RESOLVED = 3.7  # times the noise is the loss that ten runs resolve

# docs/decisions/0017: with these a noisy benchmark on a quiet platform keeps the false alarms of the default prior.
PRIOR_BENCHMARKS = 4  # fewer do not show how much benchmarks differ
PRIOR_RUNS = 3  # fewer do not show the variance of a benchmark
PRIOR_NOISE_RANGE = (0.003, 0.03)
PRIOR_DEGREES_RANGE = (2.0, 6.0)
# Below this tolerance a throttled run (from 3 % on) exceeds what should be caught, and two in turn are no rare event: the
# second run decides nothing. The levels after it leave 80 % of losses of 2 % at a noise of .4 % (docs/decisions/0017).
NARROW_TOLERANCE = 0.03
NARROW_ALPHA = (0.0, 0.0, 0.015, 0.04, 0.15)
CONFLICT = 4.0  # times the prior's variance: such a benchmark keeps the default


# --- the prior of a platform ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisePrior:
    """Run-to-run noise to expect of a benchmark before its own runs show it: s0 and nu0 of the gate."""

    noise: float = Policy().prior_noise
    degrees_of_freedom: float = Policy().prior_degrees_of_freedom
    benchmarks: int = 0  # that it was estimated from; 0: the default

    def applied(self, policy: Policy, runs: Sequence[RunSummary]) -> Policy:
        """Return the policy for a benchmark with these stored runs; its noise stays where they contradict the prior.

        A prior learned from quiet benchmarks would make false alarms on a noisy one.
        """
        if self.benchmarks and policy.tolerance < NARROW_TOLERANCE and policy.max_repeats > 2:
            policy = replace(policy, alpha=NARROW_ALPHA, caps_baseline=True)
        if len(runs) >= PRIOR_RUNS and _own_variance(runs) > CONFLICT * self.noise**2:
            return policy
        return replace(
            policy,
            prior_noise=self.noise,
            prior_degrees_of_freedom=self.degrees_of_freedom,
            cap_floor=min(policy.cap_floor, self.noise),
        )


DEFAULT_PRIOR = NoisePrior()


def platform_prior(groups: Iterable[Sequence[RunSummary]]) -> NoisePrior:
    """Estimate the prior of a platform from the stored runs of its benchmarks, one group each (empirical Bayes).

    The variances of the benchmarks are draws from a scaled inverse chi-squared distribution. s0 squared is their median.
    ln(variance) spreads by trigamma(nu/2) because a benchmark has few runs, and by trigamma(nu0/2) between benchmarks.
    """
    known = [runs for runs in groups if len(runs) >= PRIOR_RUNS]
    if len(known) < PRIOR_BENCHMARKS:
        return DEFAULT_PRIOR
    variances = [_own_variance(runs) for runs in known]
    halves = [(len(runs) - 1) / 2 for runs in known]
    # Trigamma and its inverse to the second order.
    own_spread = median(1 / half + 1 / (2 * half * half) for half in halves)
    between = spread([math.log(variance) for variance in variances]) ** 2 - own_spread
    degrees = 2 * ((1 + math.sqrt(1 + 2 * between)) / (2 * between)) if between > 0 else math.inf
    return NoisePrior(
        noise=_clamped(math.sqrt(median(variances)), PRIOR_NOISE_RANGE),
        degrees_of_freedom=_clamped(degrees, PRIOR_DEGREES_RANGE),
        benchmarks=len(known),
    )


def _own_variance(runs: Sequence[RunSummary]) -> float:
    """Return the between-run variance of one benchmark without any prior; never 0."""
    measured = gate.baseline_squares(runs, Policy()) / (len(runs) - 1)
    return max(measured, gate.within_run_variance(runs), 1e-12)


def _clamped(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])


# --- the quality of one baseline --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineQuality:
    """Number, noise and resolution of the stored runs of one benchmark."""

    runs: int
    sessions: int
    step: StepTime
    noise: float  # s of the gate: run-to-run standard deviation of ln(step time)
    resolution: float  # loss of throughput that is caught in 80 % of cases
    tolerance: float

    @property
    def provisional(self) -> str:
        """Why more should be recorded; empty where it is enough."""
        counts = ((self.runs, "run", RECORD_RUNS), (self.sessions, "session", MIN_SESSIONS))
        return ", ".join(
            f"{counted(found, noun)} of {least}" for found, noun, least in counts if found < least
        )

    @property
    def too_noisy(self) -> str:
        """A remark where the resolution is worse than the tolerance, else empty."""
        return "too noisy for its tolerance" if self.resolution > self.tolerance else ""

    @property
    def no_gate(self) -> str:
        """A remark where the tolerance catches nothing but a breakdown, else empty."""
        return f"no gate: {percent(self.tolerance)} is tolerated" if self.tolerance > NO_GATE else ""

    @property
    def is_surely_noisy(self) -> bool:
        """Whether there are enough runs to warn of the noise, and ten would not resolve the tolerance."""
        return self.runs >= _MIN_RUNS_FOR_NOISE and MOST_RESOLVED * self.noise > self.tolerance


def baseline_quality(
    runs: Sequence[Run], tolerance: float | None, prior: NoisePrior = DEFAULT_PRIOR
) -> BaselineQuality:
    wanted = prior.applied(Policy() if tolerance is None else Policy(tolerance=tolerance), runs)
    sessions = gate.count_sessions(runs)
    policy, scale = gate.resolve_policy(wanted, runs)
    return BaselineQuality(
        runs=len(runs),
        sessions=sessions,
        step=gate.interval(runs, wanted),
        noise=scale.noise,
        resolution=gate.loss(scale.noise * gate.resolution_factor(len(runs), sessions, policy)),
        tolerance=policy.tolerance,
    )


def auto_tolerance(runs: Sequence[Run], prior: NoisePrior = DEFAULT_PRIOR) -> float:
    """Return what tolerance="auto" is with these runs: their resolution, at least 3 %, rounded up."""
    return rounded_up(max(LEAST_AUTO, baseline_quality(runs, None, prior).resolution))


def rounded_up(loss: float) -> float:
    """Return the smallest multiple of GRAIN that is at least this loss."""
    return min(round(math.ceil(round(loss / GRAIN, 6)) * GRAIN, 6), 1 - GRAIN)
