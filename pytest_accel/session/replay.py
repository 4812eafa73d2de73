"""What ranks measured, told to this session's pytest-benchmark, so that its table and its JSON have it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pytest_accel.session.accel import EXTRA_INFO, extra_info
from pytest_accel.session.placement import TIMER

if TYPE_CHECKING:
    import pytest

    from pytest_accel.platforms.names import PlatformName
    from pytest_accel.session.gangs import Found
    from pytest_accel.stats.measurement import Measurement
    from pytest_accel.stats.run import Run


class _Clock:
    """Reads as a clock did that measured these rounds: pytest-benchmark asks it twice for each."""

    def __init__(self, rounds_s: Iterator[float]) -> None:
        self._rounds_s = rounds_s
        self._inside = False

    def __call__(self) -> float:
        self._inside = not self._inside
        return 0.0 if self._inside else next(self._rounds_s)


def replay(item: pytest.Item, platform: PlatformName, measurement: Measurement, found: Found) -> None:
    """Enter a measurement that this process did not make as if it had."""
    from pytest_benchmark.fixture import BenchmarkFixture
    from pytest_benchmark.utils import NameWrapper

    session = item.config._benchmarksession  # type: ignore[attr-defined]  # noqa: SLF001 - its fixture's way in
    marked = item.get_closest_marker("benchmark")
    options = {
        **session.options,
        **(marked.kwargs if marked else {}),
        "timer": NameWrapper(_clock_of(measurement.run)),  # type: ignore[no-untyped-call]
        "add_stats": session.benchmarks.append,
        "logger": session.logger,
        "warner": item.warn,
        "disabled": False,
        "cprofile": None,
    }
    # Its versions ask for different ones.
    asked = set(inspect.signature(BenchmarkFixture).parameters) - {"node"}
    fixture: Any = BenchmarkFixture(item, **{name: options.get(name) for name in asked})  # type: ignore[no-untyped-call]
    rounds, iterations = len(measurement.run.rounds_s), measurement.run.steps_per_round
    fixture.pedantic(_nothing, rounds=rounds, iterations=iterations)
    fixture.stats.options["timer"] = item.stash[TIMER]  # its name goes into the JSON
    info = extra_info(platform, measurement)
    if found.gang:
        info["gang"] = dict(found.gang)
    fixture.extra_info.update(found.extra_info)
    fixture.extra_info["accel"] = item.stash[EXTRA_INFO] = info


def _clock_of(run: Run) -> _Clock:
    return _Clock(round_s * run.steps_per_round for round_s in run.rounds_s)


def _nothing() -> None:
    """What the ranks did, was done."""
