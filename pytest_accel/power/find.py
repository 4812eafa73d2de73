"""Which sources of power and energy this node has: each is tried for itself, and what is missing says why."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_accel.power.amd import AmdSource
from pytest_accel.power.grace import GraceSource
from pytest_accel.power.graphcore import GraphcoreSource
from pytest_accel.power.none import NullSource
from pytest_accel.power.nvml import NvmlSource
from pytest_accel.power.rapl import RaplSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pytest_accel.power.source import PowerDevice, Source

__all__ = ["close_sources", "open_sources", "problems"]


def open_sources(
    devices: Sequence[PowerDevice],
    *,
    host: Path = Path("/"),
    more: Sequence[Source] = (),
    machine: str = "",
) -> tuple[Source, ...]:
    """Those of the devices, those of the host, then those of other plugins. Open them once per node, not per rank.

    A plugin that meters the node takes the place of the host's own sensors: what they see is in its figures already.
    `host` is where the kernel's files lie, `machine` the architecture: tests replace both. `close_sources` when done.
    """
    metered = any(rail.scope == "node" for source in more for rail in source.rails)
    sources = [] if metered else _of_host(host, machine or platform.machine())
    # Both tell the power of Grace Hopper modules, and nobody says which socket a GPU of NVML's is on.
    modules = not metered and not any(rail.kind == "module" for source in sources for rail in source.rails)
    sources = [*_of_devices(devices, modules=modules), *sources]
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


def close_sources(sources: Iterable[Source]) -> None:
    for source in sources:
        source.close()


def problems(sources: Iterable[Source]) -> tuple[str, ...]:
    """What is missing and why, a line for each source that misses something."""
    return tuple(f"{source.name}: {source.problem}" for source in sources if source.problem)


def _of_devices(devices: Sequence[PowerDevice], *, modules: bool) -> list[Source]:
    by_vendor: dict[str, list[PowerDevice]] = {}
    for device in devices:
        by_vendor.setdefault(device.vendor, []).append(device)
    return [_of_vendor(vendor, own, modules=modules) for vendor, own in by_vendor.items()]


def _of_vendor(vendor: str, devices: Sequence[PowerDevice], *, modules: bool) -> Source:
    match vendor:
        case "nvidia":
            return _tried("NVML", lambda: NvmlSource(devices, modules=modules))
        case "amd":
            return _tried("amdsmi", lambda: AmdSource(devices))
        case "graphcore":
            return _tried("gcipuinfo", lambda: GraphcoreSource(devices))
        case _:
            why = "nothing here reads the power of its devices; the hook pytest_accel_power_sources adds what does"
            return NullSource(vendor, why)


def _of_host(host: Path, machine: str) -> list[Source]:
    """A host has one of them at most: of the missing ones only that is said which such a host could have."""
    rapl, grace = _tried("RAPL", lambda: RaplSource(host)), _tried("Grace sensors", lambda: GraceSource(host))
    found = [source for source in (rapl, grace) if source.rails]
    return found or [grace if machine in ("aarch64", "arm64") else rapl]


def _tried(name: str, opened: Callable[[], Source]) -> Source:
    try:
        return opened()
    except Exception as error:  # noqa: BLE001 -- a broken package of a vendor costs its readings and no more
        return NullSource(name, f"cannot be opened ({type(error).__name__}: {error})")
