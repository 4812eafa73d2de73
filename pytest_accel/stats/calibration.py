"""What A/A runs say of a machine: how noisy it is, which loss the gate can catch there, how often it cries wolf."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from pytest_accel.stats.gate import (
    Scale,
    baseline_squares,
    count_sessions,
    in_noise,
    judge,
    loss,
    require_usable,
    resolution_factor,
    settled,
    within_run_variance,
)
from pytest_accel.stats.runs import FEWEST_CALIBRATION_RUNS, RECORD_RUNS, Run
from pytest_accel.stats.standing import SESSIONS
from pytest_accel.stats.verdict import Outcome, Policy, Verdict

DRAWS = 1000
# One run alone never regresses (alpha of the first look is 0), so that with fewer there is no false alarm to count.
FEWEST_CANDIDATES = 2
MEAN_RULE = 0.05  # of pytest-benchmark's --benchmark-compare-fail=mean:5%


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseAlarms:
    """What rules say of runs of one code against others of the same; every alarm is a false one.

    Draws share runs and so are not independent: they say what these runs would have come to.
    """

    draws: int
    looks: int  # runs that a draw had for its candidate
    gate: int  # draws that the gate called regressed
    undecided: int  # draws that it could not decide with that many looks
    mean: int  # draws that mean:5% would have failed

    @property
    def ok(self) -> int:
        """Draws that it decided, and rightly."""
        return self.draws - self.gate - self.undecided


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a session shares with a calibration that binds it: under others the noise is another one."""

    budget_s: float  # of the rounds of one run
    threads: int  # of a benchmark on the CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Of the A/A runs of one benchmark."""

    runs: int
    sessions: int
    noise: float  # run-to-run standard deviation of ln(step time), as measured: no prior in it
    detectable_loss: float  # of throughput; caught in 80 % of cases with the smallest good baseline
    tolerance: float  # that the draws were judged by
    false_alarms: FalseAlarms | None = None  # None: too few runs to draw from


def calibrate(
    runs: Sequence[Run], tolerance: float | None = None, *, draws: int = DRAWS, seed: int = 0
) -> Calibration:
    """Of runs in the order in which they were measured; the same runs and seed give the same answer."""
    require_usable("calibration", runs)
    if len(runs) < FEWEST_CALIBRATION_RUNS:
        raise ValueError(
            f"{len(runs)} runs do not tell the noise. Calibrate with at least {FEWEST_CALIBRATION_RUNS}."
        )
    policy = Policy() if tolerance is None else Policy(tolerance=tolerance)
    noise = measured_noise(runs, policy)
    return Calibration(
        runs=len(runs),
        sessions=count_sessions(runs),
        noise=noise,
        detectable_loss=detectable_loss(noise, policy),
        tolerance=policy.tolerance,
        false_alarms=false_alarms(runs, policy, draws=draws, seed=seed),
    )


def measured_noise(runs: Sequence[Run], policy: Policy) -> float:
    """s of the gate without its prior: slow runs capped, one session scaled up, never below what rounds show."""
    degrees = len(runs) - 1

    def scale_under(policy: Policy) -> Scale:
        variance = max(baseline_squares(runs, policy) / degrees, within_run_variance(runs))
        return Scale(noise=math.sqrt(variance), degrees_of_freedom=degrees)

    return settled(policy, scale_under)[1].noise


def detectable_beside(found: Calibration, stored: Sequence[Run]) -> float:
    """As calibrated; or less, where the stored baseline has more runs than the figure is for."""
    if not stored:
        return found.detectable_loss
    with_these = detectable_loss(
        found.noise, Policy(), baseline_runs=len(stored), sessions=count_sessions(stored)
    )
    return min(found.detectable_loss, with_these)


def detectable_loss(
    noise: float, policy: Policy, *, baseline_runs: int = RECORD_RUNS, sessions: int = SESSIONS
) -> float:
    """The loss that the gate catches in 80 % of cases at this noise, from such a baseline and all of its looks.

    At what the gate will take the noise for: its prior of s0 counts for nu0 of its degrees of freedom. Without
    that, a machine of .3 % would be promised 1.3 %, of which the gate catches 22 % (400 simulated baselines).
    """
    measured = (baseline_runs - 1) + (policy.max_looks - 1)
    prior = policy.prior_degrees_of_freedom
    seen = math.sqrt((prior * policy.prior_noise**2 + measured * noise**2) / (prior + measured))
    return loss(seen * resolution_factor(baseline_runs, sessions, in_noise(policy, seen)))


# --- false alarms -----------------------------------------------------------------------------------


def false_alarms(
    runs: Sequence[Run], policy: Policy, *, draws: int = DRAWS, seed: int = 0
) -> FalseAlarms | None:
    """Judge some of the runs against others of them, many times; None where there are too few."""
    looks = min(policy.max_looks, len(runs) - RECORD_RUNS)
    if looks < FEWEST_CANDIDATES:
        return None
    verdicts, mean_alarms = [], 0
    for baseline, candidate in _splits(runs, looks, draws, seed):
        verdicts.append(_judge_in_turn(baseline, candidate, policy))
        mean_alarms += fmean(candidate[0].rounds_s) > (1 + MEAN_RULE) * fmean(baseline[-1].rounds_s)
    return FalseAlarms(
        draws=len(verdicts),
        looks=looks,
        gate=sum(verdict.outcome is Outcome.REGRESSED for verdict in verdicts),
        undecided=sum(verdict.outcome is Outcome.INCONCLUSIVE for verdict in verdicts),
        mean=mean_alarms,
    )


Split = tuple[list[Run], list[Run]]  # a baseline, a candidate


def _splits(runs: Sequence[Run], looks: int, draws: int, seed: int) -> Iterable[Split]:
    """Every way to split them where there are few, else that many at random; both sides as they were measured."""
    count = math.comb(len(runs), RECORD_RUNS) * math.comb(len(runs) - RECORD_RUNS, looks)
    return _all_splits(runs, looks) if count <= draws else _some_splits(runs, looks, draws, seed)


def _all_splits(runs: Sequence[Run], looks: int) -> Iterable[Split]:
    every = range(len(runs))
    for chosen in combinations(every, RECORD_RUNS):
        for others in combinations([at for at in every if at not in chosen], looks):
            yield [runs[at] for at in chosen], [runs[at] for at in others]


def _some_splits(runs: Sequence[Run], looks: int, draws: int, seed: int) -> Iterable[Split]:
    chance = random.Random(seed)  # noqa: S311 - repeatable, and no secret
    for _ in range(draws):
        drawn = chance.sample(range(len(runs)), RECORD_RUNS + looks)
        chosen, others = sorted(drawn[:RECORD_RUNS]), sorted(drawn[RECORD_RUNS:])
        yield [runs[at] for at in chosen], [runs[at] for at in others]


def _judge_in_turn(baseline: Sequence[Run], candidate: Sequence[Run], policy: Policy) -> Verdict:
    """Ask after each run, as a session does, until no further one is wanted or there is none."""
    verdict = judge(baseline, candidate[:1], policy)
    while verdict.wants_another_run and verdict.looks < len(candidate):
        verdict = judge(baseline, candidate[: verdict.looks + 1], policy)
    return verdict
