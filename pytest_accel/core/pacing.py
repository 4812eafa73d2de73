"""How to spend the time budget: when warm-up is over, how long a round is, how many rounds there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from pytest_accel.core.runs import MIN_ROUNDS

STEPS_PER_ROUND = 10
# A round this long makes the two timer calls and the synchronisation (tens of microseconds on an
# H200) less than a thousandth of it.
MIN_ROUND_S = 0.02
MAX_ROUNDS = 120
MOST_BUDGETS = 10  # that rounds of whole bursts may take: they mean nothing where it is the device that sets the pace, and steps are long
MIN_WINDOW = 4  # blocks
BLOCK_S = 0.1
MIN_SETTLING_S = 1.0  # clocks ramp for about a second from idle


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Rounds of equal numbers of steps that fill a time budget."""

    steps_per_round: int
    rounds: int


def in_bursts(steps: int, burst: int, *, within: float = math.inf) -> int:
    """So many steps, or as many more as make whole bursts, if those are no more than `within`.

    Workers of a loader that began together hand over together: of three the first step waits, and two find their batch ready. One step says
    nothing then, and nor does a round of four: now it waits once, now twice.
    """
    if burst < 1:
        raise ValueError(f"burst: {burst} steps at once are none. Write 1 where each waits for its own work.")
    whole = -(-steps // burst) * burst
    return whole if whole <= within else steps


def pace(step_s: float, budget_s: float, *, burst: int = 1) -> Pace:
    """Ten steps a round; fewer where a step is long, more where it is tiny; never fewer than six rounds.

    More also where a large budget would have more rounds than are kept: they grow longer, so that it is used. And as many as make whole
    bursts, also beyond the budget.
    """
    if not (step_s > 0 and budget_s > 0):
        raise ValueError(f"a step of {step_s} s in a budget of {budget_s} s cannot be paced")
    longest = max(1, math.floor(budget_s / MIN_ROUNDS / step_s))
    shortest = math.ceil(MIN_ROUND_S / step_s)
    filling = math.ceil(budget_s / MAX_ROUNDS / step_s)
    steps = max(1, min(max(STEPS_PER_ROUND, shortest, filling), longest))
    steps = in_bursts(steps, burst, within=max(steps, MOST_BUDGETS * budget_s / MIN_ROUNDS / step_s))
    rounds = round(budget_s / (steps * step_s))
    return Pace(steps_per_round=steps, rounds=min(max(rounds, MIN_ROUNDS), MAX_ROUNDS))


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

    def steps_a_block(self, pilot_s: float, burst: int) -> int:
        """As many as take about a tenth of a second, in whole bursts where there is time for the fewest blocks of them."""
        most = self.max_s / pilot_s / (2 * MIN_WINDOW)
        return in_bursts(max(1, round(BLOCK_S / pilot_s)), burst, within=most)

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
