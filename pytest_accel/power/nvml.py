"""NVIDIA's own counter of a GPU's energy, through NVML.

It ticks about every 100 ms and a call takes milliseconds (H200: 3.7 ms), so it is read at the two ends of a window
of seconds, never inside it: over 5 s a tick is 2 %.
"""

from __future__ import annotations

from typing import Self

from pytest_accel.nvml import Nvml, close, open_nvml


class NvmlCounter:
    """The joules that one GPU has used since its driver was loaded; None where it does not say."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._nvml: Nvml | None = None
        self._handle: object | None = None

    def __enter__(self) -> Self:
        self._nvml = open_nvml()
        self._handle = self._nvml.handle(self._uuid)
        return self

    def __exit__(self, *_: object) -> None:
        if self._nvml is not None:
            close(self._nvml)
        self._nvml = self._handle = None

    def read_j(self) -> float | None:
        if self._nvml is None or self._handle is None:
            return None
        millijoules = self._nvml.ask("nvmlDeviceGetTotalEnergyConsumption", self._handle)
        return (
            None if millijoules is None else float(millijoules) / 1000
        )  # none before Volta, or of a lost GPU
