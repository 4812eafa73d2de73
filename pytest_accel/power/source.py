"""What every source of power and energy looks like, so that a measurement need not know which one it reads.

class Mine:                       # no base class: what has these names is a source
    name = "my meter"
    problem = ""
    rails = (Rail(name="socket", scope="node"),)
    def joules(self): return {"socket": 1234.5}
    def watts(self): return {"socket": 310.0}
    def close(self): ...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pytest_accel.stats.energy import MOST_W

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_accel.stats.energy import Rail


@runtime_checkable
class Source(Protocol):
    """One kind of sensor. Its methods never raise and never wait: what cannot be read is missing, and said once."""

    @property
    def name(self) -> str: ...

    @property
    def problem(self) -> str:
        """Why all or some of it is not told; empty where nothing is missing."""

    @property
    def rails(self) -> tuple[Rail, ...]:
        """What it reads. One that does not answer stays among them: without it a sum is no sum."""

    def joules(self) -> Mapping[str, float]:
        """Cumulative counters by rail. May take milliseconds: asked at the ends of a window, never inside a round."""

    def watts(self) -> Mapping[str, float]:
        """Power now, by rail. Asked some times a second, from a thread."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerDevice:
    """An accelerator whose energy is wanted; the fields are those of a detected `Device`."""

    vendor: str
    uuid: str
    index: int  # as the framework counts it; it names the rail
    mig: str | None = None  # profile of a MIG slice


class Reasons:
    """Why readings are missing: each once, however often they are asked for."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], str] = {}

    def say(self, about: str, what: str, why: str) -> None:
        """`about` a rail, `what` was asked of it: the first reason stays."""
        self._said.setdefault((about, what), why)

    def __str__(self) -> str:
        return "; ".join(dict.fromkeys(self._said.values()))


def plausible_w(power_w: float) -> bool:
    """Not NaN, not negative, and no more than any rail draws."""
    return 0 <= power_w <= MOST_W
