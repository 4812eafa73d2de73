"""Sessions under torchrun or srun: launcher rank 0 is the session, the others start ranks for it.

A launcher rank measures nothing itself. It starts one process for each group of ranks, and ends it, on an order of
launcher rank 0; what crashes or hangs is that process, and the launcher rank is there for the next group. No order
carries a command line: a launcher rank runs its own pytest with its own arguments.

    launcher rank 0                 launcher rank n
            <-- hello: rank, node, host, inventory
    start: a group, its place -->
            <-- left: how its process ended by itself
    end: a group, stacks? -->
            <-- ended: what is left of its process
    leave: the exit status -->
            <-- leaving
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pytest_accel.distributed.launch import (
    LOOPBACK,
    GroupSpec,
    RankCommand,
    RankExit,
    RankProcess,
    RankProcesses,
    ReservedPort,
    StartedRanks,
    WorkerError,
    rank_variables,
)
from pytest_accel.distributed.launcher_rank import LauncherRank
from pytest_accel.distributed.messages import (
    Connection,
    ConnectionLost,
    Listener,
    Message,
    call,
    ready,
)
from pytest_accel.distributed.processes import end_processes
from pytest_accel.distributed.stacks import name_ranks
from pytest_accel.stats.quantities import counted
from pytest_accel.storage.codec import decode, encode

_POLL_S = 0.2
_END_S = 30.0  # for a launcher rank to end its process and report it
_LATE_S = 30.0  # for launcher ranks that have not come yet when the session is over already
_LEAVE_S = 10.0  # for launcher ranks to confirm that they leave
_LINGER_S = 10.0  # for an interrupted launcher rank to be dismissed with the session's own status
_PARTING_S = 20.0  # for launcher rank 0 to end once it has dismissed the others
_KEY = "pytest-accel/ranks/{}"  # of the address of launcher rank 0, by attempt
_NOT_STARTED = RankExit(status="it was not started")


# --- rendezvous -------------------------------------------------------------------------------------------


def open_store(launched: LauncherRank, rendezvous_s: float) -> Any:  # noqa: ANN401 - torch is not typed here
    """Open the key-value store of all launcher ranks: the launcher's own, else one that launcher rank 0 serves."""
    from torch.distributed import DistError, TCPStore

    hosting = launched.rank == 0 and not launched.agent_store
    try:
        return TCPStore(
            resolvable(launched.master_host),
            launched.master_port,
            is_master=hosting,
            wait_for_workers=False,
            timeout=timedelta(seconds=rendezvous_s),
        )
    except DistError as error:
        reason = str(error).splitlines()[0].rstrip(". ")
        if hosting:
            raise WorkerError(
                f"rank 0 cannot meet the other ranks at port {launched.master_port}: {reason}. "
                "Choose a free port with MASTER_PORT=... in the environment of all ranks."
            ) from None
        where = f"{launched.master_host}:{launched.master_port}"
        raise WorkerError(
            f"{launched.title}: no store at {where} within {rendezvous_s:g} s: {reason}"
        ) from None


