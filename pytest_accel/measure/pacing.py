"""How to spend the time budget: when warm-up is over, how long a round is, how many rounds there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median

from pytest_accel.stats.runs import MIN_ROUNDS

STEPS_PER_ROUND = 10
# A round this long makes the two timer calls and the synchronisation (tens of microseconds on an
# H200) less than a thousandth of it.
MIN_ROUND_S = 0.02
MAX_ROUNDS = 120
# The mean of a burst over its shortest step. A single hiccup is not as much; steps of milliseconds may be by themselves, and whole bursts of those
# cost little.
UNEVEN = 1.1
MIN_WINDOW = 4  # blocks
MIN_SETTLING_S = 1.0  # clocks ramp for about a second from idle


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Rounds of equal numbers of steps that fill a time budget."""

    steps_per_round: int
    rounds: int


def pace(step_s: float, budget_s: float, *, burst: int = 1) -> Pace:
    """Ten steps a round; fewer where a step is long, more where it is tiny; never fewer than six rounds, all of whole bursts.

    More also where a large budget would have more rounds than are kept: they grow longer, so that it is used.
    """
    if not (step_s > 0 and budget_s > 0):
        raise ValueError(f"a step of {step_s} s in a budget of {budget_s} s cannot be paced")
    longest = max(1, math.floor(budget_s / MIN_ROUNDS / step_s))
    shortest = math.ceil(MIN_ROUND_S / step_s)
    filling = math.ceil(budget_s / MAX_ROUNDS / step_s)
    steps = in_bursts(max(1, min(max(STEPS_PER_ROUND, shortest, filling), longest)), burst)
    rounds = round(budget_s / (steps * step_s))
    return Pace(steps_per_round=steps, rounds=min(max(rounds, MIN_ROUNDS), MAX_ROUNDS))


def in_bursts(steps: int, burst: int) -> int:
    """So many steps, or as many more as make whole bursts.

    Workers of a loader that began together hand over together: of three steps one waits, and two find their batch ready. One step says
    nothing then, and nor does a round of four: now it waits once, now twice. A burst is paced as one long step is.
    """
    return -(-steps // burst) * burst


def comes_in_bursts(steps_s: Sequence[float]) -> bool:
    """Whether, of as many steps as could come together, some waited for what others found ready, and that matters."""
    return fmean(steps_s) > UNEVEN * min(steps_s)


@dataclass(slots=True)
class Settling:
    """Watches blocks of warm-up steps and says when they stopped drifting.

    The last quarter of the blocks is compared with the quarter before it, by their medians: windows that
    grow see slow drifts that short ones miss. Compilation, autotuning, allocator growth and clock ramps
    all show as a difference; what is left below one percent, or below what the spread of neighbouring
    blocks explains, counts as steady.
    """

    max_s: float
    blocks_s: list[float] = field(default_factory=list)  # mean step time of each block
    spent_s: float = 0.0

    def observe(self, step_s: float, block_s: float) -> None:
        self.blocks_s.append(step_s)
        self.spent_s += block_s

    @property
    def window(self) -> int:
        return max(MIN_WINDOW, len(self.blocks_s) // 4)

    @property
    def steady(self) -> bool:
        window = self.window
        if self.spent_s < min(MIN_SETTLING_S, self.max_s) or len(self.blocks_s) < 2 * window:
            return False
        before, after = self.blocks_s[-2 * window : -window], self.blocks_s[-window:]
        return not _drifts(before, after, limit=0.01, errors=2)

    @property
    def exhausted(self) -> bool:
        return self.spent_s >= self.max_s

    @property
    def step_s(self) -> float:
        return median(self.blocks_s[-2 * self.window :])


def steady_rounds(rounds_s: Sequence[float]) -> bool:
    """Whether measured rounds kept their level: the second half against the first.

    Wider limits than for settling: what is asked is whether the run may stand, not whether to wait on.
    """
    half = len(rounds_s) // 2
    return half < 3 or not _drifts(rounds_s[:half], rounds_s[-half:], limit=0.02, errors=3)


def _drifts(before: Sequence[float], after: Sequence[float], *, limit: float, errors: float) -> bool:
    """Whether two windows differ by more than `limit` and by more than so many errors of their medians."""
    change = abs(math.log(median(after) / median(before)))
    return change >= max(limit, errors * _median_error([*before, *after], len(after)))


def _median_error(blocks_s: list[float], window: int) -> float:
    """Standard error of the difference of two window medians, from how much neighbouring blocks differ.

    Neighbours, because deviations from a common centre would take a trend, or a jump from one window
    to the next, for noise: then nothing ever drifts.
    """
    logs = [math.log(block) for block in blocks_s]
    apart = median(abs(later - earlier) for earlier, later in pairwise(logs))
    sigma = 1.4826 * apart / math.sqrt(2)  # MAD of a normal, scaled; a difference has twice the variance
    return sigma * math.sqrt(math.pi / 2) * math.sqrt(2 / window)
