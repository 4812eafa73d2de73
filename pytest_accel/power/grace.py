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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_accel.platforms.host import folder_names, read_file
from pytest_accel.power.source import PowerNode, Reasons, plausible_w, read_sensor
from pytest_accel.stats.energy import Rail

HWMON = "sys/class/hwmon"
_NAMED = re.compile(r"(Module|Grace|CPU|SysIO) Power Socket (\d{1,3})", re.IGNORECASE)
# The kinds of rail that include one of this kind, nearest first.
_HOLDERS = {"module": (), "grace": ("module",), "cpu": ("grace", "module"), "sysio": ("grace", "module")}


def open_source(node: PowerNode) -> GraceSource | None:
    source = GraceSource(node.root)
    return source if source.rails or node.is_arm else None


def has_module_rails(root: Path) -> bool:
    """Whether these sensors report whole modules; NVML then must not."""
    return any(rail.kind == "module" for rail in GraceSource(root).rails)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sensor:
    rail: Rail
    path: Path


class GraceSource:
    """The power of each socket's rails; a sensor that vanishes or fails is dropped and reported."""

    name = "Grace sensors"

    def __init__(self, root: Path) -> None:
        self._reasons = Reasons()
        self._sensors = self._find(root / HWMON)
        self.rails = _nested([sensor.rail for sensor in self._sensors])
        if not self._sensors:
            why = f"/{HWMON} has no power meter of Grace (the kernel's acpi_power_meter; a container may hide it)"
            self._reasons.add("", "", why)

    @property
    def problem(self) -> str:
        return str(self._reasons)

    def joules(self) -> Mapping[str, float]:
        return {}

    def watts(self) -> Mapping[str, float]:
        readings: dict[str, float] = {}
        for sensor in self._sensors[:]:
            power_w, why = _read_w(sensor.path)
            if power_w is None:
                self._sensors.remove(sensor)
                name = sensor.rail.name
                self._reasons.add(name, "power", f"{name}: {sensor.path} {why}; left out")
            else:
                readings[sensor.rail.name] = power_w
        return readings

    def close(self) -> None:
        """Every read opens and closes its file."""

    def _find(self, hwmon: Path) -> list[_Sensor]:
        found: dict[str, _Sensor] = {}
        # Older kernels have the attributes in `device`, newer ones in the folder itself.
        for folder in (hwmon / name / inner for name in folder_names(hwmon) for inner in ("device", "")):
            named = _NAMED.fullmatch(read_file(folder / "power1_oem_info")[0])
            if not named:
                continue
            kind, socket = named[1].lower(), int(named[2])
            rail = Rail(name=f"{kind}{socket}", scope="node", kind=kind)
            found.setdefault(rail.name, _Sensor(rail=rail, path=folder / "power1_average"))
        return [found[name] for name in sorted(found)]


def _read_w(path: Path) -> tuple[float | None, str]:
    microwatts, why = read_sensor(path)
    if microwatts is None:
        return None, why
    power_w = microwatts / 1e6
    return (power_w, "") if plausible_w(power_w) else (None, f"says {power_w:g} W, which is impossible")


def _nested(rails: Sequence[Rail]) -> tuple[Rail, ...]:
    """Put each rail within the smallest present rail of its socket that includes it."""
    present = {rail.name for rail in rails}
    nested = []
    for rail in rails:
        holders = (holder + rail.name.removeprefix(rail.kind) for holder in _HOLDERS[rail.kind])
        nested.append(replace(rail, within=next((holder for holder in holders if holder in present), "")))
    return tuple(nested)
