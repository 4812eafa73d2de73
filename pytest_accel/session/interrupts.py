"""Ends that others put to a session, met as Ctrl-C is: what was measured is kept, and nothing is left running."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def terminated_like_interrupted(*, active: bool) -> Iterator[None]:
    """SIGTERM, the end of a job's time, and SIGHUP, that of a connection, are treated as Ctrl-C.

    Not where pytest was started in another thread: Python lets the main one alone set what a signal does.
    """

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    endings = (signal.SIGTERM, signal.SIGHUP)
    active = active and threading.current_thread() is threading.main_thread()
    ours = [number for number in endings if active and signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
