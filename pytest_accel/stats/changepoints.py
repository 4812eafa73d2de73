"""Change points of a series of sessions: advisory beside the gate, which judges one session only.

E-divisive (Matteson and James 2014, arXiv:1306.4933) by bisection: a segment is split where the energy distance
between its two sides is largest, if that split is significant, and both sides are searched in turn. Significance is
the paper's permutation test, on ranks: a permutation of ranks is the same for every series, so that its distribution
is a table (below) and nothing is drawn here. Why, and how well it does: docs/decisions/0009-change-points.md.
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

LEVELS = (0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
# For series of n values: what the strength (below) of permuted ranks exceeds with those probabilities. Simulated
# with 100,000 permutations for the short and 3,000 for the
# longest, where the last column is known to .2 only; rounded up in the last digit.
CRITICAL = (
    (12, (1.063, 1.325, 1.630, 1.783, 1.834, 1.834)),
    (14, (1.153, 1.441, 1.681, 1.769, 1.990, 2.123)),
    (17, (1.241, 1.551, 1.748, 1.920, 2.215, 2.247)),
    (20, (1.293, 1.597, 1.821, 2.027, 2.281, 2.384)),
    (30, (1.409, 1.747, 1.977, 2.194, 2.449, 2.664)),
    (47, (1.520, 1.856, 2.104, 2.340, 2.624, 2.791)),
    (48, (1.819, 2.128, 2.338, 2.529, 2.794, 2.998)),
    (95, (2.001, 2.342, 2.612, 2.854, 3.194, 3.431)),
    (96, (2.181, 2.495, 2.722, 2.948, 3.219, 3.431)),
    (191, (2.353, 2.704, 2.946, 3.201, 3.592, 3.720)),
    (192, (2.460, 2.766, 2.985, 3.217, 3.531, 3.711)),
    (383, (2.687, 3.006, 3.225, 3.494, 3.857, 4.343)),
    (384, (2.772, 3.115, 3.357, 3.569, 3.783, 4.133)),
    (767, (3.041, 3.412, 3.592, 3.739, 4.183, 4.369)),
    (768, (3.020, 3.325, 3.554, 3.719, 3.995, 4.419)),
    (1000, (3.162, 3.481, 3.747, 3.997, 4.249, 4.689)),
)

MAX_CORRELATION = 0.8  # of neighbouring sessions; above it every level looks like noise


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """A new level: `values[index]` is the first value of it."""

    index: int
    before: float  # median from the change point before this one, or the beginning
    after: float  # median to the next change point, or the end
    significance: float  # at most this often does a series without change look so; the least is .001

    @property
    def relative(self) -> float:
        """The change as a fraction of what was before; only of values with a true zero, not of logarithms."""
        return self.after / self.before - 1


def change_points(values: Sequence[float], *, level: float = 0.01) -> tuple[ChangePoint, ...]:
    """Return the change points among the newest WINDOW values, oldest first; none among fewer than MIN_VALUES.

    `level`, one of LEVELS, is the share of series without change in which one is found. Give step times or rates
    as they are: ranks do not tell them from their logarithms.
    """
    first = max(0, len(values) - WINDOW)
    searched = values[first:]
    tree = _bisect(searched, 0, len(searched), level)
    if tree is None:
        return ()
    correlation = _correlation(searched, [0, *(split.index for split in _all(tree)), len(searched)])
    kept = list(_significant(tree, level, correlation))
    bounds = [first, *(first + split.index for split, _ in kept), len(values)]
    centres = [median(values[start:stop]) for start, stop in pairwise(bounds)]
    return tuple(
        ChangePoint(index=first + split.index, before=before, after=after, significance=significance)
        for (split, significance), (before, after) in zip(kept, pairwise(centres), strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """One bisection, and those of its two sides."""

    index: int
    length: int  # of the segment that was split
    strength: float  # the largest energy statistic on the ranks of a window, divided by the window's length
    left: _Split | None
    right: _Split | None


def _bisect(values: Sequence[float], start: int, stop: int, level: float) -> _Split | None:
    """Ranks decide whether there is a change, values where: an outlier cannot hide one, nor a chance order move one."""
    length = stop - start
    if length < MIN_VALUES:
        return None
    strength, (first, last) = max((_strength(values[a:b]), (a, b)) for a, b in windows(start, stop))
    if _significance(strength, length) > level:
        return None
    energies = _energies(_clipped(values[first:last]))
    index = first + MIN_NIGHTS + energies.index(max(energies))
    return _Split(
        index=index,
        length=length,
        strength=strength,
        left=_bisect(values, start, index, level),
        right=_bisect(values, index, stop, level),
    )


def windows(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Return the segment, its halves and the one between them, their halves, ...: a slow week vanishes in a whole year."""
    length = stop - start
    pieces = 1
    while pieces == 1 or length // pieces >= MIN_WINDOW:
        for half in range(2 * pieces - 1):
            yield start + half * length // (2 * pieces), start + (half + 2) * length // (2 * pieces)
        pieces *= 2


def _strength(values: Sequence[float]) -> float:
    return max(_energies(_ranks(values))) / len(values)


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


def _clipped(values: Sequence[float]) -> list[float]:
    """Clip values to CLIP robust standard deviations about their median."""
    middle = median(values)
    reach = CLIP * spread(values)
    if reach == 0:  # more than half are equal: there is no noise to measure by
        return list(values)
    return [min(max(value, middle - reach), middle + reach) for value in values]


def _ranks(values: Sequence[float]) -> list[float]:
    """Return ranks from 1; equal values share their mean rank."""
    ordered = sorted(values)
    return [(bisect_left(ordered, value) + bisect_right(ordered, value) + 1) / 2 for value in values]


def _significance(strength: float, length: int) -> float:
    """Return the smallest of LEVELS that this strength passes, else 1."""
    passed = (level for level, limit in zip(LEVELS, _limits(length), strict=True) if strength > limit)
    return min(passed, default=1.0)


def _limits(length: int) -> list[float]:
    """Return the table's row for this length, interpolated in its logarithm: the limits grow about as fast."""
    for (shorter, low), (longer, high) in pairwise(CRITICAL):
        if shorter <= length <= longer:
            share = math.log(length / shorter) / math.log(longer / shorter)
            return [a + share * (b - a) for a, b in zip(low, high, strict=True)]
    return list(CRITICAL[-1][1])  # a window beyond the table: a little less strict than it says


def _correlation(values: Sequence[float], bounds: Sequence[int]) -> float:
    """Return the correlation of neighbouring values between change points, less one standard error.

    Measured on ranks about the middle of each segment, less one standard error: an independent series must not pay
    for the chance that it looks otherwise.
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


def _significant(split: _Split | None, level: float, correlation: float) -> Iterator[tuple[_Split, float]]:
    """Yield the splits that stay significant with correlated neighbours, from left to right.

    An AR(1) of correlation r has means whose variance is (1 + r) / (1 - r) times that of independent values, and so
    has the statistic, but for the 1/3 that its unbiased form has less than the plain one.
    """
    if split is None:
        return
    inflation = (1 + correlation) / (1 - correlation)
    significance = _significance((split.strength + 1 / 3) / inflation - 1 / 3, split.length)
    if significance <= level:
        yield from _significant(split.left, level, correlation)
        yield split, significance
        yield from _significant(split.right, level, correlation)


def _all(split: _Split | None) -> Iterator[_Split]:
    if split is not None:
        yield from _all(split.left)
        yield split
        yield from _all(split.right)
