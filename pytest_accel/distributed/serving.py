"""Every seat but 0: it starts and ends processes as the session in seat 0 says, and leaves with its status."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from pytest_accel.distributed.launch import GangError, Launch, Remains
from pytest_accel.distributed.launchers import RankProcesses
from pytest_accel.distributed.meeting import open_store, own_name, seats_key
from pytest_accel.distributed.seats import start_here
from pytest_accel.distributed.wire import Connection, Message, WireError, call, ready
from pytest_accel.distributed.world import Seat

_POLL_S = 0.2
_LINGER_S = 10.0  # for an interrupted seat to be dismissed with the session's own status
_PARTING_S = 20.0  # for seat 0 to end once it has dismissed the others


def serve(
    seat: Seat,
    *,
    arguments: Callable[[Path], Sequence[str]],
    directory: Path,
    rendezvous_s: float,
    inventory: Callable[[], Mapping[str, Any]] = dict,
) -> int:
    """In every seat but 0: come, start and end processes as told, until dismissed; the exit status to leave with."""
    try:
        connection = _come(seat, rendezvous_s, inventory())
    except GangError as error:
        return _complain(str(error))
    server = _Server(connection, arguments, directory)
    try:
        with _signals_noted() as noted:
            status = server.serve(noted)
    finally:
        server.end_process()
        connection.close()
    return _complain(f"{seat.title}: seat 0 is gone: it {connection.end}") if status is None else status


def _complain(text: str) -> int:
    sys.stderr.write(f"pytest-accel: {text}\n")
    return 1


def _come(seat: Seat, rendezvous_s: float, sees: Mapping[str, Any]) -> Connection:
    """Find seat 0 and say who comes. Torch's store waits outside Python: meanwhile signals end this process."""
    from torch.distributed import DistError

    deadline = time.monotonic() + rendezvous_s
    with _signals_by_default():
        store = open_store(seat, rendezvous_s)
        try:
            store.wait([seats_key(seat)], timedelta(seconds=max(deadline - time.monotonic(), 1.0)))
            told = json.loads(store.get(seats_key(seat)))
        except DistError:
            raise GangError(f"{seat.title}: seat 0 did not come within {rendezvous_s:g} s") from None
    hello = {"rank": seat.rank, "node": seat.node, "host": own_name(), "sees": dict(sees)}
    left_s = max(deadline - time.monotonic(), 1.0)
    try:
        return call(told["host"], told["port"], token=told["token"], hello=hello, timeout_s=left_s)
    except WireError as error:
        raise GangError(f"{seat.title}: seat 0 cannot be reached: {error}") from None


class _Server:
    """The loop of a seat: at most one process at a time."""

    def __init__(
        self, connection: Connection, arguments: Callable[[Path], Sequence[str]], directory: Path
    ) -> None:
        self._connection = connection
        self._arguments = arguments
        self._directory = directory
        self._gang = ""
        self._process: RankProcesses | None = None
        self._reported = False  # that the process ended by itself

    def serve(self, noted: Sequence[int]) -> int | None:
        """The exit status once dismissed, or by a signal; None when seat 0 is gone."""
        deadline: float | None = None  # of an interrupted seat
        while True:
            for message in self._connection.arrived():
                if message.get("do") == "leave":
                    self._await_the_end_of_seat_0()
                    return int(message["status"])
                self._obey(message)
            if self._connection.end:
                return None if not noted else 128 + noted[0]
            if noted and deadline is None:
                self.end_process()
                deadline = time.monotonic() + (_LINGER_S if noted[0] == signal.SIGINT else 0.0)
            if deadline is not None and time.monotonic() >= deadline:
                return 128 + noted[0]
            self._report()
            ready([self._connection], _POLL_S)

    def _await_the_end_of_seat_0(self) -> None:
        self.end_process()
        self._say({"leaving": True})
        deadline = time.monotonic() + _PARTING_S
        while not self._connection.end and (left_s := deadline - time.monotonic()) > 0:
            ready([self._connection], left_s)
            self._connection.arrived()

    def end_process(self, *, stacks: bool = False) -> Remains:
        """End what runs; what is left of it."""
        if self._process is None:
            return Remains(status="it was not started")
        return next(iter(self._process.end(stacks=stacks).values()))

    def _obey(self, message: Message) -> None:
        match message:
            case {"do": "start", "launch": dict(ordered), "place": dict(where)}:
                self._start(ordered, where)
            case {"do": "end", "gang": str(gang), "stacks": bool(stacks)}:
                known = gang == self._gang
                remains = self.end_process(stacks=stacks) if known else Remains(status="it was not started")
                self._say({"ended": gang, "remains": asdict(remains)})

    def _start(self, ordered: Mapping[str, Any], where: Mapping[str, str]) -> None:
        self.end_process()
        self._gang, self._process, self._reported = ordered["gang"], None, False
        launch = Launch(**ordered, arguments=self._arguments, directory=self._directory)
        try:
            self._process = start_here(launch, where)
        except GangError as error:
            self._say({"left": self._gang, "status": str(error)})

    def _report(self) -> None:
        if self._process is not None and not self._reported and (words := self._process.ended()) is not None:
            self._reported = True
            self._say({"left": self._gang, "status": words})

    def _say(self, message: Message) -> None:
        with suppress(WireError):  # the loop notices
            self._connection.send(message)


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """Signals that ask to stop are noted, and acted upon between two steps.

    They stay so when this ends: a launcher that sees one rank leave ends the others, and this one is leaving
    with its own status.
    """
    noted: list[int] = []
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: noted.append(number))
    yield noted
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def _signals_by_default() -> Iterator[None]:
    """Ctrl-C ends this process at once, also where Python does not get to run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
