"""Sources of a node: of its devices, of the host, and of plugins."""

from __future__ import annotations

import pkgutil
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from pytest_accel import power
from pytest_accel.platforms.catalogue import DetectedDevice
from pytest_accel.power.source import BaseSource, PowerSource, words
from pytest_accel.stats.energy import MOST_W, Rail

T = TypeVar("T")


def open_sources(
    devices: Sequence[DetectedDevice],
    *,
    root: Path = Path("/"),
    more: Sequence[PowerSource] = (),
) -> tuple[PowerSource, ...]:
    """Open the sources of the devices, of the host, then those of plugins. Call once per node, not per rank.

    A plugin that meters the node replaces the host's own sensors, which its figures include.
    """
    modules = [
        import_module(f"{power.__name__}.{each.name}") for each in pkgutil.iter_modules(power.__path__)
    ]
    of_vendors = {module.VENDOR: module.SOURCE for module in modules if hasattr(module, "VENDOR")}
    sources: list[PowerSource] = []
    for vendor in dict.fromkeys(device.vendor for device in devices):
        if vendor not in of_vendors:
            why = "no source reads the power of its devices; the hook pytest_accel_power_sources adds one that does"
            sources.append(BaseSource(vendor, why))
        else:
            own = [device for device in devices if device.vendor == vendor]
            sources.append(_opened(of_vendors[vendor], own, vendor))
    if not any(rail.scope == "node" for source in more for rail in source.rails):
        machine = platform.machine()
        of_host = [each.SOURCE for each in modules if machine in getattr(each, "MACHINES", ())]
        sources += [_opened(open_source, root, "host") for open_source in of_host]
    for source in more:
        taken = {rail.name for each in sources for rail in each.rails}
        if clash := sorted(taken.intersection(rail.name for rail in source.rails)):
            source.close()
            why = f"another source has a rail {clash[0]!r} already: give it a name of its own"
            sources.append(BaseSource(source.name, why))
        else:
            sources.append(source)
    return tuple(sources)


def _opened(open_source: Callable[[T], PowerSource], of: T, name: str) -> PowerSource:
    try:
        return open_source(of)
    except Exception as error:  # noqa: BLE001 -- a broken package or sensor must cost its own readings only
        return BaseSource(name, f"its power cannot be read ({words(error)})")


def problems(sources: Iterable[PowerSource]) -> tuple[str, ...]:
    return tuple(f"{source.name}: {source.problem}" for source in sources if source.problem)


def from_hook(answers: Iterable[Iterable[PowerSource]]) -> tuple[PowerSource, ...]:
    return tuple(GuardedSource(source) for answer in answers for source in answer)


class GuardedSource(BaseSource):
    """A plugin's source: what raises or is no reading is left out and reported."""

    def __init__(self, source: PowerSource) -> None:
        if not isinstance(source, PowerSource) or not all(isinstance(rail, Rail) for rail in source.rails):
            raise ValueError(
                f"{source!r} is no power source: it has name, problem, rails, joules, watts and close; rails are `Rail`s."
            )
        super().__init__(source.name)
        self.rails = tuple(source.rails)
        self._source = source

    @property
    def problem(self) -> str:
        try:
            own = str(self._source.problem)
        except Exception as error:  # noqa: BLE001 -- as below
            own = f"problem raised {words(error)}"
        return "; ".join(filter(None, [own, super().problem]))

    def joules(self) -> Mapping[str, float]:
        return self._readings("joules", sys.float_info.max)

    def watts(self) -> Mapping[str, float]:
        return self._readings("watts", MOST_W)

    def close(self) -> None:
        with suppress(Exception):
            self._source.close()

    def _readings(self, method: str, highest: float) -> dict[str, float]:
        try:
            found = dict(getattr(self._source, method)())
        except Exception as error:  # noqa: BLE001 -- an error in a source costs its readings, never the measurement
            self.add_problem("", method, f"{method} raised {words(error)}")
            return {}
        known = {rail.name for rail in self.rails}
        readings = {}
        for rail, value in found.items():
            if rail in known and isinstance(value, int | float) and 0 <= value <= highest:
                readings[rail] = float(value)
            else:
                self.add_problem(rail, method, f"{method}() says {rail!r}: {value!r}, which is no reading")
        return readings
