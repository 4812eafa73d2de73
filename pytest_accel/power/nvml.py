"""NVIDIA's own counter of a GPU's energy, through NVML.

It ticks about every 100 ms and a call takes milliseconds (H200: 3.7 ms), so it is read at the two ends of a window
of seconds, never inside it: over 5 s a tick is 2 %.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Self


class NvmlCounter:
    """The joules that one GPU has used since its driver was loaded; None where it does not say."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._handle: Any = None
        self._open = False

    def __enter__(self) -> Self:
        try:
            import pynvml
        except ImportError:
            return self
        try:
            pynvml.nvmlInit()
            self._open = True
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(self._uuid)
        except pynvml.NVMLError:
            self._handle = None
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            import pynvml

            with suppress(pynvml.NVMLError):  # of a GPU that was lost meanwhile
                pynvml.nvmlShutdown()
            self._open = False
        self._handle = None

    def read_j(self) -> float | None:
        if self._handle is None:
            return None
        import pynvml

        try:
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1000  # of millijoules
        except pynvml.NVMLError:  # a GPU before Volta, or one that was lost
            return None
