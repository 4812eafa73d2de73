"""Seats: the processes that torchrun or srun started, of which seat 0 is the session and the others serve it.

A seat measures nothing itself. It starts one process for each gang, and ends it, when seat 0 says so; what
crashes or hangs is that process, and the seat is there for the next gang. No order carries a command line:
a seat runs its own pytest with its own arguments.

    seat 0                          seat n
            <-- hello: rank, node, host, what it sees
    start: a gang, its place -->
            <-- left: how its process ended by itself
    end: a gang, stacks? -->
            <-- ended: what is left of its process
    leave: the exit status -->
            <-- leaving
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pytest_accel.distributed.launch import GangError, Launch, Launched, Remains
from pytest_accel.distributed.launchers import LOOPBACK, Port, RankProcess, RankProcesses, place
from pytest_accel.distributed.meeting import open_store, reachable, seats_key
from pytest_accel.distributed.processes import end_processes
from pytest_accel.distributed.stacks import ranks_words
from pytest_accel.distributed.wire import Connection, Listener, Message, WireError, ready
from pytest_accel.distributed.world import Seat
from pytest_accel.stats.quantities import counted

_POLL_S = 0.2
_END_S = 30.0  # for a seat to end its process and say so: stacks and a kernel that lets go slowly included
_LATE_S = 30.0  # for seats that have not come yet when the session is over already
_LEAVE_S = 10.0  # for seats to say that they leave: one may have a process to end first
_ORDERED = ("gang", "nodes", "per_node", "process_group", "host", "port", "token", "bind", "rendezvous_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What a seat said when it came."""

    rank: int
    node: int
    host: str
    sees: Mapping[str, Any] = field(default_factory=dict)  # plain; what it means is the caller's


# --- seat 0 -----------------------------------------------------------------------------------------------


def open_seats(seat: Seat, *, rendezvous_s: float) -> Seats:
    """In seat 0: say where the others find it. They come while the session goes on."""
    listener = Listener("" if seat.nodes > 1 else LOOPBACK)
    try:
        store = open_store(seat, rendezvous_s)
        host = reachable(seat.master_host) if seat.nodes > 1 else LOOPBACK
        store.set(seats_key(seat), json.dumps({"host": host, "port": listener.port, "token": listener.token}))
    except BaseException:
        listener.close()
        raise
    return Seats(seat, listener, host=host, store=store, deadline=time.monotonic() + rendezvous_s)


class _Other:
    """Another seat, seen from seat 0."""

    def __init__(self, connection: Connection, inventory: Inventory) -> None:
        self.connection = connection
        self.inventory = inventory
        self.left: dict[str, str] = {}  # by gang, how its process ended by itself
        self.ended: dict[str, Remains] = {}  # by gang, what is left of its process
        self.leaving = False  # it was dismissed

    @property
    def title(self) -> str:
        return f"rank {self.inventory.rank} on {self.inventory.host}"

    @property
    def gone(self) -> str:
        return self.connection.end

    def send(self, message: Message) -> None:
        with suppress(WireError):  # `gone` says it
            self.connection.send(message)

    def listen(self) -> None:
        """Take in what has arrived; never waits."""
        for message in self.connection.arrived():
            match message:
                case {"left": str(gang), "status": str(status)}:
                    self.left[gang] = status
                case {"ended": str(gang), "remains": dict(plain)}:
                    self.ended[gang] = Remains(**plain)
                case {"leaving": True}:
                    self.leaving = True


