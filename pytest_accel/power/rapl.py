"""Energy counters of Intel and AMD processors (RAPL), from the kernel's powercap tree.

    intel-rapl:0      package-0   the socket; AMD's under the same name
    intel-rapl:0:0    core        part of the package: not read
    intel-rapl:0:1    dram        memory, not part of the package
    intel-rapl:1      psys        the whole board, packages and memory included
    intel-rapl-mmio:0 package-0   the same counter by another interface: not read

A counter starts again at 0 after `max_energy_range_uj`: 65 kJ on many an EPYC, which a busy socket uses in
minutes. The counters are therefore followed at each `watts()` too, and joules only grow.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_accel.platforms.host import REFUSED, folder_names, read_file
from pytest_accel.power.source import PowerNode, Reasons, read_sensor
from pytest_accel.stats.energy import MOST_W, Rail, counted_j

POWERCAP = "sys/class/powercap"
REMEDY = "an administrator may allow it: chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj, or a udev rule that does"
SHORTEST_S = 0.01  # counters tick every millisecond: over less, a tick looks like kilowatts
_ZONE = re.compile(r"intel-rapl:\d+(:\d+)?")
_KINDS = {"package": "cpu", "dram": "dram", "psys": "psys"}


def open_source(node: PowerNode) -> RaplSource | None:
    source = RaplSource(node.root)
    return source if source.rails or not node.is_arm else None


@dataclass(slots=True, kw_only=True)
class _Zone:
    rail: Rail
    path: Path
    range_j: float | None
    raw_j: float  # last reading
    read_s: float  # time of the last reading
    used_j: float = 0.0  # since it was opened, wrap-arounds included
    power_from_s: float | None = None  # begin of the interval of the next power
    power_from_j: float = 0.0

    def follow(self, raw_j: float, now_s: float) -> bool:
        """Add a reading; False for a counter that was reset or is broken."""
        more_j = counted_j(self.raw_j, raw_j, self.range_j)
        if more_j is None or more_j > MOST_W * max(now_s - self.read_s, SHORTEST_S):
            return False
        self.raw_j, self.read_s, self.used_j = raw_j, now_s, self.used_j + more_j
        return True

    def begin(self) -> None:
        """Begin the interval of the next power here."""
        self.power_from_s, self.power_from_j = self.read_s, self.used_j

    def mean_w(self) -> float | None:
        """Return the mean power of the interval, and begin the next; None for too short an interval."""
        if self.power_from_s is not None and self.read_s - self.power_from_s < SHORTEST_S:
            return None
        power_w = None
        if self.power_from_s is not None:
            power_w = (self.used_j - self.power_from_j) / (self.read_s - self.power_from_s)
        self.begin()
        return power_w


class RaplSource:
    """The sockets' counters; power is the energy since the last reading."""

    name = "RAPL"

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._reasons = Reasons()
        self._clock = clock
        self._lock = threading.Lock()  # watts() and joules() are called from different threads
        powercap = root / POWERCAP
        self.rails: tuple[Rail, ...] = ()
        self._zones = self._find(powercap)
        self.rails = _nested(self.rails) if self._zones else ()
        if not self._zones and not self.problem:
            why = "is not there (virtual machines hide it)"
            if powercap.is_dir():
                why = "has no intel-rapl:0 (the kernel's intel_rapl_msr is not loaded)"
            self._reasons.add("", "", f"/{POWERCAP} {why}")

    @property
    def problem(self) -> str:
        return str(self._reasons)

    def joules(self) -> Mapping[str, float]:
        with self._lock:
            self._follow()
            for zone in self._zones:
                zone.begin()  # power of a window excludes the energy before it
            return {zone.rail.name: zone.used_j for zone in self._zones}

    def watts(self) -> Mapping[str, float]:
        """Return mean power since the last call of either method; nothing at the first call."""
        with self._lock:
            self._follow()
            powers_w = {zone.rail.name: zone.mean_w() for zone in self._zones}
        return {rail: power_w for rail, power_w in powers_w.items() if power_w is not None}

    def close(self) -> None:
        """Every read opens and closes its file."""

    def _follow(self) -> None:
        """Read every counter; drop one that vanished, is unreadable or was reset."""
        kept = []
        for zone in self._zones:
            microjoules, why = read_sensor(zone.path)
            if microjoules is None:
                self._drop(zone.rail.name, zone.path, why)
            elif not zone.follow(microjoules / 1e6, self._clock()):
                change = f"went from {zone.raw_j:.12g} J to {microjoules / 1e6:.12g} J"
                self._drop(zone.rail.name, zone.path, change)
            else:
                kept.append(zone)
        self._zones = kept

    def _find(self, powercap: Path) -> list[_Zone]:
        """Return the zones that answer; `rails` has the others too, since a sum without them is wrong."""
        zones: dict[str, _Zone | None] = {}
        for folder in (powercap / name for name in folder_names(powercap) if _ZONE.fullmatch(name)):
            own = read_file(folder / "name")[0]
            kind = _KINDS.get(own.partition("-")[0], "")
            if not kind:  # core, uncore: part of the package
                continue
            # Memory is named dram on every socket: the parent folder has the socket.
            nested = folder.name.count(":") == 2
            package = read_file(powercap / folder.name.rpartition(":")[0] / "name")[0] if nested else ""
            rail = Rail(name=f"{package} {own}".strip(), scope="node", kind=kind)
            if rail.name not in zones:
                zones[rail.name] = zone = self._open(rail, folder)
                self.rails += (rail,) if zone or kind != "psys" else ()
        return [zone for zone in zones.values() if zone]

    def _open(self, rail: Rail, folder: Path) -> _Zone | None:
        path = folder / "energy_uj"
        microjoules, why = read_sensor(path)
        if microjoules is None:
            if why == REFUSED:  # of all zones alike: reported once
                self._reasons.add("", REFUSED, f"{path} may be read by root only; {REMEDY}")
            else:
                self._drop(rail.name, path, why)
            return None
        if rail.kind == "psys" and not microjoules:
            # Boards without the wiring answer 0 forever; it must not replace the sockets.
            self._drop(rail.name, path, "stands at 0")
            return None
        range_uj = read_sensor(folder / "max_energy_range_uj")[0]
        return _Zone(
            rail=rail,
            path=path,
            range_j=range_uj / 1e6 if range_uj else None,
            raw_j=microjoules / 1e6,
            read_s=self._clock(),
        )

    def _drop(self, rail: str, path: Path, why: str) -> None:
        self._reasons.add(rail, "energy", f"{rail}: {path} {why}; left out")


def _nested(rails: tuple[Rail, ...]) -> tuple[Rail, ...]:
    """Put all rails within the board's, if there is one."""
    board = next((rail.name for rail in rails if rail.kind == "psys"), "")
    return tuple(rail if rail.name == board else replace(rail, within=board) for rail in rails)