def resolvable(host: str) -> str:
    """Return a host by a name that resolves: Slurm may name a node differently, and knows its address."""
    with suppress(OSError):
        socket.getaddrinfo(host, None)
        return host
    with suppress(OSError, subprocess.SubprocessError):
        shown = subprocess.run(  # noqa: S603 - no shell; the name comes from Slurm itself
            ["scontrol", "show", "node", host, "--oneliner"],  # noqa: S607 - wherever Slurm is installed
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout
        addresses = [word.partition("=")[2] for word in shown.split() if word.startswith("NodeAddr=")]
        if addresses:
            return addresses[0]
    return host


# --- launcher rank 0 --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What a launcher rank reported when it connected."""

    rank: int
    node: int
    host: str
    sees: Mapping[str, Any] = field(default_factory=dict)  # plain values of the caller


def open_launcher_ranks(launched: LauncherRank, *, rendezvous_s: float) -> LauncherRanks:
    """In launcher rank 0: publish its address. The others connect while the session goes on."""
    listener = Listener("" if launched.nodes > 1 else LOOPBACK)
    try:
        store = open_store(launched, rendezvous_s)
        host = resolvable(launched.master_host) if launched.nodes > 1 else LOOPBACK
        address = {"host": host, "port": listener.port, "token": listener.token}
        store.set(_KEY.format(launched.attempt), json.dumps(address))
    except BaseException:
        listener.close()
        raise
    return LauncherRanks(launched, listener, host=host, store=store, deadline=time.monotonic() + rendezvous_s)


class _OtherRank:
    """Another launcher rank, seen from launcher rank 0."""

    def __init__(self, connection: Connection, inventory: Inventory) -> None:
        self.connection = connection
        self.inventory = inventory
        self.left: dict[str, str] = {}  # by group, how its process ended by itself
        self.ended: dict[str, RankExit] = {}  # by group, what is left of its process
        self.leaving = False  # it was dismissed

    @property
    def title(self) -> str:
        return f"rank {self.inventory.rank} on {self.inventory.host}"

    @property
    def gone(self) -> str:
        return self.connection.end

    def send(self, message: Message) -> None:
        with suppress(ConnectionLost):  # `gone` says it
            self.connection.send(message)

    def receive(self) -> None:
        """Take in what has arrived; never waits."""
        for message in self.connection.arrived():
            match message:
                case {"left": str(group), "status": str(status)}:
                    self.left[group] = status
                case {"ended": str(group), "exit": dict(plain)}:
                    self.ended[group] = decode(RankExit, plain)
                case {"leaving": True}:
                    self.leaving = True


class LauncherRanks:
    """All launcher ranks, held by launcher rank 0."""

    def __init__(
        self, launched: LauncherRank, listener: Listener, *, host: str, store: object, deadline: float
    ) -> None:
        self.launched = launched
        self.host = host  # under which ranks reach this process
        self.address = "" if launched.nodes > 1 else LOOPBACK  # that this process listens on for ranks
        self.deadline = deadline  # for all to connect, on the monotonic clock
        self._listener = listener
        self._store = store  # serves latecomers as long as it lives
        self._others: dict[int, _OtherRank] = {}
        self._dismissed = False

    def wait(self, deadline: float | None = None) -> None:
        """Wait until all launcher ranks have connected; WorkerError names those that did not.

        The deadline is one for all calls: a rank that has not come once is not waited for again.
        """
        deadline = self.deadline if deadline is None else deadline
        while self._accept() and (left_s := deadline - time.monotonic()) > 0:
            ready(self._listener.sources(), min(left_s, _POLL_S))
        if missing := self._accept():
            text = _describe_missing(missing, self.launched, self.by_node())
            raise WorkerError(f"{text}. {_REMEDIES[self.launched.launcher]}")

    def inventories(self) -> dict[int, Inventory]:
        """Return what the connected launcher ranks reported, by rank, without rank 0; never waits."""
        self._accept()
        return {rank: other.inventory for rank, other in sorted(self._others.items())}

    def other(self, rank: int) -> _OtherRank:
        return self._others[rank]

    def by_node(self) -> dict[int, list[int]]:
        """Return the connected ranks of each node, rank 0 first."""
        nodes: dict[int, list[int]] = {self.launched.node: [0]}
        for rank, seen in self.inventories().items():
            nodes.setdefault(seen.node, []).append(rank)
        return dict(sorted(nodes.items()))

    def receive(self) -> None:
        for other in self._others.values():
            other.receive()

    def check_present(self, ranks: Collection[int]) -> None:
        """Raise WorkerError where one of these launcher ranks connected and is gone again."""
        self.receive()
        gone = [other for rank, other in self._others.items() if rank in ranks and other.gone]
        if gone:
            names = ", ".join(f"{other.title} (it {other.gone})" for other in gone)
            raise WorkerError(
                f"the pytest of {names} is gone; what {self.launched.launcher} printed says why"
            )

    def dismiss(self, status: int, *, with_this_process: bool = False) -> None:
        """Have every launcher rank leave with this exit status, at once or `with_this_process`. Never raises.

        A launcher that sees one rank fail first may end the others and print so; with this process they leave when the
        kernel closes its connections.
        """
        if self._dismissed:
            return
        self._dismissed = True
        # Latecomers too: they would wait for a session that is over.
        with suppress(OSError, WorkerError):
            self.wait(min(self.deadline, time.monotonic() + _LATE_S))
        for other in self._others.values():
            other.send({"do": "leave", "status": status})
        deadline = time.monotonic() + _LEAVE_S
        while (staying := self._staying()) and (left_s := deadline - time.monotonic()) > 0:
            ready([other.connection for other in staying], min(left_s, _POLL_S))
        for other in self._others.values():
            if with_this_process and not other.gone:
                os.dup(other.connection.fileno())  # never closed here
            other.connection.close()
        self._listener.close()
        self._store = None

    def _staying(self) -> list[_OtherRank]:
        self.receive()
        return [other for other in self._others.values() if not other.leaving and not other.gone]

    def _accept(self) -> list[int]:
        """Accept new connections; return the ranks that are missing."""
        for connection, hello in self._listener.arrived():
            match hello:
                case {"rank": int(rank), "node": int(node), "host": str(host), "sees": dict(sees)}:
                    inventory = Inventory(rank=rank, node=node, host=host, sees=sees)
                    self._others[rank] = _OtherRank(connection, inventory)
                case _:
                    connection.close()
        return [rank for rank in range(1, self.launched.world_size) if rank not in self._others]


_REMEDIES = {
    "torchrun": "Did torchrun start on every node, with the same arguments? accel_rendezvous sets how long to wait.",
    "srun": "Does srun's output say why? accel_rendezvous sets how long to wait.",
}


def _describe_missing(missing: Sequence[int], launched: LauncherRank, by_node: Mapping[int, object]) -> str:
    """Name missing ranks, and nodes of which no rank connected."""
    ranks = name_ranks(missing[:8]) + (", …" if len(missing) > 8 else "")
    silent = [launched.node_title(node) for node in range(launched.nodes) if node not in by_node]
    none = f"; none connected from {', '.join(silent[:8])}" if silent else ""
    return f"{ranks} of {launched.world_size} ({launched.launcher}) did not connect{none}"


# --- groups of ranks on several nodes ---------------------------------------------------------------------


class RemoteLauncher:
    """Starts a group with one process at each launcher rank that it needs."""

    def __init__(self, ranks: LauncherRanks) -> None:
        self._ranks = ranks
        self.host = ranks.host
        self.address = ranks.address

    def start(self, spec: GroupSpec, command: RankCommand) -> StartedRanks:
        self._ranks.wait()
        chosen = choose_ranks(self._ranks.by_node(), spec, self._ranks.launched.launcher)
        self._ranks.check_present(chosen)
        port = ReservedPort()  # rank 0 runs here
        master = (LOOPBACK if spec.nodes == 1 else self.host, port.number)
        places = {number: rank_variables(rank, spec, master) for rank, number in enumerate(chosen)}
        return _RemoteRanks(self._ranks, spec, command, places, port)


def choose_ranks(by_node: Mapping[int, Sequence[int]], spec: GroupSpec, launcher: str) -> list[int]:
    """Return the launcher ranks of a group: the first ones of the first nodes, launcher rank 0 first."""
    first, *rest = (list(ranks) for _, ranks in sorted(by_node.items(), key=lambda pair: 0 not in pair[1]))
    fitting = [first, *(ranks for ranks in rest if len(ranks) >= spec.per_node)][: spec.nodes]
    if len(fitting) < spec.nodes or len(first) < spec.per_node:
        has = ", ".join(str(len(ranks)) for ranks in by_node.values())
        options = (
            f"srun --nodes={spec.nodes} --ntasks-per-node={spec.per_node}"
            if launcher == "srun"
            else f"torchrun --nnodes={spec.nodes} --nproc-per-node={spec.per_node}"
        )
        raise WorkerError(
            f"needs {counted(spec.per_node, 'rank')} on {counted(spec.nodes, 'node')}; {launcher} started {has}"
            f" on {counted(len(by_node), 'node')}. Start it with {options}."
        )
    return [rank for ranks in fitting for rank in ranks[: spec.per_node]]


class _RemoteRanks:
    """The processes of a group, one at each of some launcher ranks."""

    def __init__(
        self,
        ranks: LauncherRanks,
        spec: GroupSpec,
        command: RankCommand,
        places: Mapping[int, Mapping[str, str]],  # by launcher rank, the variables of its process
        port: ReservedPort,
    ) -> None:
        self._ranks = ranks
        self._group = spec.group
        self._others = {
            int(where["RANK"]): ranks.other(number) for number, where in places.items() if number != 0
        }
        for other in self._others.values():
            place = dict(places[other.inventory.rank])
            other.send({"do": "start", "spec": encode(spec), "place": place})
        try:
            self._own = _start_here(spec, command, places[0], port)
        except BaseException:
            for other in self._others.values():
                other.send({"do": "end", "group": spec.group, "stacks": False})
            port.close()
            raise
        self._exits: dict[int, RankExit] | None = None

    def ended(self) -> str | None:
        self._ranks.receive()
        if (text := self._own.ended()) is not None:
            return text
        for rank, other in self._others.items():
            host = other.inventory.host
            if self._group in other.left:
                return f"{other.left[self._group]} on {host}"
            if other.gone:
                return f"the pytest that started rank {rank} on {host} is gone: it {other.gone}"
        return None

    def left(self) -> bool:
        self._ranks.receive()
        return self._own.left() and all(
            self._group in each.left or each.gone for each in self._others.values()
        )

    def end(self, *, stacks: bool) -> Mapping[int, RankExit]:
        if self._exits is None:
            for other in self._others.values():
                other.send({"do": "end", "group": self._group, "stacks": stacks})
            exits = dict(self._own.end(stacks=stacks))
            deadline = time.monotonic() + _END_S
            while (waiting := self._silent()) and (left_s := deadline - time.monotonic()) > 0:
                ready([other.connection for other in waiting], min(left_s, _POLL_S))
            self._exits = exits | {rank: self._exit_of(other) for rank, other in self._others.items()}
            end_processes(self._group)  # of launcher ranks of this node that are gone
        return self._exits

    def _silent(self) -> list[_OtherRank]:
        self._ranks.receive()
        return [other for other in self._others.values() if self._group not in other.ended and not other.gone]

    def _exit_of(self, other: _OtherRank) -> RankExit:
        other.left.pop(self._group, None)
        if (found := other.ended.pop(self._group, None)) is not None:
            return found
        host = other.inventory.host
        if other.gone:
            return RankExit(status=f"its pytest on {host} is gone: it {other.gone}")
        return RankExit(status=f"its pytest on {host} did not answer within {_END_S:g} s")


def _start_here(
    spec: GroupSpec, command: RankCommand, where: Mapping[str, str], port: ReservedPort | None = None
) -> RankProcesses:
    """Start the process of this launcher rank. Only a place is taken from an order: LD_PRELOAD would run code."""
    place = {name: where[name] for name in rank_variables(0, spec, ("", 0))}
    return RankProcesses([RankProcess(spec, command, rank=int(place["RANK"]), variables=place)], port)


# --- every launcher rank but 0 ----------------------------------------------------------------------------


def serve(
    launched: LauncherRank,
    *,
    command: RankCommand,
    rendezvous_s: float,
    inventory: Callable[[], Mapping[str, Any]] = dict,
) -> int:
    """Start and end processes on orders of launcher rank 0 until dismissed; return the exit status to leave with."""
    try:
        connection = _connect(launched, rendezvous_s, inventory())
    except WorkerError as error:
        return _complain(str(error))
    server = _Server(connection, command)
    try:
        with _signals_recorded() as recorded:
            status = server.serve(recorded)
    finally:
        server.end_process()
        connection.close()
    if status is None:
        return _complain(f"{launched.title}: rank 0 is gone: it {connection.end}")
    return status


def _complain(text: str) -> int:
    sys.stderr.write(f"pytest-accel: {text}\n")
    return 1


def _connect(launched: LauncherRank, rendezvous_s: float, sees: Mapping[str, Any]) -> Connection:
    """Find launcher rank 0 and say hello. torch's store waits outside Python: meanwhile signals end this process."""
    from torch.distributed import DistError

    deadline = time.monotonic() + rendezvous_s
    with _default_interrupt():
        store = open_store(launched, rendezvous_s)
        try:
            key = _KEY.format(launched.attempt)
            store.wait([key], timedelta(seconds=max(deadline - time.monotonic(), 1.0)))
            address = json.loads(store.get(key))
        except DistError:
            raise WorkerError(f"{launched.title}: rank 0 did not come within {rendezvous_s:g} s") from None
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    hello = {"rank": launched.rank, "node": launched.node, "host": name, "sees": dict(sees)}
    left_s = max(deadline - time.monotonic(), 1.0)
    try:
        return call(address["host"], address["port"], token=address["token"], hello=hello, timeout_s=left_s)
    except ConnectionLost as error:
        raise WorkerError(f"{launched.title}: rank 0 cannot be reached: {error}") from None


class _Server:
    """The loop of a launcher rank: at most one process at a time."""

    def __init__(self, connection: Connection, command: RankCommand) -> None:
        self._connection = connection
        self._command = command
        self._group = ""
        self._process: RankProcesses | None = None
        self._reported = False  # that the process ended by itself

    def serve(self, recorded: Sequence[int]) -> int | None:
        """Return the exit status once dismissed, or by a signal; None when launcher rank 0 is gone."""
        deadline: float | None = None  # after an interrupt
        while True:
            for message in self._connection.arrived():
                if message.get("do") == "leave":
                    self._wait_for_rank_0()
                    return int(message["status"])
                self._obey(message)
            if self._connection.end:
                return None if not recorded else 128 + recorded[0]
            if recorded and deadline is None:
                self.end_process()
                deadline = time.monotonic() + (_LINGER_S if recorded[0] == signal.SIGINT else 0.0)
            if deadline is not None and time.monotonic() >= deadline:
                return 128 + recorded[0]
            self._report()
            ready([self._connection], _POLL_S)

    def _wait_for_rank_0(self) -> None:
        self.end_process()
        self._send({"leaving": True})
        deadline = time.monotonic() + _PARTING_S
        while not self._connection.end and (left_s := deadline - time.monotonic()) > 0:
            ready([self._connection], left_s)
            self._connection.arrived()

    def end_process(self, *, stacks: bool = False) -> RankExit:
        if self._process is None:
            return _NOT_STARTED
        return next(iter(self._process.end(stacks=stacks).values()))

    def _obey(self, message: Message) -> None:
        match message:
            case {"do": "start", "spec": dict(spec), "place": dict(where)}:
                self._start(decode(GroupSpec, spec), where)
            case {"do": "end", "group": str(group), "stacks": bool(stacks)}:
                found = self.end_process(stacks=stacks) if group == self._group else _NOT_STARTED
                self._send({"ended": group, "exit": encode(found)})

    def _start(self, spec: GroupSpec, where: Mapping[str, str]) -> None:
        self.end_process()
        self._group, self._process, self._reported = spec.group, None, False
        try:
            self._process = _start_here(spec, self._command, where)
        except WorkerError as error:
            self._send({"left": self._group, "status": str(error)})

    def _report(self) -> None:
        if self._process is None or self._reported:
            return
        if (text := self._process.ended()) is not None:
            self._reported = True
            self._send({"left": self._group, "status": text})

    def _send(self, message: Message) -> None:
        with suppress(ConnectionLost):  # the loop notices
            self._connection.send(message)


@contextmanager
def _signals_recorded() -> Iterator[list[int]]:
    """Record signals that ask to stop, to act on them between two messages.

    They stay ignored when this ends: a launcher that sees one rank leave ends the others, and this one is leaving with
    its own status.
    """
    recorded: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: recorded.append(number))
    yield recorded
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _default_interrupt() -> Iterator[None]:
    """Let Ctrl-C end this process at once, also outside Python."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
