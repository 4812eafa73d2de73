"""A rank's side: the connection to its session, its pytest arguments, its CPUs."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
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
from pytest_accel.platforms import host as this_host
from pytest_accel.platforms import machine
from pytest_accel.platforms.host import DeviceAffinity, Topology, format_list
from pytest_accel.stats.quantities import counted
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


# --- CPU affinity: each rank on the CPUs nearest to its device --------------------------------------------

# Memory follows: Linux takes it from the node of the CPU that touches it first. Ranks bind before their first test is set up:
# thread pools and buffers come later.
TASKS = Path("/proc/self/task")
Cpus = frozenset[int]


def plan(host: Topology, *, allowed: Cpus, places: Sequence[DeviceAffinity | None]) -> list[Cpus | str]:
    """Return the CPUs of all ranks of one host, by local rank; for one that is not bound, the reason.

    `places` are where their devices are (None for ranks on the CPU). Ranks with the same CPUs to choose from get equal
    parts of them.
    """
    pools = [_pool(host, allowed, place) for place in places]
    planned: list[Cpus | str] = []
    for rank, pool in enumerate(pools):
        sharers = [other for other, its_pool in enumerate(pools) if its_pool == pool]
        if isinstance(pool, str):
            planned.append(pool)
        elif any(not isinstance(other, str) and other != pool and other & pool for other in pools):
            planned.append("the CPUs of local ranks overlap in part")
        elif len(pool) < len(sharers):
            planned.append(f"{counted(len(pool), 'CPU')} for {len(sharers)} ranks")
        else:
            planned.append(shares(pool, len(sharers), host)[sharers.index(rank)])
    return planned


def shares(cpus: Cpus, parts: int, host: Topology) -> list[Cpus]:
    """Split CPUs into disjoint parts, equal to within one core, that keep NUMA nodes and sibling threads together.

    With fewer cores than parts, siblings are separated; with fewer CPUs than parts, some parts are empty.
    """
    node_of = {cpu: index for index, node in enumerate(host.nodes) for cpu in node}
    known = [core & cpus for core in host.cores if core & cpus]
    cores = [*known, *(frozenset({cpu}) for cpu in cpus.difference(*known))]
    if len(cores) < parts:
        cores = [frozenset({cpu}) for cpu in cpus]
    cores.sort(key=lambda core: (node_of.get(min(core), -1), min(core)))
    cuts = [len(cores) * part // parts for part in range(parts + 1)]
    return [frozenset().union(*cores[begin:end]) for begin, end in pairwise(cuts)]


def _pool(host: Topology, allowed: Cpus, place: DeviceAffinity | None) -> Cpus | str:
    """Return the CPUs that a rank gets a part of; or why it is not bound."""
    if place is None:
        return allowed or "allowed CPUs unknown"
    near = allowed & place.cpus
    obstacles = {
        "allowed CPUs unknown": not allowed,
        "NUMA nodes unknown": not host.nodes,
        "one NUMA node": len(host.nodes) == 1,
        place.problem or "its device's CPUs unknown": not place.cpus,
        # So drivers and kernels answer where the firmware says nothing.
        "its device is near no NUMA node in particular": place.cpus >= host.cpus,
        f"its device's CPUs {format_list(place.cpus)} are not among the allowed {format_list(allowed)}": not near,
    }
    return next((reason for reason, holds in obstacles.items() if holds), near)


def bind_rank(*, mode: str, device_uuids: Sequence[str | None], local_rank: int) -> str:
    """Bind this process as one of the ranks of its host; return what was done: `cpus 0-15`, or `none (one NUMA node)`.

    `mode` is auto, none, or launcher (which gave each rank its CPUs). `device_uuids` are those of all local ranks, None
    for a rank on the CPU. Never raises.
    """
    if mode == "none":
        return "none (switched off)"
    allowed = this_host.allowed_cpus()
    if mode == "launcher":
        return f"none (the launcher gave it cpus {format_list(allowed)})"
    if list(device_uuids) == [None]:
        return "none (one rank on this host)"
    host = this_host.topology()
    cpus = plan(host, allowed=allowed, places=machine.device_affinities(device_uuids))[local_rank]
    if isinstance(cpus, str):
        return f"none ({cpus})"
    try:
        bind_threads(cpus)
    except OSError as error:
        return f"none (CPUs {format_list(cpus)}: {os.strerror(error.errno or 0).lower()})"
    return f"cpus {format_list(cpus)}"


def bind_threads(cpus: Cpus) -> None:
    """Bind all threads of this process; those that it will start inherit it."""
    bound: set[int] = set()
    while fresh := {int(task.name) for task in TASKS.iterdir()} - bound:  # a thread may start meanwhile
        for thread in fresh:
            try:
                os.sched_setaffinity(thread, cpus)
            except ProcessLookupError:
                continue
        bound |= fresh
