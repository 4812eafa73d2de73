"""The clock that pytest-benchmark calls at both ends of a round."""

from __future__ import annotations

import time
from collections.abc import Callable


class SynchronisingTimer:
    """Waits for the device, then reads a monotonic clock.

    In pedantic mode pytest-benchmark calls it exactly twice a round. `between_rounds` runs before a
    round begins, outside the timed steps: the only place where progress may be shown.
    """

    __name__ = "synchronising_timer"  # pytest-benchmark writes it into its JSON

    def __init__(self) -> None:
        self.synchronize: Callable[[], None] = _nothing
        self.between_rounds: Callable[[], None] = _nothing
        self._inside = False

    def __call__(self) -> float:
        self._inside = not self._inside
        if self._inside:
            self.between_rounds()
        self.synchronize()
        return time.perf_counter()


def _nothing() -> None:
    """Until a device is bound there is nothing to wait for."""
