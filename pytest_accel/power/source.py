"""Power sources: protocol, the base of the built-in ones, and readings of the kernel's sensor files.

A source is one file of this folder with a function `open_source(node) -> PowerSource | None`, and a `VENDOR` if it
reads devices of one vendor. A project adds its own through the hook `pytest_accel_power_sources`,
whose documentation has an example.
"""

from __future__ import annotations

import importlib
import pkgutil
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pytest_accel.power as package
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerNode:
    devices: tuple[DetectedDevice, ...] = ()
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

    def open_devices(self, devices: Iterable[DetectedDevice], find: Callable[[DetectedDevice], Any]) -> None:
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


def open_sources(
    devices: Sequence[DetectedDevice],
    *,
    root: Path = Path("/"),
    more: Sequence[PowerSource] = (),
    machine: str = "",
) -> tuple[PowerSource, ...]:
    """Open the sources of the devices, of the host, then those of plugins. Call once per node, not per rank.

    A plugin that meters the node replaces the host's own sensors, which its figures include.
    """
    node = PowerNode(devices=tuple(devices), root=root, machine=machine or platform.machine())
    names = (each.name for each in pkgutil.iter_modules(package.__path__) if each.name != "source")
    modules = [importlib.import_module(f"{package.__name__}.{name}") for name in names]
    readers = {module.VENDOR: module for module in modules if hasattr(module, "VENDOR")}
    sources: list[PowerSource] = []
    for vendor in dict.fromkeys(device.vendor for device in devices):
        if vendor in readers:
            sources += _opened(readers[vendor], node)
        else:
            why = "no source reads the power of its devices; the hook pytest_accel_power_sources adds one that does"
            sources.append(BaseSource(vendor, why))
    if not any(rail.scope == "node" for source in more for rail in source.rails):
        for module in modules:
            sources += _opened(module, node) if not hasattr(module, "VENDOR") else ()
    for source in more:
        taken = {rail.name: each.name for each in sources for rail in each.rails}
        clash = next((rail.name for rail in source.rails if rail.name in taken), None)
        if clash is None:
            sources.append(source)
        else:
            source.close()
            why = f"its rail {clash!r} is one of {taken[clash]} already: give it a name of its own"
            sources.append(BaseSource(source.name, why))
    return tuple(sources)


def problems(sources: Iterable[PowerSource]) -> tuple[str, ...]:
    return tuple(f"{source.name}: {source.problem}" for source in sources if source.problem)


def _opened(module: Any, node: PowerNode) -> list[PowerSource]:  # noqa: ANN401 -- a module with `open_source`
    try:
        source = module.open_source(node)
    except Exception as error:  # noqa: BLE001 -- a vendor's broken package must cost its own readings only
        name = module.__name__.rpartition(".")[2]
        return [BaseSource(name, f"cannot be opened ({words(error)})")]
    return [] if source is None else [source]


def from_hook(answers: Iterable[Iterable[PowerSource]]) -> tuple[PowerSource, ...]:
    return tuple(GuardedSource(source) for answer in answers for source in answer)


_MEMBERS = ("name", "problem", "rails", "joules", "watts", "close")


class GuardedSource(BaseSource):
    """A plugin's source: what raises or is no reading is left out and reported."""

    def __init__(self, source: PowerSource) -> None:
        missing = [name for name in _MEMBERS if not hasattr(source, name)]
        if missing or not all(isinstance(rail, Rail) for rail in source.rails):
            wrong = f"has no {', '.join(missing)}" if missing else f"has the rails {source.rails!r}"
            raise ValueError(f"{source!r} {wrong}. A source has {', '.join(_MEMBERS)}; rails are `Rail`s.")
        super().__init__(source.name)
        self.rails = tuple(source.rails)
        self._source = source

    @property
    def problem(self) -> str:
        own = self._attempt("problem", lambda: str(self._source.problem))
        return "; ".join(filter(None, [own, super().problem]))

    def joules(self) -> Mapping[str, float]:
        return self._readings("joules", sys.float_info.max)

    def watts(self) -> Mapping[str, float]:
        return self._readings("watts", MOST_W)

    def close(self) -> None:
        self._attempt("close", self._source.close)

    def _readings(self, method: str, highest: float) -> dict[str, float]:
        found = self._attempt(method, lambda: dict(getattr(self._source, method)())) or {}
        known = {rail.name for rail in self.rails}
        readings = {}
        for rail, value in found.items():
            if rail in known and isinstance(value, int | float) and 0 <= value <= highest:
                readings[rail] = float(value)
            else:
                self.add_problem(
                    str(rail), method, f"{method}() says {rail!r}: {value!r}, which is no reading"
                )
        return readings

    def _attempt(self, method: str, call: Callable[[], Any]) -> Any:  # noqa: ANN401 -- each method has its own type
        try:
            return call()
        except Exception as error:  # noqa: BLE001 -- an error in a source costs its readings, never the measurement
            self.add_problem("", method, f"{method} raised {words(error)}")
            return None
