"""What measuring asks of the other ranks of a gang: to begin together, and to agree."""

from __future__ import annotations

from typing import Protocol, TypeVar

T = TypeVar("T")


class Ranks(Protocol):
    """The processes that run one benchmark together, seen from one of them."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def barrier(self) -> None: ...
    def slowest(self, seconds: float) -> float:
        """The largest of all ranks' values, the same to the last bit on every rank."""
        ...

    def agree(self, value: T) -> T:
        """What rank 0 says; a plain value."""
        ...

    def gather(self, value: T) -> list[T]:
        """Every rank's plain value, by rank, on every rank."""
        ...


class Alone:
    """One process: nobody to wait for."""

    rank = 0
    size = 1

    def barrier(self) -> None:
        """Nobody else is there."""

    def slowest(self, seconds: float) -> float:
        return seconds

    def agree(self, value: T) -> T:
        return value

    def gather(self, value: T) -> list[T]:
        return [value]
