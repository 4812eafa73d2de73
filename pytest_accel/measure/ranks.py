"""The processes that measure one benchmark together, seen from one of them."""

from __future__ import annotations

from typing import Protocol, TypeVar

T = TypeVar("T")


class Ranks(Protocol):
    """The ranks of a process group."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def barrier(self) -> None: ...
    def slowest(self, seconds: float) -> float:
        """Return the largest of all ranks' values, the same to the last bit on every rank."""
        ...

    def agree(self, value: T) -> T:
        """Return rank 0's value, which can be pickled."""
        ...

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, by rank, on every rank."""
        ...


class Alone:
    """A single process."""

    rank = 0
    size = 1

    def barrier(self) -> None:
        """Return at once."""

    def slowest(self, seconds: float) -> float:
        return seconds

    def agree(self, value: T) -> T:
        return value

    def gather(self, value: T) -> list[T]:
        return [value]


ALONE = Alone()
