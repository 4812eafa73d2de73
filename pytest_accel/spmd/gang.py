"""A gang: ranks that run one benchmark together, seen from the session that started them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pytest_accel.spmd.launch import GangError, Launch, Launched, Launcher, Remains
from pytest_accel.spmd.processes import ended_words
from pytest_accel.spmd.stacks import hang_words, ranks_words, shortened
from pytest_accel.spmd.wire import Connection, Listener, WireError, ready

_TICK_S = 0.5  # between two calls of `waiting`
_LOST_S = 2.0  # for the others, when a rank is gone: to notice it themselves, and say so
_FAILED_S = 10.0  # for the others, when a rank's item has failed: they may wait for it in a collective
_SKIPPED_S = 30.0  # for the others, when a rank skipped: they will too, or wait for it in a collective
_LAUNCHER_S = 1.0  # for what ranks said before their launcher went away
_LEAVE_S = 10.0  # to leave politely: torch alone takes seconds to end
_CHATTER = "[Gloo] Rank "  # is connected to so many peer ranks: gloo says it on stdout, whoever asks
_LOG_LINES = 12  # of a rank that is not the one to blame

Waiting = Callable[[], None]
Phase = Callable[[str, float | None], None]


def _nothing() -> None: ...


def _unheard(phase: str, remaining_s: float | None) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One benchmark to run, as one platform."""

    node_id: str
    session: str
    platform: str

    def to_plain(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, str]) -> Order:
        return cls(node_id=plain["node_id"], session=plain["session"], platform=plain["platform"])


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAnswer:
    """What one rank answered, or how it ended."""

    rank: int
    payload: Mapping[str, Any] | None = None
    problem: str = ""  # one line
    remains: Remains = field(default_factory=Remains)

    @property
    def outcome(self) -> str:
        return str((self.payload or {}).get("outcome", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class GangAnswer:
    """What all ranks answered; if one did not: who failed first, how, and where the others were."""

    ranks: tuple[RankAnswer, ...]
    problem: str = ""  # one line; empty if all answered
    culprit: int | None = None  # who failed first, of all that failed; None if nobody did

    @property
    def whole(self) -> bool:
        return all(rank.payload is not None for rank in self.ranks)

    def words(self) -> str:
        """For a report: the problem, the last words of the rank to blame, then the others; the same stacks once."""
        if self.whole:
            return ""
        ordered = sorted(self.ranks, key=lambda rank: rank.rank != self.culprit)
        parts = [self.problem]
        for rank in ordered:
            words = _last_words(rank, blamed=rank.rank == self.culprit)
            parts += [f"--- last words of rank {rank.rank} ---\n{words}"] if words.strip() else []
        same: dict[str, list[int]] = {}
        for rank in ordered:
            if rank.payload is None and (stacks := shortened(rank.remains.stacks)):
                same.setdefault(stacks, []).append(rank.rank)
        parts += [f"--- stacks of {ranks_words(ranks)} ---\n{stacks}" for stacks, ranks in same.items()]
        return "\n".join(parts)


def _last_words(rank: RankAnswer, *, blamed: bool) -> str:
    """All that the rank to blame has left; of another one that only lost its peer, the end."""
    if rank.payload is not None and blamed:
        return "\n".join(filter(None, (str(rank.payload.get(each, "")) for each in ("text", "printed"))))
    if rank.payload is not None:
        return str(rank.payload.get("cause", ""))
    lines = [line for line in rank.remains.log.splitlines() if not line.startswith(_CHATTER)]
    return "\n".join(lines if blamed else lines[-_LOG_LINES:])


class Gang:
    """Ranks that came together and take orders, until one of them fails or the gang is closed."""

    def __init__(self, launch: Launch, launched: Launched, connections: Mapping[int, Connection]) -> None:
        self._launch = launch
        self._launched = launched
        self._connections = dict(connections)
        self._ended = False
        self._number = 0

    @classmethod
    def start(
        cls,
        launcher: Launcher,
        *,
        per_node: int,
        process_group: bool,
        arguments: Callable[[Path], Sequence[str]],
        directory: Path,
        rendezvous_s: float,
        nodes: int = 1,
        bind: str = "auto",
        address: str = "127.0.0.1",
        host: str = "",
        waiting: Waiting = _nothing,
    ) -> Gang:
        """Start ranks and wait for their calls; GangError within `rendezvous_s` if one does not come.

        The session listens on `address` (empty: all of this machine's) and ranks call it as `host`. From the
        main thread: the kernel ends ranks with the thread that started them.
        """
        listener = Listener(address)
        launch = Launch(
            gang=secrets.token_hex(8),
            nodes=nodes,
            per_node=per_node,
            process_group=process_group,
            host=host or address,
            port=listener.port,
            token=listener.token,
            arguments=arguments,
            directory=directory,
            bind=bind,
            rendezvous_s=rendezvous_s,
        )
        launched: Launched | None = None
        try:
            launched = launcher.start(launch)
            return cls(launch, launched, _gather(listener, launch, launched, waiting))
        except BaseException:
            if launched is not None:
                _end_surely(launched, stacks=False)
            raise
        finally:
            listener.close()

    @property
    def id(self) -> str:
        return self._launch.gang

    @property
    def size(self) -> int:
        return self._launch.size

    @property
    def alive(self) -> bool:
        """Whether it can take an order: all ranks are there."""
        if self._ended or self._launched.ended() is not None:
            return False
        for connection in ready(self._connections.values(), 0):
            connection.arrived()  # between orders a rank has nothing to say
        return not any(connection.end for connection in self._connections.values())

    def run(
        self,
        order: Order,
        *,
        timeout_s: float,
        waiting: Waiting = _nothing,
        phase: Phase = _unheard,
    ) -> GangAnswer:
        """The same order on every rank. If not all answer, nothing is left of the gang afterwards."""
        if self._ended:
            raise GangError("this gang has ended; start another one")
        self._number += 1
        course = _Course(self._connections, self._launched, number=self._number, timeout_s=timeout_s)
        try:
            course.give(order)
            course.watch(waiting, phase)
            if course.whole:
                if course.lost:
                    self._end(stacks=False)
                return GangAnswer(ranks=tuple(_answers(course, {})), culprit=next(iter(course.failed), None))
            launcher = self._launcher_words(course)
            return _broken(course, self._end(stacks=True), launcher=launcher)
        except BaseException:
            self._end(stacks=False)
            raise

    def close(self) -> None:
        """Let the ranks leave, and end those that do not."""
        if self._ended:
            return
        try:
            for connection in self._connections.values():
                _tell(connection, {"kind": "leave"})
            deadline = time.monotonic() + _LEAVE_S
            while (self._launched.ended() is None or self._stay()) and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            self._end(stacks=False)

    def _launcher_words(self, course: _Course) -> str:
        """Why the launcher is gone. Ranks die with it, and may be seen to go a moment before it."""
        deadline = time.monotonic() + (0.0 if course.silent else _LAUNCHER_S)
        while (words := self._launched.ended()) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        return words or ""

    def _stay(self) -> bool:
        """Whether a rank is still there; what they say now is not heard any more."""
        for connection in self._connections.values():
            if not connection.end:
                connection.arrived()
        return not all(connection.end for connection in self._connections.values())

    def _end(self, *, stacks: bool) -> Mapping[int, Remains]:
        self._ended = True
        try:
            return _end_surely(self._launched, stacks=stacks)
        finally:
            for connection in self._connections.values():
                connection.close()


class _Course:
    """One order on its way: who answered, who is gone, and when to wait no longer."""

    def __init__(
        self, connections: Mapping[int, Connection], launched: Launched, *, number: int, timeout_s: float
    ) -> None:
        self.timeout_s = timeout_s
        self.answers: dict[int, Mapping[str, Any]] = {}
        self.lost: list[int] = []  # in the order in which they went
        self.late = False
        self._connections = connections
        self._launched = launched
        self._number = number
        self._deadline = time.monotonic() + timeout_s
        self._give_up_at = self._deadline

    @property
    def whole(self) -> bool:
        return len(self.answers) == len(self._connections)

    @property
    def silent(self) -> list[int]:
        """Ranks that are there and have not answered."""
        return [rank for rank in self._connections if rank not in self.answers and rank not in self.lost]

    @property
    def failed(self) -> list[int]:
        """Ranks that answered something else than a pass, in the order in which they answered; failures first."""
        outcomes = {rank: payload.get("outcome", "passed") for rank, payload in self.answers.items()}
        others = [rank for rank, outcome in outcomes.items() if outcome != "passed"]
        return sorted(others, key=lambda rank: outcomes[rank] != "failed")

    def give(self, order: Order) -> None:
        for connection in self._connections.values():
            _tell(connection, {"kind": "order", "number": self._number, "order": order.to_plain()})

    def watch(self, waiting: Waiting, phase: Phase) -> None:
        """Until all have answered, or it makes no sense to wait longer."""
        told = time.monotonic()
        while self.silent and (now := time.monotonic()) < self._give_up_at:
            self._hear(phase, min(_TICK_S, self._give_up_at - now))
            if self._launched.ended() is not None:
                self._wait_no_longer_than(_LAUNCHER_S)
            if time.monotonic() - told >= _TICK_S:
                told = time.monotonic()
                waiting()
        self.late = bool(self.silent) and time.monotonic() >= self._deadline

    def _hear(self, phase: Phase, timeout_s: float) -> None:
        listened = {rank: self._connections[rank] for rank in self._connections if rank not in self.lost}
        ready(listened.values(), timeout_s)
        for rank, connection in listened.items():
            for message in connection.arrived():
                self._take(rank, message, phase)
            if connection.end:
                self.lost.append(rank)
                if rank not in self.answers:
                    self._wait_no_longer_than(_LOST_S)

    def _take(self, rank: int, message: Mapping[str, Any], phase: Phase) -> None:
        match message:
            case {"kind": "answer", "number": self._number, "payload": dict(payload)}:
                self.answers[rank] = payload
                outcome = payload.get("outcome", "passed")
                if outcome != "passed":
                    self._wait_no_longer_than(_FAILED_S if outcome == "failed" else _SKIPPED_S)
            case {"kind": "phase", "phase": str(text)} if rank == 0:
                remaining_s = message.get("remaining_s")
                phase(text, float(remaining_s) if remaining_s is not None else None)

    def _wait_no_longer_than(self, seconds: float) -> None:
        self._give_up_at = min(self._give_up_at, time.monotonic() + seconds)


def _broken(course: _Course, remains: Mapping[int, Remains], *, launcher: str) -> GangAnswer:
    """Who is to blame: a rank that is gone before one that failed, and that before ranks that are merely late."""
    gone = [rank for rank in course.lost if rank not in course.answers]
    told = [rank for rank in gone if remains.get(rank, Remains()).status]
    blamed = [*told, *course.failed, *gone, *course.silent][0]
    where = hang_words({rank: remains.get(rank, Remains()).stacks for rank in course.silent})
    if told:
        problem = f"rank {blamed} {_end_words(remains[blamed].status)}"
    elif course.failed:
        answer = course.answers[blamed]
        problem = f"rank {blamed} {answer['outcome']} ({answer.get('cause', '')})" + (
            f"; {where}" if where else ""
        )
    elif launcher:
        problem = launcher
    elif gone:
        problem = f"rank {blamed} is gone without an answer"
    else:
        problem = f"no answer within {course.timeout_s:g} s: {where}"
    answers = tuple(_answers(course, remains, ended=f"ended: {problem}"))
    return GangAnswer(ranks=answers, problem=problem, culprit=blamed)


def _answers(course: _Course, remains: Mapping[int, Remains], ended: str = "") -> list[RankAnswer]:
    found = []
    for rank in sorted({*course.answers, *course.lost, *course.silent}):
        left = remains.get(rank, Remains())
        payload = course.answers.get(rank)
        problem = (
            "" if payload is not None else f"rank {rank} {_end_words(left.status)}" if left.status else ended
        )
        found.append(RankAnswer(rank=rank, payload=payload, problem=problem, remains=left))
    return found


def _end_words(status: str) -> str:
    hint = (
        " (the kernel's out-of-memory killer sends it too: see dmesg)"
        if status == "killed by SIGKILL"
        else ""
    )
    return ended_words(status) + hint


def _gather(
    listener: Listener, launch: Launch, launched: Launched, waiting: Waiting
) -> dict[int, Connection]:
    """Every rank's call; GangError that says who did not come, and what is known of it."""
    come: dict[int, Connection] = {}
    deadline = time.monotonic() + launch.rendezvous_s
    told = time.monotonic()
    why = ""
    while len(come) < launch.size and not why:
        ready([*listener.sources(), *come.values()], min(_TICK_S, max(0.0, deadline - time.monotonic())))
        for connection, hello in listener.arrived():
            rank = hello.get("rank")
            if isinstance(rank, int) and 0 <= rank < launch.size and rank not in come:
                come[rank] = connection
            else:
                connection.close()
        why = _why_not(come, launch, launched, late=time.monotonic() >= deadline)
        if time.monotonic() - told >= _TICK_S:
            told = time.monotonic()
            waiting()
    if why:
        for connection in come.values():
            connection.close()
        remains = _end_surely(launched, stacks=True)
        raise GangError(
            _not_come_words(why, [rank for rank in range(launch.size) if rank not in come], remains)
        )
    return come


def _why_not(come: Mapping[int, Connection], launch: Launch, launched: Launched, *, late: bool) -> str:
    """Why no more ranks will come; empty while they may."""
    if len(come) == launch.size:
        return ""
    if ended := launched.ended():
        return ended
    for rank, connection in come.items():
        connection.arrived()
        if connection.end:
            return f"rank {rank} {connection.end} before all had come"
    if late:
        return f"not all ranks came within {launch.rendezvous_s:g} s (--accel-rendezvous)"
    return ""


def _not_come_words(why: str, missing: Sequence[int], remains: Mapping[int, Remains]) -> str:
    """A rank that ended by itself is the reason, whoever else was seen to go before it."""
    ended = [rank for rank in sorted(remains) if remains[rank].status]
    first = (
        f"rank {ended[0]} {_end_words(remains[ended[0]].status)} before it took an order" if ended else why
    )
    lines = [f"{first}; {ranks_words(missing)} never called"]
    for rank in sorted({*missing, *ended}):
        left = remains.get(rank, Remains())
        lines += [f"--- last words of rank {rank} ---\n{left.log.strip() or 'none'}"]
        lines += [shortened(left.stacks)] if left.stacks else []
    return "\n".join(lines)


def _tell(connection: Connection, message: Mapping[str, Any]) -> None:
    """A rank that cannot be told is gone, which its connection then says."""
    try:
        connection.send(message)
    except WireError:
        return


def _end_surely(launched: Launched, *, stacks: bool) -> Mapping[int, Remains]:
    """Ctrl-C while a gang is being ended ends it at once, and is then heard."""
    try:
        return launched.end(stacks=stacks)
    except BaseException:
        launched.end(stacks=False)
        raise
