"""Device limits: the roofline of a step, and devices slower than their equals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from pytest_accel.stats.quantities import counted, percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """What a device can do at most; None where the catalogue does not say it."""

    peak_tflops: float | None  # dense, at one precision
    bandwidth_gb_s: float | None  # of its memory

    def compute_s(self, flops: float | None) -> float:
        """Return the arithmetic alone; 0 where nothing is known."""
        return flops / (self.peak_tflops * 1e12) if flops and self.peak_tflops else 0.0

    def memory_s(self, bytes_moved: float | None) -> float:
        """Return the transfers alone; 0 where nothing is known."""
        return bytes_moved / (self.bandwidth_gb_s * 1e9) if bytes_moved and self.bandwidth_gb_s else 0.0

    def least_s(self, flops: float | None, bytes_moved: float | None) -> float:
        """Return the time of both where they overlap fully; 0 where nothing is known."""
        return max(self.compute_s(flops), self.memory_s(bytes_moved))

    def rates(self, step_s: float, flops: float | None, bytes_moved: float | None) -> dict[str, float]:
        """Return the metrics of a step: operations and bytes a second, and their shares of the peaks."""
        found: dict[str, float] = {}
        if flops:
            found["tflops"] = flops / step_s / 1e12
            if self.peak_tflops:
                found["mfu"] = found["tflops"] / self.peak_tflops
        if bytes_moved:
            found["memory_gb_per_s"] = bytes_moved / step_s / 1e9
            if self.bandwidth_gb_s:  # without bytes it would be MFU under another name
                found["roofline_share"] = self.least_s(flops, bytes_moved) / step_s
        return found

    def impossible(
        self,
        step_s: float,
        flops: float | None,
        bytes_moved: float | None,
        *,
        device: str = "this device",
        precision: str = "",
    ) -> str:
        """Describe why a step of the fastest round is impossible; empty where it is possible."""
        if step_s >= self.least_s(flops, bytes_moved):
            return ""
        found = []
        if flops and self.peak_tflops and step_s < self.compute_s(flops):
            found.append(
                f"{flops / step_s / 1e12:.0f} TFLOP/s in the fastest round, where the dense {precision or 'arithmetic'} "
                f"peak of {device} is {self.peak_tflops:g}"
            )
        if bytes_moved and self.bandwidth_gb_s and step_s < self.memory_s(bytes_moved):
            found.append(
                f"{bytes_moved / step_s / 1e9:.0f} GB/s in the fastest round, where the memory of {device} moves "
                f"{self.bandwidth_gb_s:g}"
            )
        least_s = self.least_s(flops, bytes_moved)
        return (
            f"impossible: {'; and '.join(found)}: a step of {step_s * 1e3:.3g} ms cannot take less than "
            f"{least_s * 1e3:.3g} ms. Is the device synchronized, is the precision the one that was named, and does the "
            "step do its work?"
        )


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
    """A device that did one kind of work clearly slower than the median of its process group."""

    reading: Reading
    under: float  # fraction of the median that is missing
    devices: int

    def line(self) -> str:
        who = f"rank {self.reading.rank} ({self.reading.device}, node {self.reading.host})"
        of = f"the median of {counted(self.devices, 'device')}"
        return f"{who}: {self.reading.kind} {percent(self.under)} under {of}"


def find_stragglers(readings: Iterable[Reading], threshold: float = THRESHOLD) -> tuple[Straggler, ...]:
    """Return the readings more than `threshold` under the median of their kind, by rank.

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