class Seats:
    """All seats of a launcher, held by seat 0."""

    def __init__(self, seat: Seat, listener: Listener, *, host: str, store: object, deadline: float) -> None:
        self.seat = seat
        self.host = host  # under which ranks reach this process
        self.address = "" if seat.nodes > 1 else LOOPBACK  # of whoever listens here for ranks
        self.deadline = deadline  # for all to come, on the monotonic clock
        self._listener = listener
        self._store = store  # serves latecomers as long as it lives
        self._others: dict[int, _Other] = {}
        self._dismissed = False

    def wait(self, deadline: float | None = None) -> None:
        """Until all seats have come; GangError names those that did not.

        The deadline is one for all calls: who has not come once is not waited for again.
        """
        deadline = self.deadline if deadline is None else deadline
        while self._let_in() and (left_s := deadline - time.monotonic()) > 0:
            ready(self._listener.sources(), min(left_s, _POLL_S))
        if missing := self._let_in():
            come = _did_not_come(missing, self.seat, self.by_node())
            raise GangError(f"{come}. {_REMEDIES[self.seat.launcher]}")

    def inventories(self) -> dict[int, Inventory]:
        """By rank, what the seats that have come said; never waits. Seat 0 itself is not among them."""
        self._let_in()
        return {rank: other.inventory for rank, other in sorted(self._others.items())}

    def other(self, rank: int) -> _Other:
        return self._others[rank]

    def by_node(self) -> dict[int, list[int]]:
        """The ranks of each node that have come, seat 0 first."""
        nodes: dict[int, list[int]] = {self.seat.node: [0]}
        for rank, seen in self.inventories().items():
            nodes.setdefault(seen.node, []).append(rank)
        return dict(sorted(nodes.items()))

    def listen(self) -> None:
        for other in self._others.values():
            other.listen()

    def refuse_gone(self, ranks: Collection[int]) -> None:
        """GangError where one of these seats came and went away again."""
        self.listen()
        gone = [other for rank, other in self._others.items() if rank in ranks and other.gone]
        if gone:
            words = ", ".join(f"{other.title} (it {other.gone})" for other in gone)
            raise GangError(f"the pytest of {words} is gone; what {self.seat.launcher} printed says why")

    def dismiss(self, status: int, *, with_this_process: bool = False) -> None:
        """Have every seat leave with this exit status, and hear that it will. Never raises.

        At once, or `with_this_process`: a launcher that sees one rank fail first may end the others, and
        says so loudly. They leave when the kernel closes what this process still holds.
        """
        if self._dismissed:
            return
        self._dismissed = True
        # Latecomers are told too: alone they would wait for a session that is over.
        with suppress(OSError, GangError):
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

    def _staying(self) -> list[_Other]:
        self.listen()
        return [other for other in self._others.values() if not other.leaving and not other.gone]

    def _let_in(self) -> list[int]:
        """Take in who has come; the ranks that have not."""
        for connection, hello in self._listener.arrived():
            match hello:
                case {"rank": int(rank), "node": int(node), "host": str(host), "sees": dict(sees)}:
                    inventory = Inventory(rank=rank, node=node, host=host, sees=sees)
                    self._others[rank] = _Other(connection, inventory)
                case _:
                    connection.close()
        return [rank for rank in range(1, self.seat.world_size) if rank not in self._others]


_REMEDIES = {
    "torchrun": "Did torchrun start on every node, with the same arguments? accel_rendezvous sets how long to wait.",
    "srun": "Does srun's output say why? accel_rendezvous sets how long to wait.",
}


def _did_not_come(missing: Sequence[int], seat: Seat, by_node: Mapping[int, object]) -> str:
    """Which ranks are missing, and which nodes sent none."""
    ranks = ranks_words(missing[:8]) + (", …" if len(missing) > 8 else "")
    silent = [seat.node_title(node) for node in range(seat.nodes) if node not in by_node]
    nobody = f"; nobody came from {', '.join(silent[:8])}" if silent else ""
    return f"{ranks} of {seat.world_size} ({seat.launcher}) did not come{nobody}"


# --- gangs of seats ---------------------------------------------------------------------------------------


class SeatLauncher:
    """Starts a gang with one process of each seat that it needs."""

    def __init__(self, seats: Seats) -> None:
        self._seats = seats
        self.host = seats.host
        self.address = seats.address

    def start(self, launch: Launch) -> Launched:
        self._seats.wait()
        chosen = choose(self._seats.by_node(), launch, self._seats.seat.launcher)
        self._seats.refuse_gone(chosen)
        port = Port()  # rank 0 runs here
        master = (LOOPBACK if launch.nodes == 1 else self.host, port.number)
        places = {seat: place(rank, launch, master) for rank, seat in enumerate(chosen)}
        return _SeatGang(self._seats, launch, places, port)


