"""Ratio of two rates with a 95 % interval, from blocks that alternate: ours peer peer ours, then peer ours ours peer.

The logarithm of a group's ratio is one observation. Linear drift of the machine cancels within a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from pytest_accel.stats.gate import t_quantile

Side = Literal["ours", "peer"]
SIDES: tuple[Side, Side] = ("ours", "peer")
BLOCKS = 2  # of each side in a group
LEAST_GROUPS = 2  # of which an interval can be made
TAIL = 0.025  # each side: 95 %

_ABBA: tuple[Side, ...] = ("ours", "peer", "peer", "ours")
_BAAB: tuple[Side, ...] = ("peer", "ours", "ours", "peer")


def schedule(groups: int) -> list[Side]:
    """Return the side of each block, in order."""
    return [side for group in range(groups) for side in (_BAAB if group % 2 else _ABBA)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds per step of every block, in order."""

    ours_s: tuple[float, ...]
    peer_s: tuple[float, ...]
    cut_off: bool = False  # interrupted before all groups were measured

    def __post_init__(self) -> None:
        if len(self.ours_s) != len(self.peer_s) or len(self.ours_s) % BLOCKS or not self.ours_s:
            raise ValueError(
                f"{len(self.ours_s)} blocks of ours and {len(self.peer_s)} of the peer are no groups: "
                f"a group has {BLOCKS} of each."
            )
        if not all(each > 0 and math.isfinite(each) for each in (*self.ours_s, *self.peer_s)):
            raise ValueError("a block took no time, or no finite one: it was not measured.")

    @property
    def groups(self) -> int:
        return len(self.ours_s) // BLOCKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Our rate over the peer's, with the 95 % interval of the mean over groups."""

    value: float
    low: float
    high: float

    def reaches(self, goal: float | None) -> bool | None:
        """Return whether the lower bound is at the goal or above; None without a goal."""
        return None if goal is None else self.low >= goal


def alternate(blocks: Mapping[Side, Callable[[], float]], groups: int) -> Times:
    """Measure all blocks; each returns its seconds per step. After Ctrl-C complete groups are kept, if there are two or more."""
    taken: dict[Side, list[float]] = {side: [] for side in SIDES}
    complete, cut_off = groups, False
    try:
        for side in schedule(groups):
            taken[side].append(blocks[side]())
    except KeyboardInterrupt:
        complete, cut_off = min(map(len, taken.values())) // BLOCKS, True
        if complete < LEAST_GROUPS:
            raise
    ours_s, peer_s = (tuple(taken[side][: BLOCKS * complete]) for side in SIDES)
    return Times(ours_s=ours_s, peer_s=peer_s, cut_off=cut_off)


def ratio_of(times: Times) -> Ratio:
    """Return the ratio of the rates, with Student's interval over groups."""
    if times.groups < LEAST_GROUPS:
        raise ValueError(
            f"{times.groups} group of blocks has no interval. Take {LEAST_GROUPS} or more (--groups)."
        )
    logs = [
        math.log(_of_group(times.peer_s, group) / _of_group(times.ours_s, group))
        for group in range(times.groups)
    ]
    middle = fmean(logs)
    half = t_quantile(TAIL, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return Ratio(value=math.exp(middle), low=_exp(middle - half), high=_exp(middle + half))


def rate(work: int, steps_s: Sequence[float]) -> float:
    """Return units of work per second, over all blocks."""
    return work / fmean(steps_s)


def steps_for(block_s: float, step_s: float, *, least: int = 2) -> int:
    """Return the number of steps of a block of this length."""
    return max(least, math.ceil(block_s / step_s))


def _of_group(steps_s: Sequence[float], group: int) -> float:
    return fmean(steps_s[BLOCKS * group : BLOCKS * (group + 1)])


def _exp(value: float) -> float:
    """Return exp(value); infinite for the interval of two groups that disagree."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
