"""Power sources: protocol, the base of the built-in ones, and readings of the kernel's sensor files.

A built-in source is one file of this folder, which names its class `SOURCE` and says what it is for: the `VENDOR` of
devices, or the `MACHINES` whose host it meters. A project adds its own through the hook `pytest_accel_power_sources`,
whose documentation has an example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pytest_accel.platforms.catalogue import DetectedDevice
from pytest_accel.platforms.host import read_file, whole_number
from pytest_accel.stats.energy import MOST_W, Rail


@runtime_checkable
class PowerSource(Protocol):
    """One kind of sensor. Its methods never raise and never wait: unreadable values are left out."""

    name: str
    rails: tuple[Rail, ...]  # all that it reads, silent ones included: a sum without them is wrong

    @property
    def problem(self) -> str:
        """Why readings are missing; empty if none is."""

    def joules(self) -> Mapping[str, float]:
        """Return cumulative energy by rail. Called at the ends of a window: it may take milliseconds."""

    def watts(self) -> Mapping[str, float]:
        """Return the present power by rail. Called several times a second from a thread."""

    def close(self) -> None: ...


class BaseSource:
    """A source without readings, and the reasons of missing ones, each reported once."""

    def __init__(self, name: str, problem: str = "") -> None:
        self.name = name
        self.rails: tuple[Rail, ...] = ()
        self.handles: dict[str, Any] = {}  # what a rail is read from, by its name
        self._reasons: dict[tuple[str, str], str] = {}
        if problem:
            self.add_problem("", "", problem)

    @property
    def problem(self) -> str:
        return "; ".join(dict.fromkeys(self._reasons.values()))

    def add_problem(self, rail: str, reading: str, why: str) -> None:
        self._reasons.setdefault((rail, reading), why)

    def readings(self, fault: str, read: Callable[[Any], float]) -> dict[str, float]:
        """Read every rail; one that raises is missing, and `fault` says of what."""
        found: dict[str, float] = {}
        for rail, handle in self.handles.items():
            try:
                found[rail] = read(handle)
            except Exception as error:  # noqa: BLE001 -- a sensor never ends a measurement
                self.add_problem(rail, fault, f"{rail}: {fault} ({words(error)})")
        return found

    def joules(self) -> Mapping[str, float]:
        return {}

    def watts(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        """Nothing is open."""


class DeviceSource(BaseSource):
    """Devices of one vendor, a rail each; a vendor's library raises errors of its own kind."""

    kind = "gpu"

    def open_devices(self, devices: Iterable[DetectedDevice], find: Callable[[DetectedDevice], Any]) -> None:
        """Find the handle of each device; one that raises LookupError stays a rail without readings."""
        rails: dict[str, Rail] = {}  # by UUID: partitions of one GPU share its counter
        for device in devices:
            if device.uuid in rails:
                continue
            name = f"{self.kind}{device.index}"
            rails[device.uuid] = Rail(name=name, scope="device", kind=self.kind)
            try:
                self.handles[name] = find(device)
            except LookupError as error:
                self.add_problem(name, "handle", f"{name}: {error.args[0]}")
        self.rails = tuple(rails.values()) if self.handles else ()

    def energy_j(self, handle: Any) -> float:  # noqa: ANN401 -- the library's
        raise NotImplementedError

    def power_w(self, handle: Any) -> float:  # noqa: ANN401 -- the library's
        raise NotImplementedError

    def joules(self) -> Mapping[str, float]:
        return self.readings("no energy counter", self.energy_j)

    def watts(self) -> Mapping[str, float]:
        return self.readings("power cannot be read", self.power_w)


def words(error: Exception) -> str:
    """Return an error in a line; one of our own, a ValueError, needs no name."""
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}".rstrip(": ")


def checked_w(power_w: float) -> float:
    """Return a power that is not NaN, not negative, and no more than any rail draws; raise ValueError for another."""
    if 0 <= power_w <= MOST_W:
        return float(power_w)
    raise ValueError(f"{power_w:g} W is impossible")


def read_sensor(path: Path) -> tuple[int | None, str]:
    """Return a whole number, or why there is none: failed sensors say `-1`, `N/A` or nothing."""
    text, why = read_file(path)
    number = whole_number(text)
    return number, why or ("" if number is not None else f"says {text[:20]!r}, which is no reading")
