"""Groups of ranks, seen from the session: connections, orders, deadlines, and the rank to blame."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pytest_accel.distributed.launch import (
    GroupSpec,
    RankCommand,
    RankExit,
    RankLauncher,
    StartedRanks,
    WorkerError,
)
from pytest_accel.distributed.messages import Connection, ConnectionLost, Listener, ready
from pytest_accel.distributed.processes import with_verb
from pytest_accel.distributed.stacks import describe_hang, name_ranks, shorten
from pytest_accel.storage.codec import encode

TICK_S = 0.5  # between two calls of `waiting`
_LEAVE_S = 10.0  # for ranks to leave by themselves: torch alone takes seconds to end
_LOST_S = 2.0  # for the other ranks to notice that one is gone
_FAILED_S = 10.0  # for the other ranks when one has failed: they may wait for it in a collective
_SKIPPED_S = 30.0  # for the other ranks when one skipped
_SEEN_S = 1.0  # for a process to be seen to end after its connection has
_GLOO_CHATTER = "[Gloo] Rank "  # gloo prints its connections on stdout
_LOG_LINES = 12  # of a rank that is not the one to blame

Waiting = Callable[[], None]
Phase = Callable[[str, float | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One benchmark to run, as one platform."""

    node_id: str
    session: str
    platform: str
    next_node_id: str = ""  # of the benchmark that this worker runs next, as far as is known


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAnswer:
    """What one rank answered, or how it ended."""

    rank: int
    payload: Mapping[str, Any] | None = None
    exit: RankExit = field(default_factory=RankExit)

    @property
    def outcome(self) -> str:
        return str((self.payload or {}).get("outcome", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAnswer:
    """What all ranks answered; if one did not: which failed first, how, and where the others were."""

    ranks: tuple[RankAnswer, ...]
    problem: str = ""  # one line; empty if all answered
    culprit: int | None = None  # the first rank that failed

    @property
    def complete(self) -> bool:
        return all(rank.payload is not None for rank in self.ranks)

    def describe(self) -> str:
        """Return the problem, the last output of the rank to blame, then of the others; equal stacks once."""
        if self.complete:
            return ""
        ordered = sorted(self.ranks, key=lambda rank: rank.rank != self.culprit)
        parts = [self.problem]
        for rank in ordered:
            output = _last_output(rank, blamed=rank.rank == self.culprit)
            parts += [f"--- last output of rank {rank.rank} ---\n{output}"] if output.strip() else []
        same: dict[str, list[int]] = {}
        for rank in ordered:
            if rank.payload is None and (stacks := shorten(rank.exit.stacks)):
                same.setdefault(stacks, []).append(rank.rank)
        parts += [f"--- stacks of {name_ranks(ranks)} ---\n{stacks}" for stacks, ranks in same.items()]
        return "\n".join(parts)


def _last_output(rank: RankAnswer, *, blamed: bool) -> str:
    """Return all output of the rank to blame; of a rank that only lost its peer, the end."""
    if rank.payload is not None and blamed:
        return "\n".join(filter(None, (str(rank.payload.get(each, "")) for each in ("text", "printed"))))
    if rank.payload is not None:
        return str(rank.payload.get("cause", ""))
    lines = [line for line in rank.exit.log.splitlines() if not line.startswith(_GLOO_CHATTER)]
    return "\n".join(lines if blamed else lines[-_LOG_LINES:])


def _ignore(*_: object) -> None: ...


class WorkerGroup:
    """Connected ranks that take orders until one of them fails or the group is closed."""

    def __init__(self, spec: GroupSpec, started: StartedRanks, connections: Mapping[int, Connection]) -> None:
        self._spec = spec
        self._started = started
        self._connections = dict(connections)
        self._ended = False
        self._number = 0

    @classmethod
    def launch(
        cls,
        launcher: RankLauncher,
        *,
        per_node: int,
        process_group: bool,
        command: RankCommand,
        rendezvous_s: float,
        nodes: int = 1,
        bind: str = "auto",
        address: str = "127.0.0.1",
        host: str = "",
    ) -> StartingGroup:
        """Start ranks; `connect` waits for them, so that several groups can start at one time.

        The session listens on `address` (empty: all of this machine's) and ranks call it as `host`. From the main
        thread: the kernel ends ranks with the thread that started them.
        """
        try:
            listener = Listener(address)
        except OSError as error:
            raise WorkerError(f"no port for ranks to call this session at: {error}") from None
        spec = GroupSpec(
            group=secrets.token_hex(8),
            nodes=nodes,
            per_node=per_node,
            process_group=process_group,
            host=host or address,
            port=listener.port,
            token=listener.token,
            bind=bind,
            rendezvous_s=rendezvous_s,
        )
        try:
            return StartingGroup(spec, launcher.start(spec, command), listener)
        except BaseException:
            listener.close()
            raise

    @property
    def id(self) -> str:
        return self._spec.group

    @property
    def alive(self) -> bool:
        """Whether it can take an order: all ranks are there."""
        if self._ended or self._started.ended() is not None:
            return False
        for connection in ready(self._connections.values(), 0):
            connection.arrived()  # between orders a rank has nothing to send
        return not any(connection.end for connection in self._connections.values())

    def run(
        self, order: Order, *, timeout_s: float, waiting: Waiting = _ignore, phase: Phase = _ignore
    ) -> GroupAnswer:
        """Give every rank the same order. If not all answer, the group is ended."""
        return self.answer(self.give(order, timeout_s=timeout_s), waiting=waiting, phase=phase)

    def give(self, order: Order, *, timeout_s: float) -> PendingOrder:
        """Send an order to every rank; `answer` waits for it."""
        if self._ended:
            raise WorkerError("this group of ranks has ended; start another one")
        self._number += 1
        pending = PendingOrder(self._connections, self._started, number=self._number, timeout_s=timeout_s)
        try:
            pending.send(order)
        except BaseException:
            self.end()
            raise
        return pending

    def answer(
        self, pending: PendingOrder, *, waiting: Waiting = _ignore, phase: Phase = _ignore
    ) -> GroupAnswer:
        """Wait for the answers to the last order."""
        try:
            pending.wait(waiting, phase)
            if pending.complete:
                if pending.lost:
                    self.end()
                return GroupAnswer(ranks=_rank_answers(pending, {}), culprit=next(iter(pending.failed), None))
            launcher = pending.launcher_problem()
            return _broken_answer(pending, self.end(stacks=True), launcher=launcher)
        except BaseException:
            self.end()
            raise

    def close(self) -> None:
        """Let the ranks leave, and end those that do not."""
        if self._ended:
            return
        try:
            for connection in self._connections.values():
                _send(connection, {"kind": "leave"})
            deadline = time.monotonic() + _LEAVE_S
            while (not self._started.left() or self._connected()) and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            self.end()

    def _connected(self) -> bool:
        for connection in self._connections.values():
            if not connection.end:
                connection.arrived()
        return not all(connection.end for connection in self._connections.values())

    def end(self, *, stacks: bool = False) -> Mapping[int, RankExit]:
        """End the ranks at once."""
        self._ended = True
        try:
            return _end_surely(self._started, stacks=stacks)
        finally:
            for connection in self._connections.values():
                connection.close()


class StartingGroup:
    """Ranks that were started and have not connected yet."""

    def __init__(self, spec: GroupSpec, started: StartedRanks, listener: Listener) -> None:
        self._spec = spec
        self._started = started
        self._listener = listener

    def connect(self, waiting: Waiting = _ignore) -> WorkerGroup:
        """Wait for the ranks to call; WorkerError within `rendezvous_s` if one does not."""
        try:
            connections = _accept_ranks(self._listener, self._spec, self._started, waiting)
            return WorkerGroup(self._spec, self._started, connections)
        except BaseException:
            _end_surely(self._started, stacks=False)
            raise
        finally:
            self._listener.close()

    def end(self) -> None:
        try:
            _end_surely(self._started, stacks=False)
        finally:
            self._listener.close()


def _accept_ranks(
    listener: Listener, spec: GroupSpec, started: StartedRanks, waiting: Waiting
) -> dict[int, Connection]:
    """Return the connection of every rank; WorkerError names those that did not call, and what is known of them."""
    connected: dict[int, Connection] = {}
    deadline = time.monotonic() + spec.rendezvous_s
    ticked = time.monotonic()
    problem = ""
    while len(connected) < spec.size and not problem:
        sources = [*listener.sources(), *connected.values()]
        ready(sources, min(TICK_S, max(0.0, deadline - time.monotonic())))
        for connection, hello in listener.arrived():
            rank = hello.get("rank")
            if isinstance(rank, int) and 0 <= rank < spec.size and rank not in connected:
                connected[rank] = connection
            else:
                connection.close()
        problem = _connect_problem(connected, spec, started, late=time.monotonic() >= deadline)
        if time.monotonic() - ticked >= TICK_S:
            ticked = time.monotonic()
            waiting()
    if problem:
        for connection in connected.values():
            connection.close()
        exits = _end_surely(started, stacks=True)
        missing = [rank for rank in range(spec.size) if rank not in connected]
        raise WorkerError(_describe_missing(problem, missing, exits))
    return connected


def _connect_problem(
    connected: Mapping[int, Connection], spec: GroupSpec, started: StartedRanks, *, late: bool
) -> str:
    """Return why no more ranks will call; empty while they may."""
    if len(connected) == spec.size:
        return ""
    if ended := started.ended():
        return ended
    for rank, connection in connected.items():
        connection.arrived()
        if connection.end:
            return f"rank {rank} {connection.end} before all ranks had connected"
    return f"not all ranks connected within {spec.rendezvous_s:g} s (accel_rendezvous)" if late else ""


def _describe_missing(problem: str, missing: Sequence[int], exits: Mapping[int, RankExit]) -> str:
    """Describe ranks that did not connect; one that ended by itself is the reason."""
    ended = [rank for rank in sorted(exits) if exits[rank].status]
    if ended:
        problem = f"rank {ended[0]} {_describe_end(exits[ended[0]].status)} before it took an order"
    lines = [f"{problem}; {name_ranks(missing)} never connected"]
    for rank in sorted({*missing, *ended}):
        left = exits.get(rank, RankExit())
        lines += [f"--- last output of rank {rank} ---\n{left.log.strip() or 'none'}"]
        lines += [shorten(left.stacks)] if left.stacks else []
    return "\n".join(lines)


def _end_surely(started: StartedRanks, *, stacks: bool) -> Mapping[int, RankExit]:
    """End ranks; Ctrl-C meanwhile ends them at once, and is raised then."""
    try:
        return started.end(stacks=stacks)
    except BaseException:
        started.end(stacks=False)
        raise


# --- one order --------------------------------------------------------------------------------------------


class PendingOrder:
    """One order: which ranks answered, which are gone, and when to wait no longer."""

    def __init__(
        self, connections: Mapping[int, Connection], started: StartedRanks, *, number: int, timeout_s: float
    ) -> None:
        self.timeout_s = timeout_s
        self.answers: dict[int, Mapping[str, Any]] = {}
        self.lost: list[int] = []  # in the order in which they went
        self._connections = connections
        self._started = started
        self._number = number
        self._give_up_at = time.monotonic() + timeout_s

    @property
    def complete(self) -> bool:
        return len(self.answers) == len(self._connections)

    @property
    def silent(self) -> list[int]:
        """Ranks that are there and have not answered."""
        return [rank for rank in self._connections if rank not in self.answers and rank not in self.lost]

    @property
    def failed(self) -> list[int]:
        """Ranks whose answer is no pass, in the order of their answers; failures first."""
        outcomes = {rank: payload.get("outcome", "passed") for rank, payload in self.answers.items()}
        others = [rank for rank, outcome in outcomes.items() if outcome != "passed"]
        return sorted(others, key=lambda rank: outcomes[rank] != "failed")

    def send(self, order: Order) -> None:
        for connection in self._connections.values():
            _send(connection, {"kind": "order", "number": self._number, "order": encode(order)})

    def wait(self, waiting: Waiting, phase: Phase) -> None:
        """Wait until all have answered, or waiting longer makes no sense."""
        ticked = time.monotonic()
        self._receive(phase, 0.0)  # what arrived before counts, however late it is now
        while self.silent and (now := time.monotonic()) < self._give_up_at:
            self._receive(phase, min(TICK_S, self._give_up_at - now))
            if self._started.ended() is not None:
                self._wait_at_most(_LOST_S)
            if time.monotonic() - ticked >= TICK_S:
                ticked = time.monotonic()
                waiting()

    def launcher_problem(self) -> str:
        """Return which process has ended, or what else is gone. A connection may end a moment before its process."""
        deadline = time.monotonic() + (0.0 if self.silent else _SEEN_S)
        while (problem := self._started.ended()) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        return problem or ""

    def _receive(self, phase: Phase, timeout_s: float) -> None:
        present = {rank: self._connections[rank] for rank in self._connections if rank not in self.lost}
        ready(present.values(), timeout_s)
        for rank, connection in present.items():
            for message in connection.arrived():
                self._take(rank, message, phase)
            if connection.end:
                self.lost.append(rank)
                if rank not in self.answers:
                    self._wait_at_most(_LOST_S)

    def _take(self, rank: int, message: Mapping[str, Any], phase: Phase) -> None:
        match message:
            case {"kind": "answer", "number": self._number, "payload": dict(payload)}:
                self.answers[rank] = payload
                outcome = payload.get("outcome", "passed")
                if outcome != "passed":
                    self._wait_at_most(_FAILED_S if outcome == "failed" else _SKIPPED_S)
            case {"kind": "phase", "phase": str(text)} if rank == 0:
                remaining_s = message.get("remaining_s")
                phase(text, float(remaining_s) if isinstance(remaining_s, int | float) else None)

    def _wait_at_most(self, seconds: float) -> None:
        self._give_up_at = min(self._give_up_at, time.monotonic() + seconds)


def _broken_answer(pending: PendingOrder, exits: Mapping[int, RankExit], *, launcher: str) -> GroupAnswer:
    """Name the rank to blame: one that is gone before one that failed, and that before ranks that are late."""
    gone = [rank for rank in pending.lost if rank not in pending.answers]
    exited = [rank for rank in gone if exits.get(rank, RankExit()).status]
    blamed = [*exited, *pending.failed, *gone, *pending.silent][0]
    where = describe_hang({rank: exits.get(rank, RankExit()).stacks for rank in pending.silent})
    if exited:
        problem = f"rank {blamed} {_describe_end(exits[blamed].status)}"
    elif pending.failed:
        answer = pending.answers[blamed]
        problem = f"rank {blamed} {answer['outcome']} ({answer.get('cause', '')})"
        problem += f"; {where}" if where else ""
    elif launcher:
        problem = launcher
    elif gone:
        problem = f"rank {blamed} is gone without an answer"
    else:
        problem = f"no answer within {pending.timeout_s:g} s: {where}"
    return GroupAnswer(ranks=_rank_answers(pending, exits), problem=problem, culprit=blamed)


def _rank_answers(pending: PendingOrder, exits: Mapping[int, RankExit]) -> tuple[RankAnswer, ...]:
    return tuple(
        RankAnswer(rank=rank, payload=pending.answers.get(rank), exit=exits.get(rank, RankExit()))
        for rank in sorted({*pending.answers, *pending.lost, *pending.silent})
    )


def _describe_end(status: str) -> str:
    killed = status == "killed by SIGKILL"
    hint = " (the kernel's out-of-memory killer sends it too: see dmesg)" if killed else ""
    return with_verb(status) + hint


def _send(connection: Connection, message: Mapping[str, Any]) -> None:
    with suppress(ConnectionLost):  # its connection says so
        connection.send(message)
