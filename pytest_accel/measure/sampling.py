"""A sampling thread beside a measurement, which never holds up what it samples.

That thread takes all samples, the first and the last of a window too, for which the caller waits a bounded time: a
driver call that hangs holds the thread, not the session.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

PERIOD_S = 0.1
LIMIT_S = 2.0  # the slowest sampler takes microseconds; a call that takes this long hangs


class SamplingThread:
    """Calls every sampler each period between `begin()` and `end()`, and once at each of them.

    The thread exists before `begin()`, so that none is started inside a window. A sampler that raises is called no more,
    and `problems` says why, once.
    """

    def __init__(
        self,
        samplers: Sequence[Callable[[], object]],
        period_s: float = PERIOD_S,
        *,
        limit_s: float = LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._samplers = list(samplers)
        self._period_s = period_s
        self._limit_s = limit_s
        self._clock = clock
        self._problems: list[str] = []
        self._thread: threading.Thread | None = None
        self._sampling = ""  # the sampler that is running: named when it hangs
        self._open = False  # a window
        self._given_up = False
        self._go, self._stop, self._answer = threading.Event(), threading.Event(), threading.Event()

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(self._problems)

    def __enter__(self) -> Self:
        if self._samplers and self._thread is None:
            thread = threading.Thread(target=self._run, name="pytest-accel sampling", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # a limit on processes: nothing is sampled, and all is measured
                self._problems.append(f"nothing was sampled: {error}")
            else:
                self._thread = thread
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self) -> None:
        """Open a window; return when the first sample is taken."""
        if not self._active:
            return
        self._open = True
        self._stop.clear()
        self._go.set()
        self._await_answer()

    def end(self) -> None:
        """Close the window; return when the last sample is taken. No sampler is called from then on."""
        if not self._open:
            return
        self._open = False
        self._stop.set()
        if self._active:
            self._await_answer()

    def close(self) -> None:
        """End the thread; one that hangs is left behind and does not keep the process alive."""
        self.end()
        thread, self._thread = self._thread, None
        if thread is not None and not self._given_up:
            self._go.set()  # without a thread of ours, it returns
            thread.join(self._limit_s)

    @property
    def _active(self) -> bool:
        return self._thread is not None and not self._given_up

    def _await_answer(self) -> None:
        if self._answer.wait(self._limit_s):
            self._answer.clear()
            return
        self._given_up = True  # the thread returns if the call ever does
        self._stop.set()
        self._problems.append(
            f"{self._sampling or 'the sampling thread'} did not return within {self._limit_s:g} s, and nothing was "
            "sampled from then on: look at the driver (`dmesg`) and at the load of this host"
        )

    # --- in the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._go.wait()
            self._go.clear()
            if not self._active:
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
    """Return the number of the next period since the first sample; a missed one is skipped."""
    return max(beat, math.floor(elapsed_s / period_s)) + 1


def _name(sampler: Callable[[], object]) -> str:
    """Return the name of the sampler's owner (`NVML GPU-8f3aab12`), else its own."""
    owner = getattr(sampler, "__self__", None)
    words = getattr(sampler, "__name__", type(sampler).__name__).strip("_").replace("_", " ")
    return str(getattr(owner, "name", "") or words)
