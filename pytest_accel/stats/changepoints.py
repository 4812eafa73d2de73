"""Change points of a series of sessions: advisory beside the gate, which judges one session only.

E-divisive (Matteson and James 2014, arXiv:1306.4933) by bisection: a segment is split where the energy distance
between its two sides is largest, if that split is significant, and both sides are searched in turn. Significance is the paper's
permutation test, on ranks, whose distribution is a table. Why, and how well it does: docs/decisions/0009-change-points.md.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean, median

from pytest_accel.stats.run import spread

MIN_NIGHTS = 4  # on each side of a split; three perfectly separated values are not significant at .01
MIN_VALUES = 12  # shorter segments have too few permutations for the levels below
MIN_WINDOW = 24  # of the parts of a segment that are searched beside the whole
CLIP = 10.0  # robust standard deviations: what is farther off says no more about where a level began
WINDOW = 1000  # newest values that are searched: the work grows with their square
SEASON = 90  # sessions that the page and the command search by default; a millisecond each benchmark

# For series of n values: what the strength (below) of permuted ranks exceeds in 1 % of cases. Simulated with 100,000 permutations
# for the short and 3,000 for the longest; rounded up in the last digit.
CRITICAL = (
    (12, 1.630),
    (14, 1.681),
    (17, 1.748),
    (20, 1.821),
    (30, 1.977),
    (47, 2.104),
    (48, 2.338),
    (95, 2.612),
    (96, 2.722),
    (191, 2.946),
    (192, 2.985),
    (383, 3.225),
    (384, 3.357),
    (767, 3.592),
    (768, 3.554),
    (1000, 3.747),
)

MAX_CORRELATION = 0.8  # of neighbouring sessions; above it every level looks like noise


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """A new level: `values[index]` is the first value of it."""

    index: int
    before: float  # median from the change point before this one, or the beginning
    after: float  # median to the next change point, or the end

    @property
    def relative(self) -> float:
        """The change as a fraction of what was before; only of values with a true zero, not of logarithms."""
        return self.after / self.before - 1


def change_points(values: Sequence[float]) -> tuple[ChangePoint, ...]:
    """Return the change points among the newest WINDOW values, oldest first; none among fewer than MIN_VALUES.

    In 1 % of series without change one is found. Give step times or rates as they are: ranks do not tell them from their
    logarithms.
    """
    first = max(0, len(values) - WINDOW)
    searched = values[first:]
    found = list(_bisect(searched, 0, len(searched), 0.0))
    if found and (correlation := _correlation(searched, [0, *found, len(searched)])):
        found = list(_bisect(searched, 0, len(searched), correlation))
    bounds = [first, *(first + index for index in found), len(values)]
    centres = [median(values[start:stop]) for start, stop in pairwise(bounds)] if found else []
    return tuple(
        ChangePoint(index=first + index, before=before, after=after)
        for index, (before, after) in zip(found, pairwise(centres), strict=True)
    )


def _bisect(values: Sequence[float], start: int, stop: int, correlation: float) -> Iterator[int]:
    """Yield the places of significant splits, from left to right, where neighbours are correlated so much.

    Ranks decide whether there is a change, values where: an outlier cannot hide one, nor a chance order move one. An AR(1) of
    correlation r has means whose variance is (1 + r) / (1 - r) times that of independent values, and so has the statistic,
    but for the 1/3 that its unbiased form has less than the plain one.
    """
    length = stop - start
    if length < MIN_VALUES:
        return
    strength, first, last = max(
        (max(_energies(_ranks(values[a:b]))) / (b - a), a, b) for a, b in windows(start, stop)
    )
    inflation = (1 + correlation) / (1 - correlation)
    if (strength + 1 / 3) / inflation - 1 / 3 <= _limit(length):
        return
    # An outlier counts as CLIP robust standard deviations; not where more than half of the values are equal.
    part = values[first:last]
    middle, reach = median(part), CLIP * spread(part) or math.inf
    energies = _energies([min(max(value, middle - reach), middle + reach) for value in part])
    index = first + MIN_NIGHTS + energies.index(max(energies))
    yield from _bisect(values, start, index, correlation)
    yield index
    yield from _bisect(values, index, stop, correlation)


def windows(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Return the segment, its halves and the one between them, their halves, ...: a slow week vanishes in a whole year."""
    length = stop - start
    pieces = 1
    while pieces == 1 or length // pieces >= MIN_WINDOW:
        for half in range(2 * pieces - 1):
            yield start + half * length // (2 * pieces), start + (half + 2) * length // (2 * pieces)
        pieces *= 2


def _energies(values: Sequence[float]) -> list[float]:
    """Return the scaled energy distance of the two sides, for every split with MIN_NIGHTS or more on each side."""
    n = len(values)
    ordered = sorted(values)
    sums = [0.0, *accumulate(ordered)]
    earlier, later = [], []  # distances of each value from those before and from those after it, summed
    for place, value in enumerate(values):
        below = bisect_left(ordered, value)
        from_all = value * (2 * below - n) + sums[n] - 2 * sums[below]
        earlier.append(sum([abs(value - other) for other in values[:place]]))  # a list: twice as quick
        later.append(from_all - earlier[-1])
    within_left = list(accumulate(earlier))
    within_right = list(accumulate(reversed(later)))[::-1]
    everything = within_left[-1]
    energies = []
    for left in range(MIN_NIGHTS, n - MIN_NIGHTS + 1):
        right = n - left
        inside_left, inside_right = within_left[left - 1], within_right[left]
        between = everything - (inside_left + inside_right)
        inside = inside_left / (left * (left - 1)) + inside_right / (right * (right - 1))
        energies.append(2 * left * right / n * (between / (left * right) - inside))
    return energies


def _ranks(values: Sequence[float]) -> list[float]:
    """Return ranks from 1; equal values share their mean rank."""
    ordered = sorted(values)
    return [(bisect_left(ordered, value) + bisect_right(ordered, value) + 1) / 2 for value in values]


def _limit(length: int) -> float:
    """Return the limit for this length, interpolated in its logarithm: the limits grow about as fast."""
    place = bisect_left(CRITICAL, length, lo=1, key=lambda row: row[0])
    (shorter, low), (longer, high) = CRITICAL[place - 1 : place + 1]
    return low + math.log(length / shorter) / math.log(longer / shorter) * (high - low)


def _correlation(values: Sequence[float], bounds: Sequence[int]) -> float:
    """Return the correlation of neighbouring ranks about the middle of each segment, less one standard error.

    An independent series must not pay for the chance that it looks otherwise.
    """
    shared = squares = 0.0
    for start, stop in pairwise(bounds):
        ranks = _ranks(values[start:stop])
        middle = fmean(ranks)
        deviations = [(rank - middle) / len(ranks) for rank in ranks]
        shared += sum(a * b for a, b in pairwise(deviations))
        squares += sum(deviation * deviation for deviation in deviations)
    if squares == 0:
        return 0.0
    return min(max(shared / squares - 1 / math.sqrt(len(values)), 0.0), MAX_CORRELATION)
