"""Energy counters of Intel and AMD processors (RAPL), from the kernel's powercap tree.

    intel-rapl:0      package-0   the socket; AMD's under the same name
    intel-rapl:0:0    core        part of the package: not read
    intel-rapl:0:1    dram        memory, not part of the package
    intel-rapl:1      psys        the whole board, packages and memory included
    intel-rapl-mmio:0 package-0   the same counter by another interface: not read

A counter starts again at 0 after `max_energy_range_uj`: 65 kJ on many an EPYC, which a busy socket uses in
minutes. The counters are therefore followed at each `watts()` too, which reports nothing, and joules only grow.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_accel.platforms.host import REFUSED, folder_names, read_file
from pytest_accel.power.source import BaseSource, PowerNode, read_sensor
from pytest_accel.stats.energy import MOST_W, Rail

POWERCAP = "sys/class/powercap"
REMEDY = "an administrator may allow it: chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj, or a udev rule that does"
_SHORTEST_S = 0.01  # counters tick every millisecond: over less, a tick looks like kilowatts
_ZONE = re.compile(r"intel-rapl:\d+(:\d+)?")
_KINDS = {"package": "cpu", "dram": "dram", "psys": "psys"}


def open_source(node: PowerNode) -> RaplSource | None:
    source = RaplSource(node.root)
    return source if source.rails or not node.is_arm else None


@dataclass(slots=True, kw_only=True)
class _Zone:
    path: Path
    range_j: float
    raw_j: float  # last reading
    read_s: float  # time of the last reading
    used_j: float = 0.0  # since it was opened, wrap-arounds included

    def follow(self, raw_j: float, now_s: float) -> bool:
        """Add a reading; False for a counter that was reset or is broken."""
        more_j = raw_j - self.raw_j + (self.range_j if raw_j < self.raw_j else 0.0)
        if not 0 <= more_j <= MOST_W * max(now_s - self.read_s, _SHORTEST_S):
            return False
        self.raw_j, self.read_s, self.used_j = raw_j, now_s, self.used_j + more_j
        return True


class RaplSource(BaseSource):
    """The sockets' counters; a zone that does not answer stays a rail, since a sum without it is wrong."""

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("RAPL")
        self._clock = clock
        self._lock = threading.Lock()  # watts() and joules() are called from different threads
        self._zones: dict[str, _Zone] = {}  # by rail
        powercap = root / POWERCAP
        rails: dict[str, Rail] = {}
        for folder in (powercap / name for name in folder_names(powercap) if _ZONE.fullmatch(name)):
            own = read_file(folder / "name")[0]
            kind = _KINDS.get(own.partition("-")[0], "")
            # Memory is named dram on every socket: the parent folder has the socket.
            nested = folder.name.count(":") == 2
            package = read_file(powercap / folder.name.rpartition(":")[0] / "name")[0] if nested else ""
            rail = Rail(name=f"{package} {own}".strip(), scope="node", kind=kind)
            if kind and rail.name not in rails and (self._open(rail, folder) or kind != "psys"):
                rails[rail.name] = rail
        if self._zones:
            board = next((rail.name for rail in rails.values() if rail.kind == "psys"), "")
            self.rails = tuple(
                rail if rail.name == board else replace(rail, within=board) for rail in rails.values()
            )
        elif not self.problem:
            why = "is not there (virtual machines hide it)"
            if powercap.is_dir():
                why = "has no intel-rapl:0 (the kernel's intel_rapl_msr is not loaded)"
            self.add_problem("", "", f"/{POWERCAP} {why}")

    def joules(self) -> Mapping[str, float]:
        """Return what was used since opening; a counter that vanished, is unreadable or was reset is dropped."""
        with self._lock:
            for rail, zone in list(self._zones.items()):
                microjoules, why = read_sensor(zone.path)
                if microjoules is None or not zone.follow(microjoules / 1e6, self._clock()):
                    why = why or f"went from {zone.raw_j:.12g} J to {(microjoules or 0) / 1e6:.12g} J"
                    self._drop(rail, zone.path, why)
            return {rail: zone.used_j for rail, zone in self._zones.items()}

    def watts(self) -> Mapping[str, float]:
        self.joules()
        return {}

    def _open(self, rail: Rail, folder: Path) -> bool:
        path = folder / "energy_uj"
        microjoules, why = read_sensor(path)
        if rail.kind == "psys" and microjoules == 0:
            # Boards without the wiring answer 0 forever; it must not replace the sockets.
            microjoules, why = None, "stands at 0"
        if microjoules is None:
            if why == REFUSED:  # of all zones alike: reported once
                self.add_problem("", REFUSED, f"{path} may be read by root only; {REMEDY}")
            else:
                self._drop(rail.name, path, why)
            return False
        range_j = (read_sensor(folder / "max_energy_range_uj")[0] or 0) / 1e6
        self._zones[rail.name] = _Zone(
            path=path, range_j=range_j, raw_j=microjoules / 1e6, read_s=self._clock()
        )
        return True

    def _drop(self, rail: str, path: Path, why: str) -> None:
        self._zones.pop(rail, None)
        self.add_problem(rail, "energy", f"{rail}: {path} {why}; left out")
