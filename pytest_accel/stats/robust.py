"""Spread that one value far off does not widen: from the median absolute deviation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

_OF_NORMAL = 1.4826  # a normal distribution's standard deviation, over its median absolute deviation


def spread(values: Sequence[float], about: float | None = None) -> float:
    """Return the standard deviation that normal values of this median absolute deviation have, about their median or a given one."""
    middle = median(values) if about is None else about
    return _OF_NORMAL * median(abs(value - middle) for value in values)


def median_error(values: Sequence[float]) -> float:
    """Return the standard error of their median: that of a mean of normal values, and sqrt(pi/2) times as much."""
    return spread(values) * math.sqrt(math.pi / 2 / len(values))