def choose(by_node: Mapping[int, Sequence[int]], launch: Launch, launcher: str) -> list[int]:
    """The seats of a gang by its ranks: the first ones of the first nodes; seat 0 is always the first of them."""
    first, *rest = (list(ranks) for _, ranks in sorted(by_node.items(), key=lambda pair: 0 not in pair[1]))
    fitting = [first, *(ranks for ranks in rest if len(ranks) >= launch.per_node)][: launch.nodes]
    if len(fitting) < launch.nodes or len(first) < launch.per_node:
        has = ", ".join(str(len(ranks)) for ranks in by_node.values())
        raise GangError(
            f"needs {counted(launch.per_node, 'rank')} on {counted(launch.nodes, 'node')}; {launcher} started {has}"
            f" on {counted(len(by_node), 'node')}. {_enough(launcher, launch)}"
        )
    return [rank for ranks in fitting for rank in ranks[: launch.per_node]]


def _enough(launcher: str, launch: Launch) -> str:
    if launcher == "srun":
        return f"Start it with srun --nodes={launch.nodes} --ntasks-per-node={launch.per_node}."
    return f"Start it with torchrun --nnodes={launch.nodes} --nproc-per-node={launch.per_node}."


class _SeatGang:
    """The processes of a gang, one at each of some seats."""

    def __init__(
        self, seats: Seats, launch: Launch, places: Mapping[int, Mapping[str, str]], port: Port
    ) -> None:
        """By the rank of the seat, the place of its process; that of seat 0 is started here, and listens at the port."""
        self._seats = seats
        self._gang = launch.gang
        self._others = {int(where["RANK"]): seats.other(seat) for seat, where in places.items() if seat != 0}
        ordered = {name: getattr(launch, name) for name in _ORDERED}
        for other in self._others.values():
            other.send({"do": "start", "launch": ordered, "place": dict(places[other.inventory.rank])})
        try:
            self._own = start_here(launch, places[0], port)
        except BaseException:
            for other in self._others.values():
                other.send({"do": "end", "gang": launch.gang, "stacks": False})
            port.close()
            raise
        self._remains: dict[int, Remains] | None = None

    def ended(self) -> str | None:
        self._seats.listen()
        if (words := self._own.ended()) is not None:
            return words
        for rank, other in self._others.items():
            if self._gang in other.left:
                return f"{other.left[self._gang]} on {other.inventory.host}"
            if other.gone:
                return (
                    f"the pytest that started rank {rank} on {other.inventory.host} is gone: it {other.gone}"
                )
        return None

    def left(self) -> bool:
        self._seats.listen()
        return self._own.left() and all(
            self._gang in each.left or each.gone for each in self._others.values()
        )

    def end(self, *, stacks: bool) -> Mapping[int, Remains]:
        if self._remains is None:
            for other in self._others.values():
                other.send({"do": "end", "gang": self._gang, "stacks": stacks})
            remains = dict(self._own.end(stacks=stacks))
            deadline = time.monotonic() + _END_S
            while (waiting := self._silent()) and (left_s := deadline - time.monotonic()) > 0:
                ready([other.connection for other in waiting], min(left_s, _POLL_S))
            self._remains = remains | {rank: self._left_of(other) for rank, other in self._others.items()}
            end_processes(self._gang)  # of seats of this node that are gone, and could not
        return self._remains

    def _silent(self) -> list[_Other]:
        self._seats.listen()
        return [other for other in self._others.values() if self._gang not in other.ended and not other.gone]

    def _left_of(self, other: _Other) -> Remains:
        other.left.pop(self._gang, None)
        if (told := other.ended.pop(self._gang, None)) is not None:
            return told
        if other.gone:
            return Remains(status=f"its pytest on {other.inventory.host} is gone: it {other.gone}")
        return Remains(status=f"its pytest on {other.inventory.host} did not answer within {_END_S:g} s")


def start_here(launch: Launch, where: Mapping[str, str], port: Port | None = None) -> RankProcesses:
    """The process of this seat. Only a place is taken from an order: a variable such as LD_PRELOAD runs code."""
    where = {name: where[name] for name in place(0, launch, ("", 0))}
    return RankProcesses([RankProcess(launch, rank=int(where["RANK"]), variables=where)], port)
