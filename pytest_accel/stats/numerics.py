"""Does a benchmark still compute what it did? Its loss after the same seeded steps, beside those of earlier runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Seeded steps repeat to the last bit on one machine on the CPU; GPU kernels that add atomically differ
# in the last digits of fp32 and the third of bf16.
LOSS_TOLERANCE = 0.01


def loss_news(before: Sequence[float | None], after: float | None) -> str:
    """Say how the loss changed; empty where it is one that earlier runs led to expect, or there is none.

    Some benchmarks do not compute the same twice: where a device adds up in an order of its own, another box may match. Their runs
    show that by themselves, so that a loss is no news that is no further from them than they are from each other.
    """
    losses = [loss for loss in before if loss is not None]
    if after is None or not losses:
        return ""
    known = [loss for loss in losses if math.isfinite(loss)]
    if not known:
        return f"{losses[-1]:.6g} -> {after:.6g}" if math.isfinite(after) else ""
    lowest, highest = min(known), max(known)
    if math.isfinite(after):
        largest = max(abs(lowest), abs(highest), abs(after))
        allowed = max(LOSS_TOLERANCE * largest, highest - lowest)
        if max(lowest - after, after - highest) <= allowed:
            return ""
    ends = dict.fromkeys(f"{loss:.6g}" for loss in (lowest, highest))
    return f"{' to '.join(ends)} -> {after:.6g}"
