"""A rank's side of the connection to its session, and the pytest arguments that a rank gets."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import socket
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from pytest_accel.distributed.group import Order
from pytest_accel.distributed.launch import STACKS, WorkerError
from pytest_accel.distributed.messages import Connection, ConnectionLost, TooLargeError, call
from pytest_accel.distributed.processes import die_with_parent, disable_core_dump
from pytest_accel.options import WORKER_VARIABLE
from pytest_accel.storage.codec import decode

_CALL_S = 30.0  # to connect: the session listens already


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """The place of a rank in its group."""

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


class RankConnection:
    """Receives orders and answers each once."""

    def __init__(self, place: RankPlace, connection: Connection, stacks: BinaryIO) -> None:
        self.place = place
        self._connection = connection
        self._stacks = stacks  # kept open: the handler writes into it
        self._order: int | None = None  # the number of the order that waits for its answer
        # A child that a benchmark forks must not keep the connection open when its rank is gone.
        os.register_at_fork(after_in_child=connection.close)

    def orders(self) -> Iterator[Order]:
        """Yield orders until the session has no more, or is gone."""
        while True:
            try:
                message = self._connection.receive()
            except ConnectionLost:
                return
            match message:
                case {"kind": "order", "number": int(number), "order": dict(plain)}:
                    self._order = number
                    yield decode(Order, plain)
                case _:
                    return

    def answer(self, payload: Mapping[str, Any]) -> None:
        """Answer the last order; nothing if it has been answered, or if the session is gone."""
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
        """Send what this rank is doing, for the session's progress line."""
        self._send({"kind": "phase", "phase": phase, "remaining_s": remaining_s})

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            self._connection.send(message)
        except ConnectionLost:
            self._order = None  # the session is gone: `orders` will end


def begin_rank(environ: MutableMapping[str, str] = os.environ) -> RankConnection:
    """Connect this process to its session, before anything else happens in a rank.

    The variable is removed from the environment: a pytest that a benchmark starts is no rank.
    """
    spec = json.loads(environ.pop(WORKER_VARIABLE))
    die_with_parent()
    disable_core_dump()
    place = _place(spec, environ)
    stacks = _write_stacks_on_sigterm(place.folder / STACKS)
    hello = {"rank": place.rank, "pid": os.getpid(), "host": socket.gethostname()}
    try:
        connection = call(spec["host"], spec["port"], token=spec["token"], hello=hello, timeout_s=_CALL_S)
    except ConnectionLost as error:
        raise WorkerError(f"rank {place.rank} cannot reach its session: {error}") from None
    return RankConnection(place, connection, stacks)


def _place(spec: Mapping[str, Any], environ: Mapping[str, str]) -> RankPlace:
    """Read the place that the launcher set; a process without one is the only rank."""
    rank, size = int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))
    local_size = int(environ.get("LOCAL_WORLD_SIZE", "1"))
    return RankPlace(
        rank=rank,
        size=size,
        local_rank=int(environ.get("LOCAL_RANK", "0")),
        local_size=local_size,
        node=int(environ.get("GROUP_RANK", "0")),
        nodes=int(environ.get("GROUP_WORLD_SIZE", size // local_size)),
        process_group=spec["process_group"],
        bind=spec["bind"],
        rendezvous_s=spec["rendezvous_s"],
        folder=Path(spec["folder"], str(rank)),
    )


def _write_stacks_on_sigterm(file: Path) -> BinaryIO:
    """From C, so also while native code does not return to Python; then the signal ends the process."""
    stacks = file.open("wb")
    faulthandler.register(signal.SIGTERM, file=stacks, all_threads=True, chain=True)
    return stacks


# --- arguments of a rank's pytest -------------------------------------------------------------------------

# Options of this session that must not act in a rank: they write files or stop early. An optional value is, as argparse
# has it, the next word where that is no option.
Takes = Literal["none", "one", "optional"]
_WITHOUT_VALUE = """
    --accel-update --accel-in-process --benchmark-autosave --benchmark-save-data --cov-append --cov-branch
    --exitfirst --failed-first --ff --last-failed --lf --new-first --nf --pdb --stepwise --stepwise-reset
    --stepwise-skip --sw --sw-reset --sw-skip --trace -x
"""
_WITH_VALUE = """
    --accel-history --accel-json --accel-reason --accel-report --basetemp --benchmark-compare-fail
    --benchmark-cprofile --benchmark-json --benchmark-save --cov-config --cov-context --cov-fail-under --cov-report
    --html --junit-prefix --junit-xml --junitprefix --junitxml --log-file --maxfail --pastebin --report-log
"""
_WITH_OPTIONAL_VALUE = """
    --accel-record --benchmark-compare --benchmark-cprofile-dump --benchmark-csv --benchmark-histogram --cov
"""
_DROPPED: Mapping[str, Takes] = {
    **dict.fromkeys(_WITHOUT_VALUE.split(), "none"),
    **dict.fromkeys(_WITH_VALUE.split(), "one"),
    **dict.fromkeys(_WITH_OPTIONAL_VALUE.split(), "optional"),
}


def rank_arguments(arguments: Iterable[str]) -> list[str]:
    """Return the arguments of a session without those that write files or stop early."""
    return without_options(map(_without_x, arguments), _DROPPED)


def without_options(arguments: Iterable[str], dropped: Mapping[str, Takes]) -> list[str]:
    """Return arguments without some options and their values."""
    kept: list[str] = []
    value: Takes = "none"  # what the option just dropped still takes
    for argument in arguments:
        taken = value == "one" or (value == "optional" and not argument.startswith("-"))
        value = "none"
        if taken:
            continue
        name, assigned, _ = argument.partition("=")
        if name not in dropped:
            kept.append(argument)
        elif not assigned:
            value = dropped[name]
    return kept


def _without_x(argument: str) -> str:
    """`-xq` is `-x -q`."""
    if not re.fullmatch("-[lqsvx]+", argument):
        return argument
    others = argument.replace("x", "")
    return "-x" if others == "-" else others
