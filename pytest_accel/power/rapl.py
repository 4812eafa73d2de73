"""Energy counters of Intel and AMD processors (RAPL), from the kernel's powercap tree.

    intel-rapl:0      package-0   the socket; AMD's under the same name
    intel-rapl:0:0    core        part of the package: not read
    intel-rapl:0:1    dram        memory, not part of the package
    intel-rapl:1      psys        the whole board, packages and memory included: not read, few boards wire it
    intel-rapl-mmio:0 package-0   the same counter by another interface: not read

A counter starts again at 0 after `max_energy_range_uj`: 65 kJ on many an EPYC, which a busy socket uses in
minutes. The counters are therefore followed at each `watts()` too, which reports nothing, and joules only grow.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pytest_accel.platforms.host import REFUSED, folder_names, read_file
from pytest_accel.power.source import BaseSource, read_sensor
from pytest_accel.stats.energy import MOST_W, Rail

POWERCAP = "sys/class/powercap"
REMEDY = (
    "RAPL's counters may be read by root only; an administrator may allow it: "
    "chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj, or a udev rule that does"
)
_SHORTEST_S = 0.01  # counters tick every millisecond: over less, a tick looks like kilowatts
_ZONE = re.compile(r"intel-rapl:\d+(:\d+)?")
_KINDS = {"package": "cpu", "dram": "dram"}


class _Zone:
    """A counter, followed over its wrap-arounds; one that was reset is never believed again."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path, self._clock = path, clock
        self._range_j = (read_sensor(path.with_name("max_energy_range_uj"))[0] or 0) / 1e6
        self._raw_j, self._read_s, self._used_j = self._read_j(), clock(), 0.0

    def used_j(self) -> float:
        """Return what was used since it was opened, wrap-arounds included."""
        raw_j, now_s = self._read_j(), self._clock()
        more_j = raw_j - self._raw_j + (self._range_j if raw_j < self._raw_j else 0.0)
        if not 0 <= more_j <= MOST_W * max(now_s - self._read_s, _SHORTEST_S):
            before_j, self._raw_j = self._raw_j, math.nan
            raise ValueError(f"{self._path} went from {before_j:.12g} J to {raw_j:.12g} J")
        self._raw_j, self._read_s, self._used_j = raw_j, now_s, self._used_j + more_j
        return self._used_j

    def _read_j(self) -> float:
        microjoules, why = read_sensor(self._path)
        if microjoules is None:
            raise ValueError(REMEDY if why == REFUSED else f"{self._path} {why}")
        return microjoules / 1e6


class RaplSource(BaseSource):
    """The sockets' counters; a zone that does not answer stays a rail, since a sum without it is wrong."""

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("RAPL")
        self._lock = threading.Lock()  # watts() and joules() are called from different threads
        powercap = root / POWERCAP
        rails: dict[str, Rail] = {}
        for folder in (powercap / name for name in folder_names(powercap) if _ZONE.fullmatch(name)):
            own = read_file(folder / "name")[0]
            kind = _KINDS.get(own.partition("-")[0], "")
            # Memory is named dram on every socket: the parent folder has the socket.
            nested = folder.name.count(":") == 2
            package = read_file(powercap / folder.name.rpartition(":")[0] / "name")[0] if nested else ""
            name = f"{package} {own}".strip()
            if kind and name not in rails:
                rails[name] = Rail(name=name, scope="node", kind=kind)
                try:
                    self.handles[name] = _Zone(folder / "energy_uj", clock)
                except ValueError as error:
                    self.add_problem(name, "energy", str(error))
        if self.handles:
            self.rails = tuple(rails.values())
        elif not rails:
            why = "virtual machines hide it; elsewhere the kernel's intel_rapl_msr is not loaded"
            self.add_problem("", "", f"/{POWERCAP} has no intel-rapl:0 ({why})")

    def joules(self) -> Mapping[str, float]:
        """Return what was used since opening, by rail."""
        with self._lock:
            return self.readings("no energy counter", _Zone.used_j)

    def watts(self) -> Mapping[str, float]:
        self.joules()
        return {}


MACHINES, SOURCE = ("x86_64", "amd64"), RaplSource
