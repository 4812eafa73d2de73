"""Sources of this node: every file of this folder is tried, and plugins' sources are guarded."""

from __future__ import annotations

import importlib
import math
import pkgutil
import platform
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest_accel.power as package
from pytest_accel.power.source import NullSource, PowerDevice, PowerNode, PowerSource, Reasons, plausible_w
from pytest_accel.stats.energy import Rail

HOOK = "pytest_accel_power_sources"
# For one reading of a plugin's source: a networked meter answers in less, and other sensors wait that long.
LIMIT_S = 0.5
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
    node = PowerNode(
        devices=tuple(devices),
        root=root,
        machine=machine or platform.machine(),
        metered=any(rail.scope == "node" for source in more for rail in source.rails),
    )
    sources = [*_of_devices(node), *_of_host(node)]
    taken = {rail.name: source.name for source in sources for rail in source.rails}
    for source in more:
        clash = next((rail.name for rail in source.rails if rail.name in taken), None)
        if clash is not None:
            why = f"its rail {clash!r} is one of {taken[clash]} already: give it a name of its own"
            sources.append(NullSource(source.name, why))
            source.close()
            continue
        taken |= {rail.name: source.name for rail in source.rails}
        sources.append(source)
    return tuple(sources)


def close_sources(sources: Iterable[PowerSource]) -> None:
    for source in sources:
        source.close()


def problems(sources: Iterable[PowerSource]) -> tuple[str, ...]:
    """Return a line for each source with missing readings."""
    return tuple(f"{source.name}: {source.problem}" for source in sources if source.problem)


def _modules() -> dict[str, str]:
    """Return the vendors that the modules of sources read, by module; empty for those of the host."""
    names = (each.name for each in pkgutil.iter_modules(package.__path__) if each.name not in _NO_SOURCES)
    modules = (importlib.import_module(f"{package.__name__}.{name}") for name in names)
    return {module.__name__: getattr(module, "VENDOR", "") for module in modules}


def _of_devices(node: PowerNode) -> Iterable[PowerSource]:
    readers = {vendor: name for name, vendor in _modules().items() if vendor}
    for vendor in dict.fromkeys(device.vendor for device in node.devices):
        if vendor in readers:
            yield from _tried(readers[vendor], node)
        else:
            yield NullSource(
                vendor, f"no source reads the power of its devices; the hook {HOOK} adds one that does"
            )


def _of_host(node: PowerNode) -> Iterable[PowerSource]:
    if node.metered:
        return
    for name, vendor in _modules().items():
        if not vendor:
            yield from _tried(name, node)


def _tried(module: str, node: PowerNode) -> Iterable[PowerSource]:
    try:
        source = importlib.import_module(module).open_source(node)
    except Exception as error:  # noqa: BLE001 -- a vendor's broken package must cost its own readings only
        name = module.rpartition(".")[2]
        yield NullSource(name, f"cannot be opened ({type(error).__name__}: {error})")
        return
    if source is not None:
        yield source


# --- sources of plugins -----------------------------------------------------------------------------


def from_hook(answers: Iterable[object]) -> tuple[PowerSource, ...]:
    """Return the sources that plugins gave, each guarded; ValueError with the remedy for anything else."""
    return tuple(GuardedSource(_checked(source)) for answer in answers for source in _listed(answer))


class GuardedSource:
    """A plugin's source. Each call runs in a daemon thread, one at a time, so that it cannot block us."""

    def __init__(self, source: PowerSource, *, limit_s: float = LIMIT_S) -> None:
        self.name = source.name
        self.rails = tuple(source.rails)
        self._source = source
        self._known = {rail.name for rail in self.rails}
        self._reasons = Reasons()
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._running: threading.Thread | None = None

    @property
    def problem(self) -> str:
        own = self._attempt("problem", lambda: str(self._source.problem)) or ""
        return "; ".join(text for text in (own, str(self._reasons)) if text)

    def joules(self) -> Mapping[str, float]:
        return self._readings("joules", self._source.joules, math.isfinite)

    def watts(self) -> Mapping[str, float]:
        return self._readings("watts", self._source.watts, plausible_w)

    def close(self) -> None:
        self._attempt("close", self._source.close)

    def _readings(
        self, method: str, read: Callable[[], Mapping[str, float]], is_sane: Callable[[float], bool]
    ) -> dict[str, float]:
        readings: dict[str, float] = {}
        for rail, value in (self._attempt(method, lambda: dict(read())) or {}).items():
            if rail not in self._known:
                self._reasons.add(str(rail), method, f"{method}() has {rail!r}, which is none of its rails")
            elif isinstance(value, bool) or not isinstance(value, int | float) or not is_sane(value):
                self._reasons.add(rail, method, f"{rail}: {method}() says {value!r}, which is no reading")
            else:
                readings[rail] = float(value)
        return readings

    def _attempt(self, method: str, call: Callable[[], Any]) -> Any:  # noqa: ANN401 -- each method has its own type
        """Return the answer of a call in a daemon thread; None if it raises or takes longer than the limit."""
        with self._lock:
            if self._running is not None and self._running.is_alive():
                self._reasons.add(
                    "", "late", f"{method} was not called: an earlier call has not returned yet"
                )
                return None
            answers: list[Any] = []
            self._running = threading.Thread(
                target=self._run, args=[method, call, answers], name=f"pytest-accel {self.name}", daemon=True
            )
            try:
                self._running.start()
            except RuntimeError as error:  # no further thread can be started
                self._reasons.add("", method, f"{method} raised RuntimeError: {error}")
                return None
            self._running.join(self._limit_s)
            if self._running.is_alive():
                self._reasons.add("", "late", f"{method} did not answer within {self._limit_s:g} s")
        return answers[0] if answers else None

    def _run(self, method: str, call: Callable[[], Any], answers: list[Any]) -> None:
        try:
            answers.append(call())
        except BaseException as error:  # noqa: BLE001 -- a plugin's code must not print or end anything here
            self._reasons.add("", method, f"{method} raised {type(error).__name__}: {error}")


def _listed(answer: object) -> list[object]:
    if isinstance(answer, list | tuple):
        return list(answer)
    raise ValueError(f"{HOOK}: {answer!r} is no list of sources. Return a list, also for one source.")


def _checked(source: Any) -> PowerSource:  # noqa: ANN401 -- checked here
    missing = [member for member in _MEMBERS if not hasattr(source, member)]
    if missing or isinstance(source, type):
        what = f"has no {', '.join(missing)}" if missing else "is a class: return an object of it"
        raise ValueError(f"{HOOK}: {source!r} {what}. A source has {', '.join(_MEMBERS)}.")
    if not all(isinstance(rail, Rail) for rail in source.rails):
        raise ValueError(
            f"{HOOK}: the rails of {source.name} are {source.rails!r}, not pytest_accel.stats.energy.Rail."
        )
    found: PowerSource = source
    return found
