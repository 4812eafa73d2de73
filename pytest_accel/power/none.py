"""The source where there is none: it tells nothing, and says why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_accel.stats.energy import Rail


@dataclass(frozen=True, slots=True)
class NullSource:
    """Stands for a source that could not be opened."""

    name: str
    problem: str
    rails: tuple[Rail, ...] = ()

    def joules(self) -> Mapping[str, float]:
        return {}

    def watts(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        """Nothing is open."""
