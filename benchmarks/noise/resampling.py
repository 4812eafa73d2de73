"""What rules say of a stream's runs, drawn many times into baselines and candidates: pure functions.

Draws share runs, so that they are not independent: they say what these runs would have come to, and thirty runs
remain thirty.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev

from pytest_accel.stats.gate import (
    Scale,
    baseline_squares,
    centre,
    judge,
    loss,
    policy_at_noise,
    resolution_factor,
    resolve_policy,
    within_run_variance,
)
from pytest_accel.stats.run import RECORD_RUNS, Run
from pytest_accel.stats.verdict import Outcome, Policy, Verdict

POLICY = Policy()
SLOWDOWNS = (0.025, 0.05, 0.075, 0.1)  # losses of throughput
THRESHOLD = 0.05  # of mean:5% and min:5%
DRAWS = 1600  # without a slowdown: alarms are rare there
SLOW_DRAWS = 400
FEWEST_LOOKS = 2  # one run alone never regresses

# Places of the runs of a baseline, and of a candidate with all runs that it may come to need.
Draw = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What came of the draws of one cell."""

    draws: int
    gate: int  # that the gate called regressed
    undecided: int  # that it left open, or for which the stream had no further run
    mean: int  # that mean:5% would have failed
    minimum: int  # that min:5% would have failed
    processes: float  # of the candidate that the gate used, on average

    @property
    def gate_rate(self) -> float:
        return self.gate / self.draws

    @property
    def mean_rate(self) -> float:
        return self.mean / self.draws

    @property
    def minimum_rate(self) -> float:
        return self.minimum / self.draws

    @property
    def undecided_rate(self) -> float:
        return self.undecided / self.draws


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How noisy a stream is, and what the gate promises at such noise."""

    runs: int
    between: float  # standard deviation of ln(step time) from run to run
    resolution: float  # the loss that is caught in 80 % of cases, from five runs of one session


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept(Run):
    """A run that remembers its summary: it is asked thousands of times, and stays the same.

    `kept` asks `Run` for it, so that another estimator there is another one here.
    """

    summary: float
    standard_error: float


def kept(run: Run, factor: float = 1.0) -> Kept:
    """The run with all its rounds longer by that factor."""
    plain = Run(
        session=run.session,
        rounds_s=tuple(factor * each for each in run.rounds_s),
        steps_per_round=run.steps_per_round,
    )
    return Kept(
        session=plain.session,
        rounds_s=plain.rounds_s,
        steps_per_round=plain.steps_per_round,
        summary=plain.summary,
        standard_error=plain.standard_error,
    )


def slowed(runs: Iterable[Run], slowdown: float) -> list[Kept]:
    """Runs as they would be with a throughput lower by that fraction, which is what --accel-slowdown injects."""
    return [kept(run, 1 / (1 - slowdown)) for run in runs]


def lost(quiet: Sequence[Run], slow: Sequence[Run]) -> float:
    """The loss of throughput that injected runs really show: a device may give some of a delay back."""
    return loss(centre([run.summary for run in slow]) - centre([run.summary for run in quiet]))


def noise_of(runs: Sequence[Run], policy: Policy = POLICY) -> Noise:
    degrees = len(runs) - 1

    def scale_under(policy: Policy) -> Scale:
        variance = max(baseline_squares(runs, policy) / degrees, within_run_variance(runs))
        return Scale(noise=math.sqrt(variance), degrees_of_freedom=degrees)

    # At what the gate will take the noise for: its prior of s0 counts for nu0 of its degrees of freedom.
    own = resolve_policy(policy, scale_under)[1].noise
    measured, prior = (RECORD_RUNS - 1) + (policy.max_repeats - 1), policy.prior_degrees_of_freedom
    seen = math.sqrt((prior * policy.prior_noise**2 + measured * own**2) / (prior + measured))
    return Noise(
        runs=len(runs),
        between=stdev(run.summary for run in runs),
        resolution=loss(seen * resolution_factor(RECORD_RUNS, 1, policy_at_noise(policy, seen))),
    )


# --- drawing ----------------------------------------------------------------------------------------


def scattered(
    quiet: int, injected: int | None = None, *, draws: int, seed: int, policy: Policy = POLICY
) -> Iterator[Draw]:
    """Baselines from anywhere among so many quiet runs, candidates from the others of them, never from the same.

    With a number of `injected` runs candidates are drawn from those: as many as there are, up to all looks. Nothing where
    runs are too few.
    """
    chance = random.Random(seed)  # noqa: S311 - repeatable, and no secret
    looks = min(policy.max_repeats, quiet - RECORD_RUNS if injected is None else injected)
    if looks < FEWEST_LOOKS or quiet < RECORD_RUNS:
        return
    for _ in range(draws):
        if injected is None:
            drawn = chance.sample(range(quiet), RECORD_RUNS + looks)
            yield drawn[:RECORD_RUNS], drawn[RECORD_RUNS:]
        else:
            yield chance.sample(range(quiet), RECORD_RUNS), chance.sample(range(injected), looks)


def consecutive(quiet: Sequence[Run], *, policy: Policy = POLICY) -> Iterator[Draw]:
    """Every baseline of neighbours in time with every candidate of neighbours that comes later.

    Neighbours resemble each other and what is far apart drifted: scattered draws average that away. They are of one session,
    as those are that one command records, or that one verdict asks for.
    """
    baselines, candidates = (
        [
            range(first, first + count)
            for first in range(len(quiet) - count + 1)
            if len({run.session for run in quiet[first : first + count]}) == 1
        ]
        for count in (RECORD_RUNS, policy.max_repeats)
    )
    for baseline in baselines:
        for candidate in candidates:
            if candidate.start >= baseline.stop:
                yield baseline, candidate


# --- judging ----------------------------------------------------------------------------------------


def judge_in_turn(baseline: Sequence[Run], candidate: Sequence[Run], policy: Policy = POLICY) -> Verdict:
    """Ask after each run, as a session does, until no further one is wanted or there is none."""
    verdict = judge(baseline, candidate[:1], policy)
    while verdict.wants_another_run and verdict.runs < len(candidate):
        verdict = judge(baseline, candidate[: verdict.runs + 1], policy)
    return verdict


def tally(
    quiet: Sequence[Run], candidates: Sequence[Run], draws: Iterable[Draw], policy: Policy = POLICY
) -> Tally | None:
    """Count what the rules say of candidates against baselines of quiet runs; None where there was nothing to draw.

    pytest-benchmark compares one run with one: the candidate's first with the latest of the baseline.
    """
    count = gate = undecided = mean = minimum = processes = 0
    for old, new in draws:
        baseline, candidate = [quiet[place] for place in old], [candidates[place] for place in new]
        verdict = judge_in_turn(baseline, candidate, policy)
        count += 1
        processes += verdict.runs
        gate += verdict.outcome is Outcome.REGRESSED
        undecided += verdict.outcome is Outcome.INCONCLUSIVE
        old_s, new_s = baseline[-1].rounds_s, candidate[0].rounds_s
        mean += fmean(new_s) > (1 + THRESHOLD) * fmean(old_s)
        minimum += min(new_s) > (1 + THRESHOLD) * min(old_s)
    if not count:
        return None
    return Tally(
        draws=count,
        gate=gate,
        undecided=undecided,
        mean=mean,
        minimum=minimum,
        processes=processes / count,
    )


def drift(runs: Sequence[Run]) -> float:
    """How much slower the second half of the runs was than the first, in ln(step time)."""
    half = len(runs) // 2
    return centre([run.summary for run in runs[half:]]) - centre([run.summary for run in runs[:half]])


def neighbours(runs: Sequence[Run]) -> float:
    """Correlation of a run with the next: 0 where runs are independent, towards 1 where neighbours resemble each other."""
    values = [run.summary for run in runs]
    mean = fmean(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    products = math.fsum((a - mean) * (b - mean) for a, b in pairwise(values))
    return products / squares if squares else 0.0


# --- a whole stream ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A stream under one slowdown; None where the stream has no runs for it."""

    slowdown: float
    scaled: Tally | None  # quiet runs, slower by exactly that factor
    consecutive: Tally | None  # the same, baselines and candidates of neighbours in time
    injected: Tally | None = None  # runs that really were slower
    injected_runs: int = 0
    lost: float | None = None  # what those really lost, on the median


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All that is said of one stream."""

    noise: Noise
    drift: float
    neighbours: float
    cells: tuple[Cell, ...]  # no slowdown first

    @property
    def quiet(self) -> Cell:
        return self.cells[0]

    def at(self, slowdown: float) -> Cell:
        return next(cell for cell in self.cells if cell.slowdown == slowdown)


def figures_of(
    quiet: Sequence[Run],
    injected: Mapping[float, Sequence[Run]],
    *,
    draws: int = DRAWS,
    slow_draws: int = SLOW_DRAWS,
    seed: int = 1,
    policy: Policy = POLICY,
) -> Figures:
    """Of quiet runs in the order of measuring, and of injected ones by their slowdown. The same seed, the same answer."""
    if len(quiet) < RECORD_RUNS + FEWEST_LOOKS:
        raise ValueError(
            f"{len(quiet)} runs without a slowdown are too few to draw a baseline of {RECORD_RUNS} and a candidate of "
            f"{FEWEST_LOOKS} from. Gather at least {RECORD_RUNS + FEWEST_LOOKS}, better 30."
        )
    runs = [kept(run) for run in quiet]
    slow = {slowdown: [kept(run) for run in each] for slowdown, each in injected.items()}
    cells = []
    for slowdown in (0.0, *sorted({*SLOWDOWNS, *slow})):
        count = slow_draws if slowdown else draws
        candidates = slowed(runs, slowdown)
        real = slow.get(slowdown, [])
        drawn = scattered(len(runs), draws=count, seed=seed, policy=policy)
        drawn_real = scattered(len(runs), len(real), draws=count, seed=seed, policy=policy)
        cells.append(
            Cell(
                slowdown=slowdown,
                scaled=tally(runs, candidates, drawn, policy),
                consecutive=tally(runs, candidates, consecutive(runs, policy=policy), policy),
                injected=tally(runs, real, drawn_real, policy),
                injected_runs=len(real),
                lost=lost(runs, real) if real else None,
            )
        )
    return Figures(
        noise=noise_of(runs, policy), drift=drift(runs), neighbours=neighbours(runs), cells=tuple(cells)
    )
