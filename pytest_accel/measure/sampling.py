"""Readings beside a measurement: one thread that wakes some times a second, and never holds up what it watches.

All readings are taken by that thread, the first and the last of a window too, for which the caller waits a bounded
time: a driver that never comes back takes the thread with it, and not the session.
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PERIOD_S = 0.1
LIMIT_S = 2.0  # the slowest sampler asks in microseconds; what takes this long does not come back


class SamplingThread:
    """Calls every sampler each period between `begin()` and `end()`, which take one sample more each.

    with SamplingThread([watcher.sample]) as watch:
        watch.begin()
        ...  # what is measured
        watch.end()

    The thread is there before `begin()`, so that none is started inside a window. There may be several windows,
    one after the other. A sampler that raises is called no more, and `problems` says why, once.
    """

    def __init__(
        self,
        samplers: Sequence[Callable[[], object]],
        period_s: float = PERIOD_S,
        *,
        limit_s: float = LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not period_s > 0:
            raise ValueError(f"period_s: {period_s!r} is not a time above 0. Write 0.1.")
        self._samplers = list(samplers)
        self._period_s = period_s
        self._limit_s = limit_s
        self._clock = clock
        self._problems: list[str] = []
        self._thread: threading.Thread | None = None
        self._sampling = ""  # what the thread is in: it is to blame when it does not come back
        self._open = False  # a window
        self._given_up = False
        self._go, self._stop, self._answer = threading.Event(), threading.Event(), threading.Event()

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(self._problems)

    def __enter__(self) -> Self:
        if self._samplers and self._thread is None:
            thread = threading.Thread(target=self._run, name="pytest-accel watch", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # a limit on processes: nothing is watched, and all is measured
                self._problems.append(f"nothing was watched: {error}")
            else:
                self._thread = thread
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self) -> None:
        """A window opens; returns when the first sample is there."""
        if self._open:
            raise RuntimeError("A window is open already: call end() before begin().")
        if not self._watching:
            return
        self._open = True
        self._stop.clear()
        self._go.set()
        self._await_answer()

    def end(self) -> None:
        """The window closes; returns when the last sample is there, and no sampler is called from then on."""
        if not self._open:
            return
        self._open = False
        self._stop.set()
        if self._watching:
            self._await_answer()

    def close(self) -> None:
        """The thread ends; one that hangs is left behind and does not keep the process alive."""
        self.end()
        thread, self._thread = self._thread, None
        if thread is not None and not self._given_up:
            self._go.set()  # no thread is ours any more: it leaves
            thread.join(self._limit_s)

    @property
    def _watching(self) -> bool:
        return self._thread is not None and not self._given_up

    def _await_answer(self) -> None:
        if self._answer.wait(self._limit_s):
            self._answer.clear()
            return
        self._given_up = True  # the thread leaves if ever it comes back
        self._stop.set()
        self._problems.append(
            f"{self._sampling or 'the thread that watches'} did not come back within {self._limit_s:g} s, and nothing was "
            "watched from then on: look at the driver (`dmesg`) and at the load of this host"
        )

    # --- in the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._go.wait()
            self._go.clear()
            if not self._watching:
                return
            self._sample()
            first_s = self._clock()
            self._answer.set()
            self._keep_sampling(first_s)
            self._sample()
            if self._given_up:
                return
            self._answer.set()

    def _keep_sampling(self, first_s: float) -> None:
        beat = 0
        while True:
            beat = next_beat(beat, self._clock() - first_s, self._period_s)
            if self._stop.wait(max(0.0, first_s + beat * self._period_s - self._clock())):
                return
            self._sample()

    def _sample(self) -> None:
        for sampler in tuple(self._samplers):
            if self._given_up:
                return
            self._sampling = _name(sampler)
            try:
                sampler()
            except Exception as error:  # noqa: BLE001 -- a sensor that fails never ends a measurement
                self._samplers.remove(sampler)
                why = str(error) or type(error).__name__
                self._problems.append(f"{self._sampling} gave no more readings: {why}")
        self._sampling = ""


def next_beat(beat: int, elapsed_s: float, period_s: float) -> int:
    """Which period since the first sample comes next: lateness is not carried on, and one that was missed is skipped."""
    return max(beat, math.floor(elapsed_s / period_s)) + 1


def _name(sampler: Callable[[], object]) -> str:
    """As its owner calls itself (`NVML GPU-8f3aab12`), else in the words of the code: nobody knows our classes."""
    owner = getattr(sampler, "__self__", None)
    words = getattr(sampler, "__name__", type(sampler).__name__).strip("_").replace("_", " ")
    return str(getattr(owner, "name", "") or words)
