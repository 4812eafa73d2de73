"""A few threads that work off calls in order, and that nobody has to wait for when they hang."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Call: TypeAlias = Callable[[], None]

CLOSING_S = 5.0  # for a call that is under way when the threads are closed


class Threads:
    """As concurrent.futures has them, but daemons: one that hangs in a driver does not keep the process from ending."""

    def __init__(self, count: int, name: str, begin: Callable[[], None]) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._begin = begin
        self._name = name
        self._count = count
        self._threads: list[threading.Thread] = []

    def submit(self, call: Callable[..., T], *arguments: object) -> Future[T]:
        """Have a thread make the call; the first one starts them."""
        if not self._threads:
            self._threads = [
                threading.Thread(target=self._run, name=f"{self._name}-{number}", daemon=True)
                for number in range(self._count)
            ]
            for thread in self._threads:
                thread.start()
        future: Future[T] = Future()

        def made() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call(*arguments))
                except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
                    future.set_exception(error)

        self._calls.put(made)
        return future

    def close(self) -> None:
        """Let the calls that wait pass, and the threads end; one that does not is left behind."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join(CLOSING_S)

    def _run(self) -> None:
        self._begin()
        while (call := self._calls.get()) is not None:
            call()
