"""CPUs of Intel and AMD: their own counters of energy (RAPL), from the kernel's powercap tree.

    intel-rapl:0      package-0   the socket; AMD's too, under the same name
    intel-rapl:0:0    core        within the package, and left out: it would only be read for nothing
    intel-rapl:0:1    dram        memory beside the package, not within it
    intel-rapl:1      psys        all of the board, the packages and the memory included
    intel-rapl-mmio:0 package-0   the same counter by another door: left out

A counter begins again at 0 after `max_energy_range_uj`: some 65 kJ on many an EPYC, which a busy socket uses in
minutes. So the counters are followed here, at each `watts()` too, and joules only grow, over any number of turns.
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_accel.power.source import Reasons
from pytest_accel.power.sysfs import REFUSED, names, read, read_whole
from pytest_accel.stats.energy import MOST_W, Rail, counted_j

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

POWERCAP = "sys/class/powercap"
_ZONE = re.compile(r"intel-rapl:\d+(:\d+)?")
_KINDS = {"package": "cpu", "dram": "dram", "psys": "psys"}
REMEDY = "an administrator may allow it: chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj, or a udev rule that does"


SHORTEST_S = 0.01  # they tick every millisecond: over less a tick looks like kilowatts


@dataclass(slots=True, kw_only=True)
class _Zone:
    rail: Rail
    path: Path
    range_j: float | None
    raw_j: float  # as last read,
    read_s: float  # and when
    used_j: float = 0.0  # since it was opened, turns included
    asked_s: float | None = None  # when power could last be told,
    asked_j: float = 0.0  # and how far it was then

    def follow(self, raw_j: float, now_s: float) -> bool:
        """Whether it went on as a counter does, at most once around; False for one that was reset or is broken."""
        more_j = counted_j(self.raw_j, raw_j, self.range_j)
        if more_j is None or more_j > MOST_W * max(now_s - self.read_s, SHORTEST_S):
            return False
        self.raw_j, self.read_s, self.used_j = raw_j, now_s, self.used_j + more_j
        return True

    def begin(self) -> None:
        """Power is told from here on."""
        self.asked_s, self.asked_j = self.read_s, self.used_j

    def gained_w(self) -> float | None:
        """Mean power since it was last told; None after too short a time."""
        if self.asked_s is not None and self.read_s - self.asked_s < SHORTEST_S:
            return None
        power_w = None
        if self.asked_s is not None:
            power_w = (self.used_j - self.asked_j) / (self.read_s - self.asked_s)
        self.begin()
        return power_w


class RaplSource:
    """The sockets' counters; power is what they gained since they were last asked."""

    name = "RAPL"

    def __init__(self, host: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._reasons = Reasons()
        self._clock = clock
        self._lock = threading.Lock()  # watts() comes from a thread, joules() from another
        powercap = host / POWERCAP
        self.rails: tuple[Rail, ...] = ()
        self._zones = self._find(powercap)
        self.rails = _nested(self.rails) if self._zones else ()
        if not self._zones and not self.problem:
            why = "is not there (virtual machines hide it)"
            if powercap.is_dir():
                why = "has no intel-rapl:0 (the kernel's intel_rapl_msr is not loaded)"
            self._reasons.say("", "", f"/{POWERCAP} {why}")

    @property
    def problem(self) -> str:
        return str(self._reasons)

    def joules(self) -> Mapping[str, float]:
        with self._lock:
            self._follow()
            for zone in self._zones:
                zone.begin()  # what was used before a window is no part of its power
            return {zone.rail.name: zone.used_j for zone in self._zones}

    def watts(self) -> Mapping[str, float]:
        """Mean power since counters or power were last asked for; nothing at the very first."""
        with self._lock:
            self._follow()
            powers_w = {zone.rail.name: zone.gained_w() for zone in self._zones}
        return {rail: power_w for rail, power_w in powers_w.items() if power_w is not None}

    def close(self) -> None:
        """Every read opens and closes its file."""

    def _follow(self) -> None:
        """Read every counter; one that vanished, says garbage or does not count on is dropped."""
        kept = []
        for zone in self._zones:
            microjoules, why = read_whole(zone.path)
            if microjoules is None:
                self._complain(zone.rail.name, zone.path, why)
            elif not zone.follow(microjoules / 1e6, self._clock()):
                self._complain(
                    zone.rail.name,
                    zone.path,
                    f"went from {zone.raw_j:.12g} J to {microjoules / 1e6:.12g} J",
                )
            else:
                kept.append(zone)
        self._zones = kept

    def _find(self, powercap: Path) -> list[_Zone]:
        """The zones that answer. `rails` has the others too: a sum that leaves a socket out is no sum."""
        zones: dict[str, _Zone | None] = {}
        for folder in (powercap / name for name in names(powercap) if _ZONE.fullmatch(name)):
            own = read(folder / "name")[0]
            kind = _KINDS.get(own.partition("-")[0], "")
            if not kind:  # core, uncore: within the package
                continue
            # Memory is called dram whichever socket it is of: the folder tells.
            nested = folder.name.count(":") == 2
            package = read(powercap / folder.name.rpartition(":")[0] / "name")[0] if nested else ""
            rail = Rail(name=f"{package} {own}".strip(), scope="node", kind=kind)
            if rail.name not in zones:
                zones[rail.name] = zone = self._open(rail, folder)
                self.rails += (rail,) if zone or kind != "psys" else ()
        return [zone for zone in zones.values() if zone]

    def _open(self, rail: Rail, folder: Path) -> _Zone | None:
        path = folder / "energy_uj"
        microjoules, why = read_whole(path)
        if microjoules is None:
            if why == REFUSED:  # of all of them alike: said once
                self._reasons.say("", REFUSED, f"{path} may be read by root only; {REMEDY}")
            else:
                self._complain(rail.name, path, why)
            return None
        if rail.kind == "psys" and not microjoules:
            # Boards that are not wired for it answer 0 for good; it must not stand for the sockets.
            self._complain(rail.name, path, "stands at 0")
            return None
        range_uj = read_whole(folder / "max_energy_range_uj")[0]
        return _Zone(
            rail=rail,
            path=path,
            range_j=range_uj / 1e6 if range_uj else None,
            raw_j=microjoules / 1e6,
            read_s=self._clock(),
        )

    def _complain(self, rail: str, path: Path, why: str) -> None:
        self._reasons.say(rail, "energy", f"{rail}: {path} {why}; left out")


def _nested(rails: tuple[Rail, ...]) -> tuple[Rail, ...]:
    """Where the board is counted, all else lies within it."""
    board = next((rail.name for rail in rails if rail.kind == "psys"), "")
    return tuple(rail if rail.name == board else replace(rail, within=board) for rail in rails)
