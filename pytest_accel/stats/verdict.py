"""What the gate says of a benchmark, and the policy by which it says it: plain values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

THROUGHPUT = "throughput"  # what a verdict is of, where it names no metric


class Outcome(Enum):
    """Verdicts of the gate; report/verdicts.py holds the word, effect and explanation of each."""

    REGRESSED = "regressed"  # worse by more than half the tolerance, beyond noise, in all of two runs or more
    OK = "ok"  # not worse by as much as is tolerated
    IMPROVED = "improved"  # surely better by more than half the tolerance: the baseline deserves a refresh
    INCONCLUSIVE = "inconclusive"  # all runs could not tell: too much noise, or runs that disagree
    INVALID = "invalid"  # disturbed, so that its figures mean nothing
    NO_BASELINE = "no-baseline"  # nothing is stored for it on this platform
    STALE_BASELINE = "stale-baseline"  # what is stored is of another configuration or of another machine
    DOES_NOT_FIT = "does-not-fit"  # its batch is larger than the device's memory; it was not made smaller
    VANISHED = "vanished"  # stored in the baseline, and not found


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How much loss is tolerated, and how surely; the defaults are the gate as it was tuned.

    Tuned on the stream model of `tests/studies/streams.py`; `python -m tests.studies.gate` checks them.
    """

    tolerance: float = 0.05  # tolerated loss of throughput; this much or more should be caught
    max_looks: int = 5  # runs of the candidate before an open question stays open
    # One-sided levels of saying regressed at looks 1, 2, ...; 0 is "never": one run alone may be one throttled process.
    alpha: tuple[float, ...] = (0.0, 0.005, 0.01, 0.02, 0.05)
    beta: tuple[float, ...] = (0.02, 0.02, 0.03, 0.05, 0.10)  # the same of saying ok
    improved_level: float = 0.01  # one-sided level of that test
    # Prior of the run-to-run noise: two processes of one code differ by .3 to 3 % (H200, ResNet-50: .4 %).
    prior_noise: float = 0.01  # s0, of ln(step time)
    prior_degrees_of_freedom: float = 3.0  # nu0: worth three runs, so that five measured ones outweigh it
    session_correlation: float = 0.2  # rho: processes of one session share its clocks and temperature
    # Between these noises rho grows to `drifting_correlation`: a machine so noisy changes its speed for minutes at a time.
    drifting_noise: tuple[float, float] = (0.04, 0.08)
    drifting_correlation: float = 0.5  # five streams of shared CPUs, of 10 to 25 % noise, had .41 to .58
    # A throttled process is slow, hardly ever fast: the fast side says where slow runs stop counting.
    cap_reach: float = 2.0
    cap_floor: float = 0.01  # and never nearer to the middle than this, of ln(step time)

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance: {self.tolerance!r} is not a fraction between 0 and 1. Write 0.05.")
        if len(self.alpha) != len(self.beta):
            raise ValueError(
                f"alpha has {len(self.alpha)} looks, beta has {len(self.beta)}: give both the same."
            )
        if not 1 <= self.max_looks <= len(self.alpha):
            raise ValueError(f"max_looks: {self.max_looks!r} is not one of 1 to {len(self.alpha)}.")
        if not (self.prior_noise > 0 and self.prior_degrees_of_freedom > 0):
            raise ValueError(
                f"prior_noise {self.prior_noise!r} and prior_degrees_of_freedom "
                f"{self.prior_degrees_of_freedom!r} must both be positive: one run has no spread of its own."
            )
        for name in ("session_correlation", "drifting_correlation"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)!r} is not in 0 <= rho < 1.")
        quiet, drifting = self.drifting_noise
        if not 0 < quiet < drifting:
            raise ValueError(f"drifting_noise: {self.drifting_noise!r} is no rising pair of noises.")

    @property
    def delta(self) -> float:
        """The tolerance as a difference of ln(step time)."""
        return -math.log1p(-self.tolerance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A point and the bounds that go with it, raw; rounding happens only when rendering."""

    point: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The step time of a group of runs with its 95 % interval, which is symmetric as a ratio."""

    point_s: float
    low_s: float
    high_s: float

    @property
    def relative_low(self) -> float:
        return self.low_s / self.point_s - 1

    @property
    def relative_high(self) -> float:
        """The x of "± x %": of step time and of throughput alike, on its wider side."""
        return self.high_s / self.point_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One benchmark, judged. Fractions are losses of throughput, 1 - exp(-d): above 0 is slower.

    A metric that is gated beside throughput has a verdict of its own: then all losses are its. Where less of it is
    better (energy, a latency; `core.metrics.less_is_better`) they are increases, exp(d) - 1: `slowdown`, `resolution` and
    `tolerance` alike, so that above 0 is worse and they compare as they stand.

    The bounds of `slowdown` are one-sided and those that the look's own tests used, so that a
    rendered bound always agrees with the outcome:

    - `low` ("at least") at alpha of the look; at look 1, which cannot regress, at its beta. Of throughput never more than the
      quickest run lost.
    - `high` ("at most") at beta of the look; where improved, at the level of that test.

    An inconclusive verdict prints both. One that `wants_another_run` is not final.
    """

    outcome: Outcome  # one of those above
    tolerance: float  # the loss that is tolerated; the increase, where less is better
    slowdown: Estimate | None = None  # None where nothing was compared
    noise: float | None = None  # run-to-run standard deviation of ln(step time)
    resolution: float | None = None  # loss caught in about 80 % of cases at the last look, at this noise
    looks: int = 0  # K, runs of the candidate
    baseline_runs: int = 0  # R, stored runs
    wants_another_run: bool = False  # undecided, and another run may decide
    reason: str = ""  # for the outcomes that are not statistical
    of: str = THROUGHPUT  # or the name of a metric
    common: float = 0.0  # loss that all benchmarks of the platform share: taken off before this was judged
