"""`--accel-scale=learned`: the noise of each benchmark from the nights that the history kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pytest_accel.stats.learning import (
    NIGHTS,
    Learned,
    Night,
    learn,
    nightly,
    typical_noise,
    with_learned,
    with_typical,
)
from pytest_accel.stats.quantities import counted, percent
from pytest_accel.stats.verdict import Policy

if TYPE_CHECKING:
    from pytest_accel.storage.history import History, Point


_T = TypeVar("_T")
MOST_POINTS = 20 * NIGHTS  # of a series that are read: on many days somebody measures more than once


class Scales:
    """Of the benchmarks of a session; reads each series once. A history that cannot be read costs nothing but a remark."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.problem = "" if path is not None else "no history is kept (--accel-history)"
        self.used: dict[
            tuple[str, str], Learned | float
        ] = {}  # a number: the platform's, for one without nights
        self.of = cache(self._of)
        self.typical = cache(self._typical)

    def policy(self, platform: str, key: str, policy: Policy) -> Policy:
        """The policy of a benchmark, by what its nights say; else by those of its platform; else as it is."""
        found = self._found(platform, key)
        if isinstance(found, Learned):
            return with_learned(policy, found)
        return policy if found is None else with_typical(policy, found)

    def note(self, platform: str, key: str) -> None:
        """That a benchmark was judged by it."""
        if (found := self._found(platform, key)) is not None:
            self.used[platform, key] = found

    def _found(self, platform: str, key: str) -> Learned | float | None:
        own = self.of(platform, key)
        return own if own is not None else self.typical(platform)

    def _of(self, platform: str, key: str) -> Learned | None:
        points = self._asked(lambda history: history.series(key, platform, MOST_POINTS)) or ()
        begun_s = [datetime.fromisoformat(point.at).timestamp() for point in points]
        return learn([night_of(points[index]) for index in nightly(begun_s)[-NIGHTS:]])

    def _typical(self, platform: str) -> float | None:
        tracked = self._asked(lambda history: history.benchmarks()) or ()
        found = (self.of(each.platform, each.key) for each in tracked if each.platform == platform)
        return typical_noise(each for each in found if each is not None)

    def _asked(self, ask: Callable[[History], _T]) -> _T | None:
        """What the history says; None where there is none, or it cannot be read."""
        from pytest_accel.storage.history import History, HistoryError  # where somebody asks for it

        if self.path is None or not self.path.exists():
            return None
        try:
            return ask(History(self.path))
        except HistoryError as error:
            self.problem = str(error)
            return None

    @property
    def lines(self) -> list[str]:
        """What was judged by, for the terminal."""
        own = [each for each in self.used.values() if isinstance(each, Learned)]
        new = [each for each in self.used.values() if not isinstance(each, Learned)]
        said = []
        if own:
            noises, nights = [each.noise for each in own], [each.nights for each in own]
            said.append(
                f"{counted(len(own), 'benchmark')} by {_span(nights)} nights of their own, noise "
                f"{percent(min(noises))} to {percent(max(noises))}"
            )
        if new:
            said.append(f"{counted(len(new), 'benchmark')} by the median of the platform, {percent(new[0])}")
        if self.problem:
            said.append(f"the history was not read: {self.problem}")
        if not said:
            said.append("the history has too few nights yet, so that the gate's own prior was used")
        return [f"SCALE  learned: {'; '.join(said)}"]


def night_of(point: Point) -> Night:
    return Night(
        runs=tuple(math.log(run.step_time_s) for run in point.runs),
        alike=(point.configuration, point.environment, point.host),
    )


def _span(counts: list[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"
