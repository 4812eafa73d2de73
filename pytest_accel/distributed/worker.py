"""A rank's side of the connection to its session, and the pytest arguments that a rank gets."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal

from pytest_accel.distributed.group import Order, name_ranks
from pytest_accel.distributed.messages import Connection, ConnectionLost, call
from pytest_accel.distributed.processes import (
    STACKS,
    RankSpec,
    WorkerError,
    disable_core_dump,
)
from pytest_accel.options import OPTIONS, WORKER_VARIABLE
from pytest_accel.storage.codec import FormatError, decode, loads


class RankConnection:
    def __init__(self, place: RankSpec, connection: Connection, stacks: BinaryIO) -> None:
        self.place = place
        self._connection = connection
        self._stacks = stacks  # kept open
        # A child that a benchmark forks must not keep the connection open when its rank is gone.
        os.register_at_fork(after_in_child=connection.close)

    def orders(self) -> Iterator[Order]:
        """Yield orders until the session has no more, or is gone."""
        with suppress(ConnectionLost):
            while "order" in (message := self._connection.receive()):
                yield decode(Order, message["order"])

    def answer(self, payload: Mapping[str, Any]) -> None:
        self._send({"answer": payload})

    def say(self, phase: str, remaining_s: float | None = None) -> None:
        """Send what this rank is doing, for the session's progress line."""
        self._send({"phase": phase, "remaining_s": remaining_s})

    def _send(self, message: Mapping[str, Any]) -> None:
        with suppress(ConnectionLost):  # the session is gone: `orders` will end
            self._connection.send(message)


def begin_rank() -> RankConnection:
    """Connect this process to its session, before anything else happens in a rank.

    The variable is removed from the environment: a pytest that a benchmark starts is no rank. On SIGTERM all stacks are
    written from C, so also while native code does not return to Python; then the signal ends the process.
    """
    try:
        place = decode(RankSpec, loads(os.environ.pop(WORKER_VARIABLE)))
    except FormatError as error:
        raise WorkerError(
            f"{WORKER_VARIABLE}: {error}. A session sets it for its worker processes: unset it."
        ) from None
    disable_core_dump()
    stacks = Path(place.folder, STACKS).open("wb")  # noqa: SIM115 - the handler writes into it
    faulthandler.register(signal.SIGTERM, file=stacks, all_threads=True, chain=True)
    hello = {"rank": place.rank}
    try:
        connection = call(
            place.host, place.port, token=place.token, hello=hello, timeout_s=place.rendezvous_s
        )
    except ConnectionLost as error:
        who = name_ranks([place.rank], place.size)
        raise WorkerError(f"{who} cannot reach its session: {error}") from None
    return RankConnection(place, connection, stacks)


# --- arguments of a rank's pytest -------------------------------------------------------------------------

# Options of this session that must not act in a rank: they write files or stop early. An optional value is, as argparse
# has it, the next word where that is no option.
Takes = Literal["none", "one", "optional"]
_OURS = frozenset({"history", "in-process", "json", "reason", "record", "report", "update"})
_WITHOUT_VALUE = """
    --benchmark-autosave --benchmark-save-data --cov-append --cov-branch
    --exitfirst --failed-first --ff --last-failed --lf --new-first --nf --pdb --stepwise --stepwise-reset
    --stepwise-skip --sw --sw-reset --sw-skip --trace -x
"""
_WITH_VALUE = """
    --basetemp --benchmark-compare-fail
    --benchmark-cprofile --benchmark-json --benchmark-save --cov-config --cov-context --cov-fail-under --cov-report
    --html --junit-prefix --junit-xml --junitprefix --junitxml --log-file --maxfail --pastebin --report-log
"""
_WITH_OPTIONAL_VALUE = """
    --benchmark-compare --benchmark-cprofile-dump --benchmark-csv --benchmark-histogram --cov
"""
_TAKES: Mapping[str, Takes] = {"flag": "none", "optional": "optional"}  # by kind of option
_DROPPED: Mapping[str, Takes] = {
    **{option.flag: _TAKES.get(option.kind, "one") for option in OPTIONS if option.name in _OURS},
    **dict.fromkeys(_WITHOUT_VALUE.split(), "none"),
    **dict.fromkeys(_WITH_VALUE.split(), "one"),
    **dict.fromkeys(_WITH_OPTIONAL_VALUE.split(), "optional"),
}


def rank_arguments(arguments: Iterable[str]) -> list[str]:
    """Return the arguments of a session without those that write files or stop early."""
    return without_options(map(_without_x, arguments), _DROPPED)


def without_options(arguments: Iterable[str], dropped: Mapping[str, Takes]) -> list[str]:
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
