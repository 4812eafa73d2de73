"""Sources of this node: every file of this folder is tried, and plugins' sources are checked."""

from __future__ import annotations

import importlib
import pkgutil
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest_accel.power as package
from pytest_accel.power.source import BaseSource, PowerDevice, PowerNode, PowerSource, words
from pytest_accel.stats.energy import MOST_W, Rail

HOOK = "pytest_accel_power_sources"
_MEMBERS = ("name", "problem", "rails", "joules", "watts", "close")
_NO_SOURCES = ("find", "source")  # modules of this folder that are none


def open_sources(
    devices: Sequence[PowerDevice],
    *,
    root: Path = Path("/"),
    more: Sequence[PowerSource] = (),
    machine: str = "",
) -> tuple[PowerSource, ...]:
    """Open the sources of the devices, of the host, then those of plugins. Call once per node, not per rank.

    A plugin that meters the node replaces the host's own sensors, which its figures include.
    """
    node = PowerNode(devices=tuple(devices), root=root, machine=machine or platform.machine())
    names = (each.name for each in pkgutil.iter_modules(package.__path__) if each.name not in _NO_SOURCES)
    modules = [importlib.import_module(f"{package.__name__}.{name}") for name in names]
    readers = {module.VENDOR: module for module in modules if hasattr(module, "VENDOR")}
    sources: list[PowerSource] = []
    for vendor in dict.fromkeys(device.vendor for device in devices):
        if vendor in readers:
            sources += _opened(readers[vendor], node)
        else:
            why = f"no source reads the power of its devices; the hook {HOOK} adds one that does"
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


def close_sources(sources: Iterable[PowerSource]) -> None:
    for source in sources:
        source.close()


def problems(sources: Iterable[PowerSource]) -> tuple[str, ...]:
    """Return a line for each source with missing readings."""
    return tuple(f"{source.name}: {source.problem}" for source in sources if source.problem)


def _opened(module: Any, node: PowerNode) -> list[PowerSource]:  # noqa: ANN401 -- a module with `open_source`
    try:
        source = module.open_source(node)
    except Exception as error:  # noqa: BLE001 -- a vendor's broken package must cost its own readings only
        name = module.__name__.rpartition(".")[2]
        return [BaseSource(name, f"cannot be opened ({words(error)})")]
    return [] if source is None else [source]


# --- sources of plugins -----------------------------------------------------------------------------


def from_hook(answers: Iterable[object]) -> tuple[PowerSource, ...]:
    """Return the sources that plugins gave, each guarded; ValueError with the remedy for anything else."""
    found: list[PowerSource] = []
    for answer in answers:
        if not isinstance(answer, list | tuple):
            raise ValueError(  # noqa: TRY004 -- as for every wrong answer of the hook
                f"{HOOK}: {answer!r} is no list of sources. Return a list, also for one source."
            )
        found += [GuardedSource(source) for source in answer]
    return tuple(found)


class GuardedSource(BaseSource):
    """A plugin's source: what raises or is no reading is left out and reported."""

    def __init__(self, source: Any) -> None:  # noqa: ANN401 -- checked here
        missing = [member for member in _MEMBERS if not hasattr(source, member)]
        if missing or isinstance(source, type):
            what = f"has no {', '.join(missing)}" if missing else "is a class: return an object of it"
            raise ValueError(f"{HOOK}: {source!r} {what}. A source has {', '.join(_MEMBERS)}.")
        super().__init__(source.name)
        self.rails = tuple(source.rails)
        if not all(isinstance(rail, Rail) for rail in self.rails):
            raise ValueError(
                f"{HOOK}: the rails of {self.name} are {source.rails!r}, not pytest_accel.stats.energy.Rail."
            )
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
        known = {rail.name for rail in self.rails}
        readings: dict[str, float] = {}
        for rail, value in (
            self._attempt(method, lambda: dict(getattr(self._source, method)())) or {}
        ).items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if rail in known and is_number and 0 <= value <= highest:
                readings[rail] = float(value)
            else:
                why = "no reading" if rail in known else "none of its rails"
                self.add_problem(str(rail), method, f"{method}() says {rail!r}: {value!r}, which is {why}")
        return readings

    def _attempt(self, method: str, call: Callable[[], Any]) -> Any:  # noqa: ANN401 -- each method has its own type
        try:
            return call()
        except Exception as error:  # noqa: BLE001 -- an error in a source costs its readings, never the measurement
            self.add_problem("", method, f"{method} raised {words(error)}")
            return None
