"""Power sources: protocol, shared values, and readings of the kernel's sensor files.

A source is one file of this folder with a function `open_source(node) -> Source | None`, and a `VENDOR` if it
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

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

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
    metered: bool = False  # a plugin meters the node, and its figures include the host's sensors

    @property
    def is_arm(self) -> bool:
        return self.machine in ("aarch64", "arm64")


@dataclass(frozen=True, slots=True)
class NullSource:
    """A source that could not be opened: no readings, and the reason."""

    name: str
    problem: str
    rails: tuple[Rail, ...] = ()

    def joules(self) -> Mapping[str, float]:
        return {}

    def watts(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        """Nothing is open."""


class Reasons:
    """Reasons of missing readings, each reported once."""

    def __init__(self) -> None:
        self._reported: dict[tuple[str, str], str] = {}

    def add(self, rail: str, reading: str, why: str) -> None:
        """Keep the first reason for a rail and a reading."""
        self._reported.setdefault((rail, reading), why)

    def __str__(self) -> str:
        return "; ".join(dict.fromkeys(self._reported.values()))


def plausible_w(power_w: float) -> bool:
    """Whether a power is not NaN, not negative, and no more than any rail draws."""
    return 0 <= power_w <= MOST_W


def device_rails(kind: str, answering: list[str], silent: list[str]) -> tuple[Rail, ...]:
    """Return the rails of devices, the silent ones included; none if no device answers."""
    names = answering + silent if answering else []
    return tuple(Rail(name=name, scope="device", kind=kind) for name in names)


def read_sensor(path: Path) -> tuple[int | None, str]:
    """Return a whole number, or why there is none: failed sensors say `-1`, `N/A` or nothing."""
    text, why = read_file(path)
    if why:
        return None, why
    number = whole_number(text)
    return (number, "") if number is not None else (None, f"says {text[:20]!r}, which is no reading")
