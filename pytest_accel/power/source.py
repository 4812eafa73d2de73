"""Power sources: protocol, the base of the built-in ones, and readings of the kernel's sensor files.

A source is one file of this folder with a function `open_source(node) -> PowerSource | None`, and a `VENDOR` if it
reads devices of one vendor. A project adds its own through the hook `pytest_accel_power_sources`::

    class Meter:                      # no base class: an object with these names is a source
        name = "my meter"
        problem = ""
        rails = (Rail(name="socket", scope="node"),)
        def joules(self): return {"socket": 1234.5}
        def watts(self): return {"socket": 310.0}
        def close(self): ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pytest_accel.platforms.host import read_file, whole_number
from pytest_accel.stats.energy import MOST_W, Rail


@runtime_checkable
class PowerSource(Protocol):
    """One kind of sensor. Its methods never raise and never wait: unreadable values are left out."""

    @property
    def name(self) -> str: ...

    @property
    def problem(self) -> str:
        """Why readings are missing; empty if none is."""

    @property
    def rails(self) -> tuple[Rail, ...]:
        """Everything that it reads, including rails that do not answer: a sum without them is wrong."""

    def joules(self) -> Mapping[str, float]:
        """Return cumulative energy by rail. Called at the ends of a window: it may take milliseconds."""

    def watts(self) -> Mapping[str, float]:
        """Return the present power by rail. Called several times a second from a thread."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerDevice:
    """An accelerator to read; the fields are those of a `DetectedDevice`."""

    vendor: str
    uuid: str
    index: int  # as the framework counts it; part of the rail's name
    mig: str | None = None  # profile of a MIG slice


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerNode:
    """The node to read: its accelerators, the root of its kernel files, its architecture."""

    devices: tuple[PowerDevice, ...] = ()
    root: Path = Path("/")
    machine: str = ""

    @property
    def is_arm(self) -> bool:
        return self.machine in ("aarch64", "arm64")


class BaseSource:
    """A source without readings, and the reasons of missing ones, each reported once."""

    def __init__(self, name: str, problem: str = "") -> None:
        self.name = name
        self.rails: tuple[Rail, ...] = ()
        self._reasons: dict[tuple[str, str], str] = {}
        if problem:
            self.add_problem("", "", problem)

    @property
    def problem(self) -> str:
        return "; ".join(dict.fromkeys(self._reasons.values()))

    def add_problem(self, rail: str, reading: str, why: str) -> None:
        """Keep the first reason for a rail and a reading."""
        self._reasons.setdefault((rail, reading), why)

    def joules(self) -> Mapping[str, float]:
        return {}

    def watts(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        """Nothing is open."""


class DeviceSource(BaseSource):
    """Devices of one vendor, a rail each; a vendor's library raises errors of its own kind."""

    kind = "gpu"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.handles: dict[str, Any] = {}  # the library's, by rail

    def open_devices(self, devices: Iterable[PowerDevice], find: Callable[[PowerDevice], Any]) -> None:
        """Find the handle of each device; one that raises LookupError stays a rail without readings."""
        silent = []
        known: set[str] = set()  # partitions of one GPU share its counter
        for device in devices:
            rail = f"{self.kind}{device.index}"
            if device.uuid in known:
                continue
            known.add(device.uuid)
            try:
                self.handles[rail] = find(device)
            except LookupError as error:
                silent.append(rail)
                self.add_problem(rail, "handle", f"{rail}: {error.args[0]}")
        names = [*self.handles, *silent] if self.handles else []
        self.rails = tuple(Rail(name=name, scope="device", kind=self.kind) for name in names)

    def energy_j(self, handle: Any) -> float:  # noqa: ANN401 -- the library's
        raise NotImplementedError

    def power_w(self, handle: Any) -> float:  # noqa: ANN401 -- the library's
        raise NotImplementedError

    def joules(self) -> Mapping[str, float]:
        return self.readings("no energy counter", self.energy_j)

    def watts(self) -> Mapping[str, float]:
        return self.readings("power cannot be read", self.power_w)

    def readings(self, fault: str, read: Callable[[Any], float]) -> dict[str, float]:
        """Read every device; one that raises is missing, and `fault` says of what."""
        found: dict[str, float] = {}
        for rail, handle in self.handles.items():
            try:
                found[rail] = read(handle)
            except Exception as error:  # noqa: BLE001 -- a sensor never ends a measurement
                self.add_problem(rail, fault, f"{rail}: {fault} ({words(error)})")
        return found


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
    if why:
        return None, why
    number = whole_number(text)
    return (number, "") if number is not None else (None, f"says {text[:20]!r}, which is no reading")
