"""The regression gate: runs of a candidate judged against the runs of a baseline; outcomes, policy, verdicts.

All quantities are in y = ln(step time), where d > 0 is slower. Variance between processes dominates on accelerators, so a
run is one observation, whatever the number of its rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import combinations_with_replacement
from statistics import fmean, median

from pytest_accel.stats.run import RunSummary

THROUGHPUT = "throughput"  # `Verdict.of` where no metric is named


class Outcome(Enum):
    """Verdicts of the gate; report/verdicts.py holds the word, effect and explanation of each."""

    REGRESSED = "regressed"  # worse by more than half the tolerance, beyond noise, in all of two runs or more
    UNSTABLE = "unstable"  # some runs are slower by more than the tolerance, the others are not; the baseline's agree
    OK = "ok"  # worse by less than the tolerance
    IMPROVED = "improved"  # better by more than half the tolerance, beyond noise
    INCONCLUSIVE = "inconclusive"  # undecided after all repeats: too much noise, or runs that disagree
    INVALID = "invalid"  # the runs were disturbed
    NO_BASELINE = "no-baseline"  # nothing is stored for it on this platform
    STALE_BASELINE = "stale-baseline"  # the stored runs are of another configuration or machine
    DOES_NOT_FIT = "does-not-fit"  # its batch is larger than the device's memory
    VANISHED = "vanished"  # stored in the baseline, and not found


LOSSES = frozenset({Outcome.REGRESSED, Outcome.UNSTABLE})  # that the gate is sure of


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Tolerance and error levels of the gate.

    The defaults were tuned on the stream model of `benchmarks/noise/model.py`; `make study` checks them.
    """

    tolerance: float = 0.05  # tolerated loss of throughput; a loss of this size should be caught
    max_repeats: int = 5  # runs of the candidate, the first included
    least_runs: int = 1  # before ok is said; more where the history gives reason to doubt a single run
    # One-sided levels of `regressed` after repeat 1, 2, ...; 0 is never: a single run may be throttled.
    alpha: tuple[float, ...] = (0.0, 0.005, 0.01, 0.02, 0.05)
    beta: tuple[float, ...] = (0.02, 0.02, 0.03, 0.05, 0.10)  # the same for `ok`
    improved_level: float = 0.01
    # Times the tolerance: stored runs that resolve no less may leave a verdict open at once.
    undecidable_resolution: float = 3.0
    # Prior of the run-to-run noise: two processes of one code differ by .3 to 3 % (H200, ResNet-50: .4 %).
    prior_noise: float = 0.01  # s0, of ln(step time)
    prior_degrees_of_freedom: float = 3.0  # nu0: five measured runs outweigh it
    session_correlation: float = 0.2  # rho: processes of one session share clocks and temperature
    # Between these noises rho grows to `drifting_correlation`: such a machine changes its speed for minutes at a time.
    drifting_noise: tuple[float, float] = (0.04, 0.08)
    drifting_correlation: float = 0.5  # five streams of shared CPUs, of 10 to 25 % noise, had .41 to .58
    # Throttled processes are slow, hardly ever fast: the fast side bounds how far slow runs count.
    cap_reach: float = 2.0
    cap_floor: float = 0.01  # least distance of the cap from the median, of ln(step time)
    caps_baseline: bool = False  # for its centre too, below a tolerance of 3 % (docs/decisions/0017)
    # A loss that throttling reaches: beyond it two slow runs among others are a mode of the code, below it three.
    deepest_throttle: float = 0.10
    group_baseline_runs: int = 3  # fewer do not show whether the baseline has a slow mode

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance: {self.tolerance!r} is not a fraction between 0 and 1. Write 0.05.")
        if not 1 <= self.max_repeats <= min(len(self.alpha), len(self.beta)):
            raise ValueError(f"max_repeats: {self.max_repeats!r} is not one of 1 to {len(self.alpha)}.")

    @property
    def delta(self) -> float:
        """The tolerance as a difference of ln(step time)."""
        return -math.log1p(-self.tolerance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A point with its bounds, not rounded."""

    point: float
    low: float
    high: float

    def mapped(self, convert: Callable[[float], float]) -> Estimate:
        return Estimate(point=convert(self.point), low=convert(self.low), high=convert(self.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Step time of a group of runs with its 95 % interval, which is symmetric as a ratio."""

    point_s: float
    low_s: float
    high_s: float

    @property
    def relative_high(self) -> float:
        """The x of "± x %": of step time and of throughput alike, on its wider side."""
        return self.high_s / self.point_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowGroup:
    """Runs of the candidate that are slow while its others are not, as losses of throughput against the baseline."""

    runs: int
    loss: float  # of their centre
    least_loss: float  # of the fastest of them
    others_loss: float  # of the centre of the other runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict on the throughput or on one gated metric of a benchmark.

    Fractions are losses of throughput, 1 - exp(-d): above 0 is slower. Of a metric where less is better (energy, latency;
    `less_is_better`) they are increases, exp(d) - 1: `slowdown`, `resolution` and `tolerance` alike.

    The bounds of `slowdown` are those of the tests that decided, so that a printed bound agrees with the outcome: `low` at alpha
    of the repeat, of the first at its beta, for throughput never more than the fastest run lost; `high` at beta of the repeat,
    for `improved` at the level of that test.
    """

    outcome: Outcome
    tolerance: float
    slowdown: Estimate | None = None  # None where nothing was compared
    noise: float | None = None  # run-to-run standard deviation of ln(step time)
    resolution: float | None = None  # loss caught in about 80 % of cases after the last repeat, at this noise
    runs: int = 0  # K, of the candidate
    baseline_runs: int = 0  # R
    wants_another_run: bool = False  # undecided, and another run may decide
    # Undecided, and at the noise of the stored runs even the last repeat would hardly decide.
    undecidable: bool = False
    reason: str = ""  # for outcomes that are not statistical
    of: str = THROUGHPUT  # or the name of a metric
    common: float = 0.0  # loss that all benchmarks of the platform share, removed before judging
    slow_group: SlowGroup | None = None  # where the runs fall into two groups, which the baseline's do not

    @property
    def was_judged(self) -> bool:
        """Whether the baseline had something to compare with."""
        return self.outcome is not Outcome.NO_BASELINE


# --- differences and their scale --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Run-to-run standard deviation s of ln(step time), with its degrees of freedom nu."""

    noise: float
    degrees_of_freedom: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Candidate minus baseline in ln(step time), after repeat K."""

    d: float
    se: float
    degrees_of_freedom: float
    repeat: int
    least_lost: float = math.inf  # by the fastest run of the candidate; inf: not considered

    def at_least(self, level: float) -> float:
        """Return the lower bound of d, never more than the fastest run lost."""
        return min(self.least_lost, self.d - t_quantile(level, self.degrees_of_freedom) * self.se)

    def at_most(self, level: float) -> float:
        return self.d + t_quantile(level, self.degrees_of_freedom) * self.se


# --- the verdict ------------------------------------------------------------------------------------


def judge(
    baseline: Sequence[RunSummary],
    candidate: Sequence[RunSummary],
    policy: Policy,
    *,
    noise_only_slows: bool = True,
) -> Verdict:
    """Judge the candidate after repeat K, the number of its runs so far.

    Noise makes step times slow and hardly ever fast (`noise_only_slows`): one fast run then shows that the code can be fast.
    Runs beyond the last repeat are used at its levels; none is ever requested.
    """
    runs, repeats, sessions, asked = len(baseline), len(candidate), count_sessions(baseline), policy
    policy, scale = resolve_policy(policy, baseline, candidate)
    before, times = baseline_centre(baseline, policy), sorted(summaries(candidate))
    # The fastest run; of more than `max_repeats` the second, and so on: one of many is fast by chance.
    fastest = times[(repeats - 1) // policy.max_repeats]
    difference = Difference(
        d=centre(times) - before,
        se=scale.noise * unit_standard_error(runs, sessions, repeats, policy),
        degrees_of_freedom=scale.degrees_of_freedom,
        repeat=repeats,
        least_lost=fastest - before if noise_only_slows else math.inf,
    )
    group = find_slow_group(baseline, candidate, policy) if noise_only_slows else None
    outcome = unstable_or(decide(difference, policy), group, policy)
    if outcome is Outcome.OK and repeats < min(policy.least_runs, policy.max_repeats):
        outcome = Outcome.INCONCLUSIVE
    wanted = repeats < policy.max_repeats and is_open(outcome, difference, group, policy)
    undecidable = wanted and outcome is Outcome.INCONCLUSIVE and is_undecidable(baseline, difference, asked)
    return Verdict(
        outcome=outcome,
        tolerance=policy.tolerance,
        slowdown=slowdown(difference, outcome, policy),
        noise=scale.noise,
        resolution=loss(scale.noise * resolution_factor(runs, sessions, policy)),
        runs=repeats,
        baseline_runs=runs,
        wants_another_run=wanted and not undecidable,
        undecidable=undecidable,
        slow_group=group,
    )


def decide(difference: Difference, policy: Policy) -> Outcome:
    """Return the outcome of d after this repeat; a loss of delta should be caught, one of delta/2 should not fail.

    Where se is so small that both tests hold (d between delta/2 and delta), regressed wins.
    """
    alpha, beta = levels(difference.repeat, policy)
    if alpha > 0 and difference.at_least(alpha) > policy.delta / 2:
        return Outcome.REGRESSED
    if difference.repeat >= 2 and is_faster(difference, policy):
        return Outcome.IMPROVED
    if difference.at_most(beta) < policy.delta:
        return Outcome.OK
    return Outcome.INCONCLUSIVE


def is_open(outcome: Outcome, difference: Difference, group: SlowGroup | None, policy: Policy) -> bool:
    """Return whether another run could change the outcome.

    A first run that is clearly faster is ok, and one more run decides whether it is improved.
    """
    first_and_faster = outcome is Outcome.OK and difference.repeat == 1 and is_faster(difference, policy)
    return outcome is Outcome.INCONCLUSIVE or first_and_faster or is_unconfirmed(outcome, group, policy)


def find_slow_group(
    baseline: Sequence[RunSummary], candidate: Sequence[RunSummary], policy: Policy
) -> SlowGroup | None:
    """Return the candidate's slow runs where they stand apart from its others; None where they do not.

    A slow run lost more than the tolerance. Fewer than three stored runs, and five of a noisier machine, miss its slow ones. The gap
    below the slow runs is wider than the spreads of the others and of the baseline together: slowing all alike never closes it.
    """
    policy, scale = resolve_policy(policy, baseline)
    if len(baseline) < policy.group_baseline_runs or scale.noise > policy.delta / 2:
        return None
    before = baseline_centre(baseline, policy)
    lost, stored = ([y - before for y in sorted(summaries(runs))] for runs in (candidate, baseline))
    for count in range(1, len(lost)):
        others, slow = lost[:count], lost[count:]
        spread = (others[-1] - others[0]) + (stored[-1] - stored[0])
        if slow[0] > policy.delta and slow[0] - max(others[-1], stored[-1]) > spread:
            return SlowGroup(
                runs=len(slow),
                loss=loss(centre(slow)),
                least_loss=loss(slow[0]),
                others_loss=loss(centre(others)),
            )
    return None


def unstable_or(outcome: Outcome, group: SlowGroup | None, policy: Policy) -> Outcome:
    """Return UNSTABLE where the slow runs are too many for chance, else the outcome.

    Throttling makes two of five runs slow by chance, three hardly ever, and none by more than its own depth.
    """
    if group is None or outcome is Outcome.REGRESSED:
        return outcome
    enough = 2 if group.least_loss > policy.deepest_throttle else 3
    return Outcome.UNSTABLE if group.runs >= enough else outcome


def is_unconfirmed(outcome: Outcome, group: SlowGroup | None, policy: Policy) -> bool:
    """Return whether ok needs another run: one was slower than throttling makes it."""
    is_slow = group is not None and group.least_loss > policy.deepest_throttle
    return is_slow and outcome in {Outcome.OK, Outcome.IMPROVED}


def is_undecidable(baseline: Sequence[RunSummary], difference: Difference, policy: Policy) -> bool:
    """Return whether even the last repeat would hardly decide, at the noise of the stored runs.

    Not at that of the candidate's: one of them may be wild. The further runs may move d by one standard deviation of what
    they add; a loss or a gain that would then be decided is repeated at any noise.
    """
    runs, sessions, last = len(baseline), count_sessions(baseline), policy.max_repeats
    policy, scale = resolve_policy(policy, baseline)
    resolution = loss(scale.noise * resolution_factor(runs, sessions, policy))
    if resolution <= policy.undecidable_resolution * policy.tolerance:
        return False
    now, then = (inflation(n) / effective_runs(n, 1, policy) for n in (difference.repeat, last))
    move = scale.noise * math.sqrt(max(now - then, 0.0))
    slower, faster = (
        replace(
            difference,
            d=difference.d + moved,
            se=scale.noise * unit_standard_error(runs, sessions, last, policy),
            degrees_of_freedom=scale.degrees_of_freedom + last - 1,
            repeat=last,
        )
        for moved in (move, -move)
    )
    return decide(slower, policy) is not Outcome.REGRESSED and decide(faster, policy) is Outcome.INCONCLUSIVE


def is_faster(difference: Difference, policy: Policy) -> bool:
    return difference.at_most(policy.improved_level) < -policy.delta / 2


def slowdown(difference: Difference, outcome: Outcome, policy: Policy) -> Estimate:
    """Return d as a loss of throughput, with the bounds that `Verdict` documents."""
    alpha, beta = levels(difference.repeat, policy)
    upper = policy.improved_level if outcome is Outcome.IMPROVED else beta
    return Estimate(
        point=loss(difference.d),
        low=loss(difference.at_least(alpha or beta)),
        high=loss(difference.at_most(upper)),
    )


def levels(repeat: int, policy: Policy) -> tuple[float, float]:
    """Return alpha and beta of this repeat."""
    index = min(repeat, policy.max_repeats) - 1
    return policy.alpha[index], policy.beta[index]


def interval(runs: Sequence[RunSummary], policy: Policy) -> StepTime:
    """Return the 95 % interval of the step time of runs, with the gate's prior: rounds of one say nothing of the next."""
    sessions, n = count_sessions(runs), len(runs)
    policy, scale = resolve_policy(policy, runs)
    width = scale.noise * math.sqrt(inflation(n) / effective_runs(n, sessions, policy))
    half = t_quantile(0.025, scale.degrees_of_freedom) * width
    y = centre(summaries(runs))
    return StepTime(point_s=math.exp(y), low_s=math.exp(y - half), high_s=math.exp(y + half))


# --- centre and scale -------------------------------------------------------------------------------


def summaries(runs: Sequence[RunSummary]) -> list[float]:
    """Return ln(step time) of each run."""
    return [run.summary for run in runs]


def centre(values: Sequence[float]) -> float:
    """Return the Hodges-Lehmann estimate: the median of all pairwise averages, self-pairs included."""
    return median((a + b) / 2 for a, b in combinations_with_replacement(values, 2))


def baseline_centre(baseline: Sequence[RunSummary], policy: Policy) -> float:
    """Return the centre of a baseline; where the policy says so, slow runs count up to a cap.

    Two throttled runs of five would move it half their way. The cap is at twice the noise at least: any lower, it would make
    baselines of three runs faster than they are.
    """
    stored = summaries(baseline)
    if policy.caps_baseline:
        stored = capped(stored, replace(policy, cap_floor=2 * policy.prior_noise))
    return centre(stored)


def capped(values: Sequence[float], policy: Policy) -> list[float]:
    """Cap slow runs, so that one throttled process does not widen the scale of all."""
    middle = median(values)
    cap = middle + max(policy.cap_reach * (middle - min(values)), policy.cap_floor)
    return [min(value, cap) for value in values]


def sum_of_squares(values: Sequence[float]) -> float:
    """Return SS about the mean."""
    mean = fmean(values)
    return math.fsum((value - mean) ** 2 for value in values)


def baseline_squares(baseline: Sequence[RunSummary], policy: Policy) -> float:
    """Return SSx; runs of one session alone show 1 - rho of the variance."""
    shown = 1 - policy.session_correlation if count_sessions(baseline) == 1 else 1.0
    return sum_of_squares(capped(summaries(baseline), policy)) / shown


def pooled_scale(baseline: Sequence[RunSummary], candidate: Sequence[RunSummary], policy: Policy) -> Scale:
    """Return the scale of all runs; without a candidate that of the stored ones."""
    squares, degrees = baseline_squares(baseline, policy), len(baseline) - 1
    if candidate:
        # The candidate's runs are those of one session.
        squares += sum_of_squares(capped(summaries(candidate), policy)) / (1 - policy.session_correlation)
        degrees += len(candidate) - 1
    return pooled(squares, degrees, [*baseline, *candidate], policy)


def pooled(squares: float, degrees: float, runs: Sequence[RunSummary], policy: Policy) -> Scale:
    """Pool the prior with these squares; never below what the rounds inside the runs show."""
    nu = policy.prior_degrees_of_freedom + degrees
    variance = (policy.prior_degrees_of_freedom * policy.prior_noise**2 + squares) / nu
    return Scale(noise=math.sqrt(max(variance, within_run_variance(runs))), degrees_of_freedom=nu)


def within_run_variance(runs: Sequence[RunSummary]) -> float:
    """Return the variance of a typical run's summary that comes from its rounds alone."""
    return median(run.standard_error for run in runs) ** 2


def resolve_policy(
    policy: Policy, baseline: Sequence[RunSummary], candidate: Sequence[RunSummary] = ()
) -> tuple[Policy, Scale]:
    """Return the policy at the noise of these runs, and their scale under that policy."""
    scale = pooled_scale(baseline, candidate, policy)
    found = policy_at_noise(policy, scale.noise)
    return (policy, scale) if found == policy else (found, pooled_scale(baseline, candidate, found))


def policy_at_noise(policy: Policy, noise: float) -> Policy:
    """Return the policy for a machine this noisy: large noise is a drift, which runs of one session share."""
    quiet, drifting = policy.drifting_noise
    share = min(max((noise - quiet) / (drifting - quiet), 0.0), 1.0)
    beyond = max(0.0, policy.drifting_correlation - policy.session_correlation)
    return replace(policy, session_correlation=policy.session_correlation + share * beyond)


# --- standard error and resolution ------------------------------------------------------------------


def inflation(n: int) -> float:
    """Return c(n): the variance of the Hodges-Lehmann centre over that of the mean, which it equals up to n = 2."""
    return 1.0 if n <= 2 else 1.08


def effective_runs(runs: int, sessions: int, policy: Policy) -> float:
    """Return Reff: the number of independent runs that correlated ones are worth."""
    return runs / (1 + (runs / sessions - 1) * policy.session_correlation)


def unit_standard_error(runs: int, sessions: int, repeats: int, policy: Policy) -> float:
    """Return the standard error of d at s = 1."""
    baseline = inflation(runs) / effective_runs(runs, sessions, policy)
    candidate = inflation(repeats) / effective_runs(repeats, 1, policy)
    return math.sqrt(baseline + candidate)


def resolution_factor(runs: int, sessions: int, policy: Policy) -> float:
    """Return delta / s at which a loss of delta is caught in 80 % of cases after the last repeat.

    The test leaves delta/2 for (t(alpha) + t(.2)) se. From 1, 3, 5, 10 sessions of one run each: 6.6, 4.7, 4.2, 3.7.
    """
    alpha, beta = levels(policy.max_repeats, policy)
    nu = policy.prior_degrees_of_freedom + (runs - 1) + (policy.max_repeats - 1)
    se = unit_standard_error(runs, sessions, policy.max_repeats, policy)
    return 2 * (t_quantile(alpha or beta, nu) + t_quantile(0.2, nu)) * se


def loss(d: float) -> float:
    """Return a difference of ln(step time) as a loss of throughput, 1 - exp(-d)."""
    return -math.expm1(min(-d, 700.0))  # a speedup of e^700 is a broken clock, and must not overflow


def slowest_loss(logs: Sequence[float], lost: float) -> float:
    """Return the loss of the slowest of runs whose centre lost `lost`."""
    return 1 - (1 - lost) * math.exp(centre(logs) - max(logs))


def count_sessions(runs: Sequence[RunSummary]) -> int:
    """Return Sb."""
    return len({run.session for run in runs})


# --- Student's t ------------------------------------------------------------------------------------

_TINY = 1e-300  # keeps Lentz's recurrence from dividing by zero
_PRECISION = 1e-15
_MAX_TERMS = 10_000  # the fraction needs about sqrt(nu) terms: nu up to some 1e7


@lru_cache(maxsize=4096)
def t_quantile(tail_probability: float, degrees_of_freedom: float) -> float:
    """Return t with P(T > t) = tail_probability, at most .5: Newton on the incomplete beta (DLMF 8.17.22), from 0 upwards.

    The upper tail is convex and falling for t > 0, so Newton from the left never overshoots: no bracket is needed.
    """
    t, nu = 0.0, degrees_of_freedom
    log_scale = -_log_beta(nu / 2, 0.5) - 0.5 * math.log(nu)
    while True:
        tail = 0.5 * _incomplete_beta(nu / (nu + t * t), t * t / (nu + t * t), nu / 2, 0.5)
        density = math.exp(log_scale - (nu + 1) / 2 * math.log1p(t * t / nu))
        step = (tail - tail_probability) / density
        if step <= 10 * _PRECISION * t:  # what is left is rounding
            return t
        t += step


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _incomplete_beta(x: float, complement: float, a: float, b: float) -> float:
    """Return I_x(a, b); `complement` is 1 - x, passed separately because the subtraction would lose digits."""
    if complement == 0:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast only below this point
        return 1 - _incomplete_beta(complement, x, b, a)
    front = math.exp(a * math.log(x) + b * math.log(complement) - _log_beta(a, b))
    return front / (a * _continued_fraction(x, a, b))


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Evaluate DLMF 8.17.22 by Lentz's method: 1 + d1/(1 + d2/(1 + ...))."""
    value, c, d = 1.0, 1.0, 0.0
    for n in range(1, _MAX_TERMS):
        m = n // 2
        if n % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / ((1 + term * d) or _TINY)
        c = (1 + term / c) or _TINY
        value *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return value
