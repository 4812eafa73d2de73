"""Power of NVIDIA Grace and Grace Hopper modules, from the kernel's ACPI power meters.

NVIDIA's Grace Performance Tuning Guide, "Power Telemetry":

    Module Power Socket N   a whole Grace Hopper module: regulators, memory, and the GPU with its HBM
      Grace Power Socket N    the Grace socket
        CPU Power Socket N      the rail of the cores
        SysIO Power Socket N    the rail of the uncore

The module's rail includes the GPU that NVML reports: they are never added. There is no energy counter; each file
is an average over tens of milliseconds, and energy is integrated from samples.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pytest_accel.platforms.host import folder_names, read_file
from pytest_accel.power.source import BaseSource, checked_w, read_sensor
from pytest_accel.stats.energy import Rail

HWMON = "sys/class/hwmon"
_NAMED = re.compile(r"(Module|Grace|CPU|SysIO) Power Socket (\d{1,3})", re.IGNORECASE)
# The kinds of rail that include one of this kind, nearest first.
_HOLDERS = {"module": (), "grace": ("module",), "cpu": ("grace", "module"), "sysio": ("grace", "module")}


class GraceSource(BaseSource):
    """The power of each socket's rails."""

    def __init__(self, root: Path) -> None:
        super().__init__("Grace sensors")
        found: dict[tuple[str, str], Path] = {}  # kind and socket
        # Older kernels have the attributes in `device`, newer ones in the folder itself.
        hwmon = root / HWMON
        for folder in (hwmon / name / inner for name in folder_names(hwmon) for inner in ("device", "")):
            if named := _NAMED.fullmatch(read_file(folder / "power1_oem_info")[0]):
                found.setdefault((named[1].lower(), named[2]), folder / "power1_average")
        self.handles = {kind + socket: path for (kind, socket), path in sorted(found.items())}
        for kind, socket in sorted(found):
            holders = (holder + socket for holder in _HOLDERS[kind])
            within = next((each for each in holders if each in self.handles), "")
            self.rails += (Rail(name=kind + socket, scope="node", kind=kind, within=within),)
        if not found:
            why = "the kernel's acpi_power_meter; a container may hide it"
            self.add_problem("", "", f"/{HWMON} has no power meter of Grace ({why})")

    def watts(self) -> Mapping[str, float]:
        return self.readings("power cannot be read", _watts)


def _watts(path: Path) -> float:
    microwatts, why = read_sensor(path)
    if microwatts is None:
        raise ValueError(f"{path} {why}")
    return checked_w(microwatts / 1e6)


MACHINES, SOURCE = ("aarch64", "arm64"), GraceSource
