"""Runs: what one process measured, and the key under which baselines store it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from statistics import fmean, median
from typing import TypeAlias

_OF_NORMAL = 1.4826  # a normal distribution's standard deviation, over its median absolute deviation


def spread(values: Sequence[float], about: float | None = None) -> float:
    """Return the standard deviation that normal values of this median absolute deviation have, about their median or a given one."""
    middle = median(values) if about is None else about
    return _OF_NORMAL * median(abs(value - middle) for value in values)


def median_error(values: Sequence[float]) -> float:
    """Return the standard error of their median: that of a mean of normal values, and sqrt(pi/2) times as much."""
    return spread(values) * math.sqrt(math.pi / 2 / len(values))


MIN_ROUNDS = 6
RECORD_RUNS = 5  # what a recording measures
MAX_RUNS = 10  # more runs sharpen the gate hardly (resolution 4.2 s at 5, 3.7 s at 10) and bury a diff


SHORTEST_STEP_S, LONGEST_STEP_S = 1e-9, 1e7  # beyond these a clock or a file is wrong
LARGEST_METRIC = 1e30  # squares and products of metrics stay finite


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name}: {value!r} is not between {low:g} and {high:g}")


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

    def __post_init__(self) -> None:
        if not self.rounds_s:
            raise ValueError("rounds_s: no rounds; a run has at least 1")
        if self.steps_per_round < 1:
            raise ValueError(f"steps_per_round: {self.steps_per_round} is less than 1")
        for name in ("rounds_s", "rank_step_s"):
            for index, seconds in enumerate(getattr(self, name)):
                _check_range(f"{name}[{index}]", seconds, SHORTEST_STEP_S, LONGEST_STEP_S)
        for name, highest in (
            ("first_step_s", LONGEST_STEP_S),
            ("warmup_s", LONGEST_STEP_S),
            ("peak_memory_bytes", LARGEST_METRIC),
        ):
            if (value := getattr(self, name)) is not None:
                _check_range(name, value, 0, highest)
        for name, value in self.metrics.items():
            if math.isfinite(value) and abs(value) > LARGEST_METRIC:
                raise ValueError(f"metrics[{name!r}]: {value!r} is beyond {LARGEST_METRIC:g}")

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


Scalar: TypeAlias = str | int | float | bool | None  # what a configuration holds

SOURCE = "data_source"  # of a configuration: where its batches come from
MADE_UP = frozenset({"synthetic", "host-synthetic"})
SUITES = "bench_suites"  # of a checkout; the wheel's have the same names, so that both share their baselines
WHEEL_SUITES = "pytest_accel.suites"  # where `pytest --pyargs` finds those
_REAL = " (data)"  # no node id ends so: it has blanks in the brackets of its parameters alone


def suite_of(path: str) -> str:
    """The file of a module's baselines: its name without what pytest needs of it."""
    return PurePosixPath(path).stem.removeprefix("test_").removesuffix("_test")


def is_real(configuration: Mapping[str, object]) -> bool:
    """Whether real data fed a benchmark; a step of the user's own may name no source."""
    return configuration.get(SOURCE) is not None and configuration[SOURCE] not in MADE_UP


def baseline_key(node_id: str, configuration: Mapping[str, object]) -> str:
    return node_id + _REAL if is_real(configuration) else node_id


def both_keys(node_id: str) -> tuple[str, str]:
    """With made-up data, and with real data."""
    return node_id, node_id + _REAL


def in_wheel(node_id: str) -> str:
    """A suite's benchmark as `pytest --pyargs` takes it: only a checkout has the path that its id begins with."""
    path, separator, name = node_id.partition("::")
    module = PurePosixPath(path)
    if module.parent != PurePosixPath(SUITES):
        return node_id
    return f"{WHEEL_SUITES}.{module.stem}{separator}{name}"


def node_id_of(key: str) -> str:
    return key.removesuffix(_REAL)
