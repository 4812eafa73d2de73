"""One order on its way through a gang: who answered, who is gone, when to wait no longer, and who is to blame."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from pytest_accel.distributed.launch import Launched, Remains
from pytest_accel.distributed.orders import GangAnswer, Order, Preparation, RankAnswer
from pytest_accel.distributed.processes import ended_words
from pytest_accel.distributed.stacks import hang_words
from pytest_accel.distributed.wire import Connection, WireError, ready

TICK_S = 0.5  # between two calls of `waiting`
_LOST_S = 2.0  # for the others, when a rank is gone: to notice it themselves, and say so
_FAILED_S = 10.0  # for the others, when a rank's item has failed: they may wait for it in a collective
_SKIPPED_S = 30.0  # for the others, when a rank skipped: they will too, or wait for it in a collective
_SEEN_S = 1.0  # for a process to be seen to end, whose connection has ended

Waiting = Callable[[], None]
Phase = Callable[[str, float | None], None]


class Course:
    """One order on its way: who answered, who is gone, and when to wait no longer."""

    def __init__(
        self, connections: Mapping[int, Connection], launched: Launched, *, number: int, timeout_s: float
    ) -> None:
        self.timeout_s = timeout_s
        self.answers: dict[int, Mapping[str, Any]] = {}
        self.lost: list[int] = []  # in the order in which they went
        self._connections = connections
        self._launched = launched
        self._number = number
        self._give_up_at = time.monotonic() + timeout_s

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

    def give(self, order: Order | Preparation) -> None:
        kind = "order" if isinstance(order, Order) else "preparation"
        for connection in self._connections.values():
            tell(connection, {"kind": kind, "number": self._number, kind: order.to_plain()})

    def watch(self, waiting: Waiting, phase: Phase) -> None:
        """Until all have answered, or it makes no sense to wait longer."""
        told = time.monotonic()
        self._hear(phase, 0.0)  # what came before anybody watched counts, however late it is now
        while self.silent and (now := time.monotonic()) < self._give_up_at:
            self._hear(phase, min(TICK_S, self._give_up_at - now))
            if self._launched.ended() is not None:
                self._wait_no_longer_than(_LOST_S)
            if time.monotonic() - told >= TICK_S:
                told = time.monotonic()
                waiting()

    def launcher_words(self) -> str:
        """Which process has ended, or what else is gone. A connection may end a moment before its process does."""
        deadline = time.monotonic() + (0.0 if self.silent else _SEEN_S)
        while (words := self._launched.ended()) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        return words or ""

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


def broken(course: Course, remains: Mapping[int, Remains], *, launcher: str) -> GangAnswer:
    """Who is to blame: a rank that is gone before one that failed, and that before ranks that are merely late."""
    gone = [rank for rank in course.lost if rank not in course.answers]
    told = [rank for rank in gone if remains.get(rank, Remains()).status]
    blamed = [*told, *course.failed, *gone, *course.silent][0]
    where = hang_words({rank: remains.get(rank, Remains()).stacks for rank in course.silent})
    if told:
        problem = f"rank {blamed} {end_words(remains[blamed].status)}"
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
    ranks = tuple(answers(course, remains, ended=f"ended: {problem}"))
    return GangAnswer(ranks=ranks, problem=problem, culprit=blamed)


def answers(course: Course, remains: Mapping[int, Remains], ended: str = "") -> list[RankAnswer]:
    found = []
    for rank in sorted({*course.answers, *course.lost, *course.silent}):
        left = remains.get(rank, Remains())
        payload = course.answers.get(rank)
        problem = (
            "" if payload is not None else f"rank {rank} {end_words(left.status)}" if left.status else ended
        )
        found.append(RankAnswer(rank=rank, payload=payload, problem=problem, remains=left))
    return found


def end_words(status: str) -> str:
    hint = (
        " (the kernel's out-of-memory killer sends it too: see dmesg)"
        if status == "killed by SIGKILL"
        else ""
    )
    return ended_words(status) + hint


def tell(connection: Connection, message: Mapping[str, Any]) -> None:
    """A rank that cannot be told is gone, which its connection then says."""
    try:
        connection.send(message)
    except WireError:
        return
