"""How much faster, and how surely: from the times of alternating blocks to a ratio with its interval. Pure.

The logarithm of a group's ratio is one observation. What the machine does to both sides of a group cancels in it, and a drift
that is even over a group does, too: ours peer peer ours, then peer ours ours peer.
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


def turns(groups: int) -> list[Side]:
    """Return whose block it is, in order."""
    return [side for group in range(groups) for side in (_BAAB if group % 2 else _ABBA)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds a step, of every block in the order that they were taken."""

    ours_s: tuple[float, ...]
    peer_s: tuple[float, ...]
    cut_off: bool = False  # more groups were wanted

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
    """Ours over the peer's rate; the interval is of the mean over groups, and not symmetric around it."""

    value: float
    low: float
    high: float

    def reaches(self, goal: float | None) -> bool | None:
        """Whether it is surely as large: the lower end decides. None where there is no goal."""
        return None if goal is None else self.low >= goal


def alternate(blocks: Mapping[Side, Callable[[], float]], groups: int) -> Times:
    """Take all blocks in turn; each returns its seconds a step. Ctrl-C ends it with the groups that are whole, where they have an interval."""
    taken: dict[Side, list[float]] = {side: [] for side in SIDES}
    whole, cut_off = groups, False
    try:
        for side in turns(groups):
            taken[side].append(blocks[side]())
    except KeyboardInterrupt:
        whole, cut_off = min(map(len, taken.values())) // BLOCKS, True
        if whole < LEAST_GROUPS:
            raise
    ours_s, peer_s = (tuple(taken[side][: BLOCKS * whole]) for side in SIDES)
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
    """Return units of work a second, over all blocks."""
    return work / fmean(steps_s)


def steps_for(block_s: float, step_s: float, *, least: int = 2) -> int:
    """Return how many steps make a block of this length."""
    return max(least, math.ceil(block_s / step_s))


def _of_group(steps_s: Sequence[float], group: int) -> float:
    return fmean(steps_s[BLOCKS * group : BLOCKS * (group + 1)])


def _exp(value: float) -> float:
    """With two groups that disagree, Student's interval knows no bounds worth a number."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
