"""NVIDIA Grace and Grace Hopper: the power of the module and of its parts, from the kernel's ACPI power meters.

What contains what (NVIDIA's Grace Performance Tuning Guide, "Power Telemetry"):

    Module Power Socket N   all of a Grace Hopper module: the regulators' losses, memory, and the GPU with its HBM
      Grace Power Socket N    the Grace socket
        CPU Power Socket N      the rail of the cores
        SysIO Power Socket N    the rail of what is around them

So the module's rail holds the GPU that NVML tells of: neither is ever added to the other. There is no counter of
energy: each file is an average over some tens of milliseconds, and energy is the integral of what was sampled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_accel.power.source import Reasons, plausible_w
from pytest_accel.power.sysfs import names, read, read_whole
from pytest_accel.stats.energy import Rail

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

HWMON = "sys/class/hwmon"
_NAMED = re.compile(r"(Module|Grace|CPU|SysIO) Power Socket (\d{1,3})", re.IGNORECASE)
# The kinds of rail that hold one of this kind, nearest first.
_HOLDERS = {"module": (), "grace": ("module",), "cpu": ("grace", "module"), "sysio": ("grace", "module")}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sensor:
    rail: Rail
    path: Path


class GraceSource:
    """The power of each socket's rails; one that vanishes or says garbage is dropped, and said."""

    name = "Grace sensors"

    def __init__(self, host: Path) -> None:
        self._reasons = Reasons()
        self._sensors = self._find(host / HWMON)
        self.rails = _nested([sensor.rail for sensor in self._sensors])
        if not self._sensors:
            why = f"/{HWMON} has no power meter of Grace (the kernel's acpi_power_meter; a container may hide it)"
            self._reasons.say("", "", why)

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
                self._reasons.say(name, "power", f"{name}: {sensor.path} {why}; it is asked no more")
            else:
                readings[sensor.rail.name] = power_w
        return readings

    def close(self) -> None:
        """Every read opens and closes its file."""

    def _find(self, hwmon: Path) -> list[_Sensor]:
        found: dict[str, _Sensor] = {}
        # The attributes lay in `device` until the kernel's driver moved them into the folder itself.
        for folder in (hwmon / name / inner for name in names(hwmon) for inner in ("device", "")):
            named = _NAMED.fullmatch(read(folder / "power1_oem_info")[0])
            if not named:
                continue
            kind, socket = named[1].lower(), int(named[2])
            rail = Rail(name=f"{kind}{socket}", scope="node", kind=kind)
            found.setdefault(rail.name, _Sensor(rail=rail, path=folder / "power1_average"))
        return [found[name] for name in sorted(found)]


def _read_w(path: Path) -> tuple[float | None, str]:
    microwatts, why = read_whole(path)
    if microwatts is None:
        return None, why
    power_w = microwatts / 1e6
    return (power_w, "") if plausible_w(power_w) else (None, f"says {power_w:g} W, which cannot be")


def _nested(rails: Sequence[Rail]) -> tuple[Rail, ...]:
    """Each within the smallest one of its socket that holds it and is there."""
    there = {rail.name for rail in rails}
    nested = []
    for rail in rails:
        holders = (holder + rail.name.removeprefix(rail.kind) for holder in _HOLDERS[rail.kind])
        nested.append(replace(rail, within=next((holder for holder in holders if holder in there), "")))
    return tuple(nested)
