"""The least time that a step can take on a device: its arithmetic at the peak, or its bytes at the memory's rate.

Williams, Waterman, Patterson, "Roofline", CACM 52 (2009). What is quicker than that was not measured but missed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Bound = Literal["compute", "memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """What a device can do at most; None where the catalogue does not say it."""

    peak_tflops: float | None  # dense, at one precision
    bandwidth_gb_s: float | None  # of its memory

    def compute_s(self, flops: float | None) -> float:
        """The arithmetic alone; 0 where nothing is known."""
        return flops / (self.peak_tflops * 1e12) if flops and self.peak_tflops else 0.0

    def memory_s(self, bytes_moved: float | None) -> float:
        """The transfers alone; 0 where nothing is known."""
        return bytes_moved / (self.bandwidth_gb_s * 1e9) if bytes_moved and self.bandwidth_gb_s else 0.0

    def least_s(self, flops: float | None, bytes_moved: float | None) -> float:
        """Both at the same time, as well as they can overlap; 0 where nothing is known."""
        return max(self.compute_s(flops), self.memory_s(bytes_moved))

    def bound(self, flops: float | None, bytes_moved: float | None) -> Bound | None:
        """Which of both is the longer; None where neither is known."""
        compute_s, memory_s = self.compute_s(flops), self.memory_s(bytes_moved)
        if not compute_s and not memory_s:
            return None
        return "compute" if compute_s >= memory_s else "memory"

    def share(self, step_s: float, flops: float | None, bytes_moved: float | None) -> float | None:
        """How much of a step its least time is: 1 where nothing is left to gain; None where neither is known."""
        least_s = self.least_s(flops, bytes_moved)
        return least_s / step_s if least_s else None

    def rates(self, step_s: float, flops: float | None, bytes_moved: float | None) -> dict[str, float]:
        """Return the metrics of a step: operations and bytes a second, and their shares of the peaks."""
        found: dict[str, float] = {}
        if flops:
            found["tflops"] = flops / step_s / 1e12
            if self.peak_tflops:
                found["mfu"] = found["tflops"] / self.peak_tflops
        if bytes_moved:
            found["memory_gb_per_s"] = bytes_moved / step_s / 1e9
            # Without bytes it would be MFU under another name.
            if self.bandwidth_gb_s and (share := self.share(step_s, flops, bytes_moved)):
                found["roofline_share"] = share
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
        """What cannot be of a step of the fastest round, in words; empty where it can."""
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
            f"{least_s * 1e3:.3g} ms. Is the device synchronised, is the precision the one that was named, and does the "
            "step do its work?"
        )
