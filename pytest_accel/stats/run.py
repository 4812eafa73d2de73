"""Runs: what one process measured, and the key under which baselines store it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from statistics import fmean, median
from typing import NamedTuple, TypeAlias

from pytest_accel.stats.kernels import KernelTable

MIN_ROUNDS = 6
RECORD_RUNS = 5  # of one recording
MAX_RUNS = 10  # more hardly sharpen the gate (resolution 4.2 s at 5, 3.7 s at 10) and make a diff unreadable
SHORTEST_STEP_S, LONGEST_STEP_S = 1e-9, 1e7  # beyond these a clock or a file is wrong
LARGEST_METRIC = 1e30  # squares and products of metrics stay finite
_OF_NORMAL = 1.4826  # standard deviation of a normal distribution over its median absolute deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Rounds of one fresh process without its warm-up; raw, so that an estimator can change later."""

    session: str  # one invocation of pytest on one machine; runs of one session are correlated
    rounds_s: tuple[float, ...]  # mean step time of each round
    steps_per_round: int
    environment: str = ""  # key of the environment stored beside the run
    first_step_s: float | None = None
    warmup_s: float | None = None
    peak_memory_bytes: int | None = None
    loss: float | None = None  # after a fixed number of seeded steps: an upgrade may change numerics
    metrics: Mapping[str, float] = field(default_factory=dict)  # further figures; names carry units
    rank_step_s: tuple[float, ...] = ()  # step time of each rank, where there were several
    kernels: KernelTable | None = None  # of rank 0, where the run was profiled after its rounds

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

        A median of means shows a stall in every tenth step in full, and ignores a single outlier.
        """
        return median(math.log(seconds) for seconds in self.rounds_s)

    @property
    def step_time_s(self) -> float:
        return math.exp(self.summary)

    @property
    def stall_share(self) -> float:
        """How much slower the mean of all steps is than the summary; 0 when steady. Advisory."""
        return math.log(fmean(self.rounds_s)) - self.summary

    @property
    def standard_error(self) -> float:
        """Standard error of the summary, from the spread of the rounds."""
        return median_error([math.log(seconds) for seconds in self.rounds_s])

    def throughput(self, work_per_step: float) -> float:
        return work_per_step / self.step_time_s


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name}: {value!r} is not between {low:g} and {high:g}")


class Summarized(NamedTuple):
    """A run, or its value of a metric, as the gate reads it."""

    session: str
    summary: float
    standard_error: float = 0.0  # a metric is one figure a run


RunSummary: TypeAlias = Run | Summarized  # what the gate judges


def known_values(runs: Sequence[Run], metric: str) -> list[float]:
    """Return the values of the runs that measured a metric."""
    return [run.metrics[metric] for run in runs if metric in run.metrics]


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation of normal values with this median absolute deviation about their median."""
    middle = median(values)
    return _OF_NORMAL * median(abs(value - middle) for value in values)


def median_error(values: Sequence[float]) -> float:
    """Return the standard error of their median: sqrt(pi/2) times that of a mean of normal values."""
    return spread(values) * math.sqrt(math.pi / 2 / len(values))


# --- keys -------------------------------------------------------------------------------------------

Scalar: TypeAlias = str | int | float | bool | None  # values of a configuration

SOURCE = "data_source"  # key of a configuration
MADE_UP = frozenset({"synthetic", "host-synthetic"})
SUITES = "bench_suites"  # in a checkout; the wheel's suites have the same names and share their baselines
WHEEL_SUITES = "pytest_accel.suites"  # for `pytest --pyargs`
_REAL = " (data)"  # no node id ends so: it has blanks only inside the brackets of its parameters


def suite_of(path: str) -> str:
    """Return the name of a module's baseline file: without `test_` or `_test`."""
    return PurePosixPath(path).stem.removeprefix("test_").removesuffix("_test")


def is_real(configuration: Mapping[str, object]) -> bool:
    """Return whether a benchmark reads real data; a user's own step may name no source."""
    return configuration.get(SOURCE) is not None and configuration[SOURCE] not in MADE_UP


def baseline_key(node_id: str, configuration: Mapping[str, object]) -> str:
    """Return the key of a benchmark's baseline; real and synthetic data never share one."""
    return node_id + _REAL if is_real(configuration) else node_id


def short_name(key: str) -> str:
    """Return a node id or a key without the path of its file."""
    return key.partition("::")[2] or key


def both_keys(node_id: str) -> tuple[str, str]:
    return node_id, node_id + _REAL


def in_wheel(node_id: str) -> str:
    """Return a suite's node id as `pytest --pyargs` takes it, without the path of a checkout."""
    path, separator, name = node_id.partition("::")
    module = PurePosixPath(path)
    if module.parent != PurePosixPath(SUITES):
        return node_id
    return f"{WHEEL_SUITES}.{module.stem}{separator}{name}"


def node_id_of(key: str) -> str:
    return key.removesuffix(_REAL)
