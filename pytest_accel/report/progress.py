"""One live line on a terminal: what is running, and how long still; silent in logs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from pytest_accel.stats.quantities import seconds


class TerminalLike(Protocol):
    """What is used of pytest's terminal writer."""

    @property
    def fullwidth(self) -> int: ...
    @property
    def width_of_current_line(self) -> int: ...
    @property
    def hasmarkup(self) -> bool: ...
    def write(self, msg: str, *, flush: bool = False) -> None: ...


class Progress:
    """Writes behind the cursor and takes it back, so that pytest's own line of dots stays whole."""

    interval_s = 0.25

    def __init__(
        self,
        label: str,
        terminal: TerminalLike | None,
        uncaptured: Callable[[], AbstractContextManager[None]] = nullcontext,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label = label
        self._terminal = terminal
        self._uncaptured = uncaptured
        self._clock = clock
        self._phase = ""
        self._until: float | None = None
        self._began = self._shown = clock()

    def phase(self, text: str, remaining_s: float | None) -> None:
        now = self._clock()
        self._phase, self._began = text, now
        self._until = None if remaining_s is None else now + remaining_s
        self._show(now)

    def tick(self) -> None:
        now = self._clock()
        if now - self._shown >= self.interval_s:
            self._show(now)

    def close(self) -> None:
        self._write("")

    def _show(self, now: float) -> None:
        self._shown = now
        if self._until is None:
            when = f"{seconds(max(now - self._began, 0.001))} so far"
        else:
            when = f"about {seconds(max(self._until - now, 0.001))} left"
        self._write(f" {self._label}: {self._phase}, {when}")

    def _write(self, text: str) -> None:
        if self._terminal is None:
            return
        with self._uncaptured():
            room = max(0, self._terminal.fullwidth - self._terminal.width_of_current_line - 1)
            # DEC save, erase to the end of the line, text, restore.
            self._terminal.write(f"\x1b7\x1b[K{text[:room]}\x1b8", flush=True)
