"""pytest-benchmark's fixture outside of a test."""

import inspect
from typing import Any

from pytest_benchmark.fixture import BenchmarkFixture
from pytest_benchmark.utils import NameWrapper

from pytest_accel.measure.rounds import SynchronizingTimer


def pedantic_benchmark(timer: SynchronizingTimer) -> Any:
    class Node:
        name = nodeid = _nodeid = "a benchmark"  # the last is what 5.2 reads

    settings = {
        "disable_gc": False,
        "timer": NameWrapper(timer),
        "min_rounds": 1,
        "min_time": 0,
        "max_time": 1,
        "warmup": False,
        "warmup_iterations": 0,
        "calibration_precision": 10,
        "add_stats": lambda stats: None,
        "disabled": False,
    }
    # pytest-benchmark 5.3 takes more than 5.2 does; it does not use what is not set here.
    names = list(inspect.signature(BenchmarkFixture).parameters)[1:]
    return BenchmarkFixture(Node(), **{name: settings.get(name) for name in names})
