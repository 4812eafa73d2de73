"""The processes that measure one benchmark together, seen from one of them."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class Ranks:
    """The ranks of a process group; what is not overridden is that of a single process."""

    rank: int = 0
    size: int = 1

    def barrier(self) -> None:
        """Wait until every rank is here."""

    def slowest(self, seconds: float) -> float:
        """Return the largest of all ranks' values, the same to the last bit on every rank."""
        return seconds

    def agree(self, value: T) -> T:
        """Return rank 0's value, which can be pickled."""
        return value

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, by rank, on every rank."""
        return [value]


class Alone(Ranks):
    """A single process without a process group."""


ALONE = Alone()
