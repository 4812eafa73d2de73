"""Verdicts of the gate, and the policy that they follow."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

THROUGHPUT = "throughput"  # `Verdict.of` where no metric is named


class Outcome(Enum):
    """Verdicts of the gate; report/verdicts.py holds the word, effect and explanation of each."""

    REGRESSED = "regressed"  # worse by more than half the tolerance, beyond noise, in all of two runs or more
    OK = "ok"  # worse by less than the tolerance
    IMPROVED = "improved"  # better by more than half the tolerance, beyond noise
    INCONCLUSIVE = "inconclusive"  # undecided after all repeats: too much noise, or runs that disagree
    INVALID = "invalid"  # the runs were disturbed
    NO_BASELINE = "no-baseline"  # nothing is stored for it on this platform
    STALE_BASELINE = "stale-baseline"  # the stored runs are of another configuration or machine
    DOES_NOT_FIT = "does-not-fit"  # its batch is larger than the device's memory
    VANISHED = "vanished"  # stored in the baseline, and not found


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Tolerance and error levels of the gate.

    The defaults were tuned on the stream model of `benchmarks/noise/model.py`; `make study` checks them.
    """

    tolerance: float = 0.05  # tolerated loss of throughput; a loss of this size should be caught
    max_repeats: int = 5  # runs of the candidate, the first included
    # One-sided levels of `regressed` after repeat 1, 2, ...; 0 is never: a single run may be throttled.
    alpha: tuple[float, ...] = (0.0, 0.005, 0.01, 0.02, 0.05)
    beta: tuple[float, ...] = (0.02, 0.02, 0.03, 0.05, 0.10)  # the same for `ok`
    improved_level: float = 0.01
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
class Verdict:
    """Verdict on the throughput or on one gated metric of a benchmark.

    Fractions are losses of throughput, 1 - exp(-d): above 0 is slower. Of a metric where less is better (energy, latency;
    `less_is_better`) they are increases, exp(d) - 1: `slowdown`, `resolution` and `tolerance` alike.

    The bounds of `slowdown` are one-sided and those of the tests that decided, so that a printed bound agrees with the outcome:

    - `low` ("at least") at alpha of the repeat; after the first, which cannot regress, at its beta. For throughput never
      more than the fastest run lost.
    - `high` ("at most") at beta of the repeat; for `improved` at the level of that test.
    """

    outcome: Outcome
    tolerance: float
    slowdown: Estimate | None = None  # None where nothing was compared
    noise: float | None = None  # run-to-run standard deviation of ln(step time)
    resolution: float | None = None  # loss caught in about 80 % of cases after the last repeat, at this noise
    runs: int = 0  # K, of the candidate
    baseline_runs: int = 0  # R
    wants_another_run: bool = False  # undecided, and another run may decide
    reason: str = ""  # for outcomes that are not statistical
    of: str = THROUGHPUT  # or the name of a metric
    common: float = 0.0  # loss that all benchmarks of the platform share, removed before judging

    @property
    def was_judged(self) -> bool:
        """Whether the baseline had something to compare with."""
        return self.outcome is not Outcome.NO_BASELINE
