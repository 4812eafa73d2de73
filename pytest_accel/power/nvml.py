"""Power and energy of NVIDIA GPUs through NVML.

The energy counter ticks about every 100 ms and a call takes milliseconds (H200: 3.2 ms, at most 15), so it is
read at the ends of a window of seconds: over 5 s a tick is 2 %. A power reading takes microseconds (H200: 3.1 by
the field of instantaneous power, 1.2 by `nvmlDeviceGetPowerUsage`, an average over a second on most GPUs). Over 6 s
of matrix products the counter gave 688.16 W, instantaneous power at 50 Hz 688.09 W, the average 692.25 W.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_accel.platforms.catalogue import DetectedDevice
from pytest_accel.platforms.nvidia import open_nvml
from pytest_accel.power.source import DeviceSource, checked_w

# Field and scope of nvml.h, for versions of nvidia-ml-py that do not name them.
POWER_INSTANT, SCOPE_GPU = 186, 0


class NvmlSource(DeviceSource):
    """The GPUs with these UUIDs, each once: NVML's indices ignore CUDA_VISIBLE_DEVICES."""

    def __init__(self, devices: Sequence[DetectedDevice]) -> None:
        super().__init__("NVML")
        self._nvml = open_nvml()
        if self._nvml.problem:
            self.add_problem("", "", self._nvml.problem)
        else:
            self.open_devices(devices, self._find)

    def close(self) -> None:
        self.handles = {}
        self._nvml.close()

    def _find(self, device: DetectedDevice) -> object:
        handle = self._nvml.handle(device.uuid)
        if handle is None:
            raise LookupError(f"NVML does not know this device ({device.uuid or 'no UUID'})")
        return handle

    def energy_j(self, handle: object) -> float:
        return float(self._nvml.demand("nvmlDeviceGetTotalEnergyConsumption", handle)) / 1000

    def power_w(self, handle: object) -> float:
        """Return instantaneous power; the average where it is not supported."""
        values = self._nvml.ask("nvmlDeviceGetFieldValues", handle, [(POWER_INSTANT, SCOPE_GPU)])
        for value in values or ():
            if not value.nvmlReturn and value.value.uiVal:  # 0 is no reading: every GPU draws power
                return checked_w(value.value.uiVal / 1000)
        return checked_w(self._nvml.demand("nvmlDeviceGetPowerUsage", handle) / 1000)


VENDOR, SOURCE = "nvidia", NvmlSource
