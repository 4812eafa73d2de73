"""How throughput grows with devices: the same work on more of them, against fewer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_accel.stats.verdict import StepTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What a number of devices achieved."""

    devices: int
    work_per_step: float  # of all devices together
    step: StepTime

    @property
    def throughput(self) -> float:
        return self.work_per_step / self.step.point_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """More devices against fewer."""

    few: Point
    many: Point

    @property
    def speedup(self) -> float:
        return self.many.throughput / self.few.throughput

    @property
    def efficiency(self) -> float:
        """Throughput per device against that of the few: 1 when nothing was lost."""
        return self.speedup * self.few.devices / self.many.devices

    @property
    def kind(self) -> Literal["weak", "strong"]:
        """Weak: each device keeps its work; strong: they share the same work."""
        return "strong" if self.many.work_per_step == self.few.work_per_step else "weak"

    @property
    def is_superlinear(self) -> bool:
        """Above the number of devices by more than the noise of both sides explains: an alarm, not a feat."""
        noise = (1 + self.few.step.relative_high) * (1 + self.many.step.relative_high)
        return self.efficiency > noise
