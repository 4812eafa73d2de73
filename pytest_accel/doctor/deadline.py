"""A check that never comes back must not keep the others: a lost GPU or a dead file server holds a call for good."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@dataclass(slots=True)
class Pending(Generic[T]):
    """A call on its way in a thread of its own, which may be left behind: it does not keep the process alive."""

    started_s: float = field(default_factory=time.monotonic)
    results: list[T] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def wait(self, limit_s: float) -> T | None:
        """The result; None if the call takes longer than that since it began. What it raised is raised here."""
        self.done.wait(max(0.0, self.started_s + limit_s - time.monotonic()))
        if self.errors:
            raise self.errors[0]
        return self.results[0] if self.results else None


def begin(call: Callable[[], T]) -> Pending[T]:
    pending: Pending[T] = Pending()

    def run() -> None:
        try:
            pending.results.append(call())
        except Exception as error:  # noqa: BLE001 -- it is raised in `wait`, where somebody can act on it
            pending.errors.append(error)
        finally:
            pending.done.set()

    threading.Thread(target=run, daemon=True).start()
    return pending
