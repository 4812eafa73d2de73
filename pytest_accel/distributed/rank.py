"""A rank's end of the conversation with its session."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pytest_accel.distributed.launch import GangError
from pytest_accel.distributed.launchers import STACKS
from pytest_accel.distributed.orders import Order, Preparation
from pytest_accel.distributed.processes import die_with_parent, dump_no_core
from pytest_accel.distributed.wire import Connection, TooLargeError, WireError, call
from pytest_accel.options import GANG_VARIABLE

_CALL_S = 30.0  # to connect: the session listens already


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank stands in its gang."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    nodes: int
    process_group: bool
    bind: str
    rendezvous_s: float
    folder: Path


class RankEnd:
    """Takes orders and answers them; an order is answered once."""

    def __init__(self, place: Place, connection: Connection, stacks: BinaryIO) -> None:
        self.place = place
        self._connection = connection
        self._stacks = stacks  # kept open: the handler writes into it
        self._order: int | None = None  # the number of the order that waits for its answer
        # A worker that a benchmark forks must not keep the line open when its rank is gone.
        os.register_at_fork(after_in_child=connection.close)

    def orders(self) -> Iterator[Order | Preparation]:
        """Until the session has no more, or is gone."""
        while True:
            try:
                message = self._connection.receive()
            except WireError:
                return
            match message:
                case {"kind": "order", "number": int(number), "order": dict(plain)}:
                    given: Order | Preparation = Order.from_plain(plain)
                case {"kind": "preparation", "number": int(number), "preparation": dict(plain)}:
                    given = Preparation.from_plain(plain)
                case _:
                    return
            self._order = number
            yield given

    def answer(self, payload: Mapping[str, Any]) -> None:
        """Of the last order; nothing if it has been answered, or if nobody is there to hear it."""
        if self._order is None:
            return
        number, self._order = self._order, None
        try:
            self._send({"kind": "answer", "number": number, "payload": payload})
        except TooLargeError as error:
            cause = f"the answer is too large: {error}"
            failed = {"outcome": "failed", "cause": cause, "text": cause}
            self._send({"kind": "answer", "number": number, "payload": failed})

    def say(self, phase: str, remaining_s: float | None = None) -> None:
        """What this rank is doing, for the session's progress line."""
        self._send({"kind": "phase", "phase": phase, "remaining_s": remaining_s})

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            self._connection.send(message)
        except WireError:
            self._order = None  # the session is gone: `orders` will end


def begin_rank(environ: MutableMapping[str, str] = os.environ) -> RankEnd:
    """First of all in a rank: leave nothing behind, be able to say where it is, call the session.

    The variable is taken out of the environment: a pytest that a benchmark starts is no rank.
    """
    told = json.loads(environ.pop(GANG_VARIABLE))
    die_with_parent()
    dump_no_core()
    place = _place(told, environ)
    stacks = _answer_sigterm_with_stacks(place.folder / STACKS)
    hello = {"rank": place.rank, "pid": os.getpid(), "host": socket.gethostname()}
    try:
        connection = call(told["host"], told["port"], token=told["token"], hello=hello, timeout_s=_CALL_S)
    except WireError as error:
        raise GangError(f"rank {place.rank} cannot reach its session: {error}") from None
    return RankEnd(place, connection, stacks)


def _place(told: Mapping[str, Any], environ: Mapping[str, str]) -> Place:
    """As the launcher set it; a process that no launcher started is alone."""
    rank, size = int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))
    local_size = int(environ.get("LOCAL_WORLD_SIZE", "1"))
    return Place(
        rank=rank,
        size=size,
        local_rank=int(environ.get("LOCAL_RANK", "0")),
        local_size=local_size,
        node=int(environ.get("GROUP_RANK", "0")),
        nodes=int(environ.get("GROUP_WORLD_SIZE", size // local_size)),
        process_group=told["process_group"],
        bind=told["bind"],
        rendezvous_s=told["rendezvous_s"],
        folder=Path(told["folder"], str(rank)),
    )


def _answer_sigterm_with_stacks(file: Path) -> BinaryIO:
    """From C, so also while native code never returns to Python; then the signal does what it does."""
    stacks = file.open("wb")
    faulthandler.register(signal.SIGTERM, file=stacks, all_threads=True, chain=True)
    return stacks
