"""What one process measured: the value that baselines store and the gate judges."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median

from pytest_accel.stats.robust import median_error

MIN_ROUNDS = 6
RECORD_RUNS = 5  # what a recording measures
MAX_RUNS = 10  # more runs sharpen the gate hardly (resolution 4.2 s at 5, 3.7 s at 10) and bury a diff


def log_step_time(rounds_s: Iterable[float]) -> float:
    return median(math.log(seconds) for seconds in rounds_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The rounds of one fresh process, warm-up dropped; raw, so that an estimator can change later."""

    session: str  # one invocation of pytest on one machine; runs of one session are correlated
    rounds_s: tuple[float, ...]  # mean step time of each round
    steps_per_round: int
    environment: str = ""  # key into the environments stored beside the run
    first_step_s: float | None = None
    warmup_s: float | None = None
    peak_memory_bytes: int | None = None
    loss: float | None = None  # after a fixed number of seeded steps: an upgrade may change numerics
    metrics: Mapping[str, float] = field(default_factory=dict)  # further figures; names carry units
    rank_step_s: tuple[float, ...] = ()  # each rank's own step time, where there were several

    @property
    def summary(self) -> float:
        """ln(step time): the median over rounds of the log of each round's mean step time.

        A median of means sees a stall in every tenth step in full, and forgets a single outlier.
        """
        return log_step_time(self.rounds_s)

    @property
    def step_time_s(self) -> float:
        return math.exp(self.summary)

    @property
    def stall_share(self) -> float:
        """How much slower the mean of all steps is than the summary: advisory, 0 when steady."""
        return math.log(fmean(self.rounds_s)) - self.summary

    @property
    def standard_error(self) -> float:
        """Standard error of the summary from the spread of rounds inside this run.

        From the median absolute deviation: one slow round moves the median of rounds as little as this.
        """
        return median_error([math.log(seconds) for seconds in self.rounds_s])

    def throughput(self, work_per_step: float) -> float:
        return work_per_step / self.step_time_s
