"""A gang: ranks that run one benchmark together, seen from the session that started them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_accel.distributed.course import (
    TICK_S,
    Course,
    Phase,
    Waiting,
    answers,
    broken,
    end_words,
    tell,
)
from pytest_accel.distributed.launch import GangError, Launch, Launched, Launcher, Remains
from pytest_accel.distributed.orders import GangAnswer, Order, Preparation
from pytest_accel.distributed.stacks import ranks_words, shortened
from pytest_accel.distributed.wire import Connection, Listener, ready

_LEAVE_S = 10.0  # to leave politely: torch alone takes seconds to end


def _nothing() -> None: ...


def _unheard(phase: str, remaining_s: float | None) -> None: ...


class Gang:
    """Ranks that came together and take orders, until one of them fails or the gang is closed."""

    def __init__(self, launch: Launch, launched: Launched, connections: Mapping[int, Connection]) -> None:
        self._launch = launch
        self._launched = launched
        self._connections = dict(connections)
        self._ended = False
        self._number = 0

    @classmethod
    def launch(
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
    ) -> Coming:
        """Start ranks, whose calls are waited for when `come` is called: several gangs can come at one time.

        The session listens on `address` (empty: all of this machine's) and ranks call it as `host`. From the
        main thread: the kernel ends ranks with the thread that started them.
        """
        try:
            listener = Listener(address)
        except OSError as error:
            raise GangError(f"no port for ranks to call this session at: {error}") from None
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
        try:
            return Coming(launch, launcher.start(launch), listener)
        except BaseException:
            listener.close()
            raise

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
        return self.answer(self.give(order, timeout_s=timeout_s), waiting=waiting, phase=phase)

    def give(self, order: Order | Preparation, *, timeout_s: float) -> Course:
        """Tell every rank; the answer is waited for later."""
        if self._ended:
            raise GangError("this gang has ended; start another one")
        self._number += 1
        course = Course(self._connections, self._launched, number=self._number, timeout_s=timeout_s)
        try:
            course.give(order)
        except BaseException:
            self._end(stacks=False)
            raise
        return course

    def answer(self, course: Course, *, waiting: Waiting = _nothing, phase: Phase = _unheard) -> GangAnswer:
        """What the ranks make of what they were given last."""
        try:
            course.watch(waiting, phase)
            if course.whole:
                if course.lost:
                    self._end(stacks=False)
                return GangAnswer(ranks=tuple(answers(course, {})), culprit=next(iter(course.failed), None))
            launcher = course.launcher_words()
            return broken(course, self._end(stacks=True), launcher=launcher)
        except BaseException:
            self._end(stacks=False)
            raise

    def close(self) -> None:
        """Let the ranks leave, and end those that do not."""
        if self._ended:
            return
        try:
            for connection in self._connections.values():
                tell(connection, {"kind": "leave"})
            deadline = time.monotonic() + _LEAVE_S
            while (not self._launched.left() or self._stay()) and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            self._end(stacks=False)

    def end(self) -> None:
        """At once: the ranks have nothing to finish."""
        self._end(stacks=False)

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


class Coming:
    """Ranks that were started, and have not called yet."""

    def __init__(self, launch: Launch, launched: Launched, listener: Listener) -> None:
        self._launch = launch
        self._launched = launched
        self._listener = listener

    def come(self, waiting: Waiting = _nothing) -> Gang:
        """Wait for their calls; GangError within `rendezvous_s` if one does not come."""
        try:
            called = _gather(self._listener, self._launch, self._launched, waiting)
            return Gang(self._launch, self._launched, called)
        except BaseException:
            _end_surely(self._launched, stacks=False)
            raise
        finally:
            self._listener.close()

    def end(self) -> None:
        """Nobody waits for them any more."""
        try:
            _end_surely(self._launched, stacks=False)
        finally:
            self._listener.close()


def _gather(
    listener: Listener, launch: Launch, launched: Launched, waiting: Waiting
) -> dict[int, Connection]:
    """Every rank's call; GangError that says who did not come, and what is known of it."""
    come: dict[int, Connection] = {}
    deadline = time.monotonic() + launch.rendezvous_s
    told = time.monotonic()
    why = ""
    while len(come) < launch.size and not why:
        ready([*listener.sources(), *come.values()], min(TICK_S, max(0.0, deadline - time.monotonic())))
        for connection, hello in listener.arrived():
            rank = hello.get("rank")
            if isinstance(rank, int) and 0 <= rank < launch.size and rank not in come:
                come[rank] = connection
            else:
                connection.close()
        why = _why_not(come, launch, launched, late=time.monotonic() >= deadline)
        if time.monotonic() - told >= TICK_S:
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
        return f"not all ranks came within {launch.rendezvous_s:g} s (accel_rendezvous)"
    return ""


def _not_come_words(why: str, missing: Sequence[int], remains: Mapping[int, Remains]) -> str:
    """A rank that ended by itself is the reason, whoever else was seen to go before it."""
    ended = [rank for rank in sorted(remains) if remains[rank].status]
    first = f"rank {ended[0]} {end_words(remains[ended[0]].status)} before it took an order" if ended else why
    lines = [f"{first}; {ranks_words(missing)} never called"]
    for rank in sorted({*missing, *ended}):
        left = remains.get(rank, Remains())
        lines += [f"--- last words of rank {rank} ---\n{left.log.strip() or 'none'}"]
        lines += [shortened(left.stacks)] if left.stacks else []
    return "\n".join(lines)


def _end_surely(launched: Launched, *, stacks: bool) -> Mapping[int, Remains]:
    """Ctrl-C while a gang is being ended ends it at once, and is then heard."""
    try:
        return launched.end(stacks=stacks)
    except BaseException:
        launched.end(stacks=False)
        raise
