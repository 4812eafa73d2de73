"""Naming the device that is slower than its equals, from what each did alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from pytest_accel.stats.quantities import counted, percent

if TYPE_CHECKING:
    from collections.abc import Iterable

THRESHOLD = 0.05  # of the median: what lacks more is named


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How fast one rank's device did one kind of work while it worked alone."""

    kind: str  # "matrix product", "copy"
    rate: float  # work per second: higher is better
    unit: str
    rank: int
    device: str  # what tells it from its neighbours: model and UUID
    host: str

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rate) and self.rate >= 0):
            raise ValueError(f"{self.kind} on rank {self.rank}: {self.rate} is not a rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A device that did one kind of work clearly slower than the median of its gang."""

    reading: Reading
    under: float  # fraction of the median that is missing
    devices: int

    def line(self) -> str:
        who = f"rank {self.reading.rank} ({self.reading.device}, node {self.reading.host})"
        of = f"the median of {counted(self.devices, 'device')}"
        return f"{who}: {self.reading.kind} {percent(self.under)} under {of}"


def find_stragglers(readings: Iterable[Reading], threshold: float = THRESHOLD) -> tuple[Straggler, ...]:
    """The readings more than `threshold` under the median of their kind, by rank.

    At least half of the devices reach the median, so never more than half are named. Of two devices the median is
    their mean: the slower one is named when it lacks 9.5 % of the faster one (r < 0.95 (1 + r) / 2 below r = 0.905).
    """
    kinds: dict[str, list[Reading]] = {}
    for reading in readings:
        kinds.setdefault(reading.kind, []).append(reading)
    found = []
    for each in kinds.values():
        middle = median(reading.rate for reading in each)
        for reading in each:
            under = 1 - reading.rate / middle if middle > 0 else 0.0
            if under > threshold:
                found.append(Straggler(reading=reading, under=under, devices=len(each)))
    return tuple(sorted(found, key=lambda straggler: straggler.reading.rank))
