"""Groups of ranks, seen from the session: connections, orders, deadlines, and the rank to blame."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Self

from pytest_accel.distributed.messages import Connection, ConnectionLost, Listener, ready
from pytest_accel.distributed.processes import (
    RankCommand,
    RankExit,
    RankLauncher,
    RankSpec,
    StartedRanks,
    WorkerError,
)
from pytest_accel.stats.quantities import LONGEST_S
from pytest_accel.storage.codec import encode

TICK_S = 0.5  # between two calls of `waiting`
_POLL_S = 0.02
_LEAVE_S = 10.0  # for ranks to leave by themselves: torch alone takes seconds to end
# For the other ranks to notice that one is gone, and for its process to end after its connection.
_LOST_S = 2.0
_FAILED_S = 10.0  # for the other ranks when one has failed: they may wait for it in a collective
_SKIPPED_S = 30.0  # for the other ranks when one skipped
_GLOO_CHATTER = "[Gloo] Rank "  # gloo prints its connections on stdout
_LOG_LINES = 12  # of a rank that is not the one to blame

Waiting = Callable[[], None]
Phase = Callable[[str, float | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    node_id: str
    session: str
    platform: str
    next_node_id: str = ""  # of the benchmark that this worker runs next, as far as is known
    profile_above_s: float | None = None  # step time of its run above which it is profiled after its rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAnswer:
    rank: int
    payload: Mapping[str, Any] | None = None
    exit: RankExit = field(default_factory=RankExit)

    def last_output(self, *, blamed: bool) -> str:
        """Return all output of the rank to blame; of a rank that only lost its peer, the end."""
        if self.payload is None:
            lines = [line for line in self.exit.log.splitlines() if not line.startswith(_GLOO_CHATTER)]
            return "\n".join(lines if blamed else lines[-_LOG_LINES:])
        keys = ("text", "printed") if blamed else ("cause",)
        return "\n".join(filter(None, (str(self.payload.get(key, "")) for key in keys)))


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
        size = len(self.ranks)
        parts = [self.problem]
        same: dict[str, list[int]] = {}
        for rank in sorted(self.ranks, key=lambda rank: rank.rank != self.culprit):
            output = rank.last_output(blamed=rank.rank == self.culprit)
            if output.strip():
                parts.append(f"--- last output of {name_ranks([rank.rank], size)} ---\n{output}")
            if rank.payload is None and (stacks := shorten(rank.exit.stacks)):
                same.setdefault(stacks, []).append(rank.rank)
        parts += [f"--- stacks of {name_ranks(ranks, size)} ---\n{stacks}" for stacks, ranks in same.items()]
        return "\n".join(parts)


def _ignore(*_: object) -> None: ...


class WorkerGroup:
    """Connected ranks that take orders until one of them fails or the group is closed."""

    def __init__(self, spec: RankSpec, started: StartedRanks) -> None:
        self._spec = spec
        self._started = started
        self._connections: dict[int, Connection] = {}
        self._ended = False

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
        waiting: Waiting = _ignore,
    ) -> Self:
        """Start ranks and wait for them to connect; WorkerError within `rendezvous_s` if one does not.

        From the main thread: the kernel ends ranks with the thread that started them.
        """
        try:
            listener = Listener(launcher.address)
        except OSError as error:
            raise WorkerError(f"no port for ranks to call this session at: {error}") from None
        spec = RankSpec(
            group=secrets.token_hex(8),
            nodes=nodes,
            per_node=per_node,
            process_group=process_group,
            host=launcher.host,
            port=listener.port,
            token=listener.token,
            bind=bind,
            rendezvous_s=rendezvous_s,
        )
        try:
            group = cls(spec, launcher.start(spec, command))
            group._connect(listener, waiting)
        finally:
            listener.close()
        return group

    @property
    def id(self) -> str:
        return self._spec.group

    @property
    def alive(self) -> bool:
        """Whether it can take an order: all ranks are there."""
        return not self._ended and not self._started.ended() and not self._lost()

    def run(
        self, order: Order, *, timeout_s: float, waiting: Waiting = _ignore, phase: Phase = _ignore
    ) -> GroupAnswer:
        """Give every rank the same order. If not all answer, the group is ended."""
        if self._ended:
            raise WorkerError("this group of ranks has ended; start another one")
        pending = PendingOrder(self._connections, self._started, timeout_s=timeout_s)
        try:
            self._send_all({"order": encode(order)})
            pending.wait(waiting, phase)
            complete = len(pending.answers) == self._spec.size
            exits = {} if complete and not pending.lost else self.end(stacks=not complete)
        except BaseException:
            self.end()
            raise
        return pending.result(exits)

    def close(self) -> None:
        """Let the ranks leave, and end those that do not."""
        if self._ended:
            return
        try:
            self._send_all({"leave": True})
            deadline = time.monotonic() + _LEAVE_S
            while len(self._started.ended()) < self._spec.size and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        finally:
            self.end()

    def end(self, *, stacks: bool = False) -> Mapping[int, RankExit]:
        """End the ranks at once; Ctrl-C meanwhile ends them without their stacks, and is raised then."""
        self._ended = True
        try:
            return self._started.end(stacks=stacks)
        except BaseException:
            self._started.end(stacks=False)
            raise
        finally:
            for connection in self._connections.values():
                connection.close()

    def _connect(self, listener: Listener, waiting: Waiting) -> None:
        deadline = time.monotonic() + self._spec.rendezvous_s
        gone: Mapping[int, str] = {}
        try:
            while (missing := self._missing()) and not gone and (left_s := deadline - time.monotonic()) > 0:
                ready([*listener.sources(), *self._connections.values()], min(TICK_S, left_s))
                for connection, hello in listener.arrived():
                    if hello.get("rank") in missing:
                        self._connections[hello["rank"]] = connection
                    else:
                        connection.close()
                waiting()
                gone = self._started.ended() or self._lost()
        except BaseException:
            self.end()
            raise
        if missing:
            raise WorkerError(self._describe_missing(gone))

    def _missing(self) -> list[int]:
        return [rank for rank in range(self._spec.size) if rank not in self._connections]

    def _send_all(self, message: Mapping[str, Any]) -> None:
        for connection in self._connections.values():
            with suppress(ConnectionLost):  # its connection says so
                connection.send(message)

    def _lost(self) -> dict[int, str]:
        for connection in self._connections.values():
            connection.arrived()  # between orders a rank has nothing to send
        return {rank: connection.end for rank, connection in self._connections.items() if connection.end}

    def _describe_missing(self, gone: Mapping[int, str]) -> str:
        """Describe ranks that did not connect; one that is gone, best one that ended by itself, is the reason."""
        size, missing, exits = self._spec.size, self._missing(), self.end(stacks=True)
        ended = [rank for rank in sorted(exits) if exits[rank].status]
        found = [(rank, exits[rank].status) for rank in ended] or list(gone.items())
        problem = (
            f"{name_ranks([found[0][0]], size)} {found[0][1]} before it took an order"
            if found
            else f"not all ranks connected within {self._spec.rendezvous_s:g} s (accel_rendezvous)"
        )
        answer = GroupAnswer(
            ranks=tuple(RankAnswer(rank=rank, exit=exits.get(rank, RankExit())) for rank in range(size)),
            problem=f"{problem}; {name_ranks(missing, size)} never connected",
            culprit=[*ended, *missing][0],
        )
        return answer.describe()


class PendingOrder:
    """One order: which ranks answered, which are gone, and when to wait no longer."""

    def __init__(
        self, connections: Mapping[int, Connection], started: StartedRanks, *, timeout_s: float
    ) -> None:
        self.answers: dict[int, Mapping[str, Any]] = {}
        self.lost: list[int] = []  # in the order in which they went
        self._timeout_s = timeout_s
        self._connections = connections
        self._started = started
        self._give_up_at = time.monotonic() + timeout_s

    @property
    def silent(self) -> list[int]:
        """Ranks that are there and have not answered."""
        return [rank for rank in self._connections if rank not in self.answers and rank not in self.lost]

    def wait(self, waiting: Waiting, phase: Phase) -> None:
        """Wait until all have answered, or waiting longer makes no sense."""
        self._receive(phase, 0.0)  # what arrived before counts, however late it is now
        while (now := time.monotonic()) < self._give_up_at:
            ended = self._started.ended()
            ending = [rank for rank in self.lost if rank not in {*self.answers, *ended}]
            if not self.silent and not ending:
                return
            if ended:
                self._wait_at_most(_LOST_S)
            self._receive(phase, min(_POLL_S if ending else TICK_S, self._give_up_at - now))
            waiting()

    def result(self, exits: Mapping[int, RankExit]) -> GroupAnswer:
        """Name the rank to blame: one that has ended, then one that failed, then those that are gone or late."""
        size = len(self._connections)
        ranks = tuple(
            RankAnswer(rank=rank, payload=self.answers.get(rank), exit=exits.get(rank, RankExit()))
            for rank in range(size)
        )
        outcomes = {rank: payload.get("outcome", "passed") for rank, payload in self.answers.items()}
        failed = [rank for rank, outcome in outcomes.items() if outcome != "passed"]  # in order of time
        failed.sort(key=lambda rank: outcomes[rank] != "failed")
        unanswered = [rank for rank in (*self.lost, *self.silent) if rank not in self.answers]
        if not unanswered:
            return GroupAnswer(ranks=ranks, culprit=failed[0] if failed else None)
        ended = [rank for rank in unanswered if ranks[rank].exit.status]
        culprit = [*ended, *failed, *unanswered][0]
        where = describe_hang({rank: ranks[rank].exit.stacks for rank in self.silent}, size)
        who = name_ranks([culprit], size)
        if ended:
            status = ranks[culprit].exit.status
            hint = " (the kernel's out-of-memory killer sends it too: see dmesg)"
            problem = f"{who} {status}" + (hint if status.endswith("SIGKILL") else "")
        elif failed:
            problem = f"{who} {outcomes[culprit]} ({self.answers[culprit].get('cause', '')})"
            problem += f"; {where}" if where else ""
        elif culprit in self.lost:
            problem = f"{who} is gone without an answer"
        else:
            problem = f"no answer within {self._timeout_s:g} s: {where}"
        return GroupAnswer(ranks=ranks, problem=problem, culprit=culprit)

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
            case {"answer": dict(payload)}:
                self.answers[rank] = payload
                outcome = payload.get("outcome", "passed")
                if outcome != "passed":
                    self._wait_at_most(_FAILED_S if outcome == "failed" else _SKIPPED_S)
            case {"phase": str(text), "remaining_s": None} if rank == 0:
                phase(text, None)
            case {"phase": str(text), "remaining_s": int(left_s) | float(left_s)} if rank == 0:
                # A rank may send anything: NaN, or a number beyond all floats.
                phase(text, left_s if 0 <= left_s <= LONGEST_S else None)

    def _wait_at_most(self, seconds: float) -> None:
        self._give_up_at = min(self._give_up_at, time.monotonic() + seconds)


# --- stacks, as faulthandler writes them ------------------------------------------------------------------

_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$', re.MULTILINE)
_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$", re.MULTILINE)
# Frames of pytest, equal in every test, and of libraries.
_PYTEST = ("/_pytest/", "/pluggy/", "/pytest/__main__.py", "<frozen runpy>")
_OWN = tuple(f"/pytest_accel/{folder}/" for folder in ("measure", "session", "distributed", "workloads"))
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ", *_OWN)
_COLLECTIVES = ("/torch/distributed/", "/torch/nn/parallel/distributed.py")
_WRAPPERS = frozenset({"wrapper", "_wrapper", "_fn", "__call__"})
_MAX_FRAMES = 20  # of one thread in a report
_MAX_LINES = 60  # of one rank in a report


def name_ranks(ranks: Iterable[int], size: int) -> str:
    """Return `rank 1` or `ranks 0, 2`; of one process that is no group, `the worker process`."""
    names = [str(rank) for rank in ranks]
    if size == 1:
        return "the worker process"
    return f"rank{'s' if len(names) != 1 else ''} {', '.join(names)}"


def locate(stacks: str) -> tuple[str, str]:
    """Return where the main thread is (`test_x.py:12 step`), and the collective that it waits in.

    Empty without stacks. faulthandler writes the oldest thread, the main one, last.
    """
    frames = _FRAME.findall(_THREAD.split(stacks)[-1]) if _THREAD.search(stacks) else []
    if not frames:
        return "", ""
    own = next((at for at, (file, *_) in enumerate(frames) if not _inside(file, _LIBRARIES)), None)
    waits = [name for file, _, name in frames[:own] if _inside(file, _COLLECTIVES) and name not in _WRAPPERS]
    file, line, name = frames[own or 0]
    return f"{PurePath(file).name}:{line} {name}", waits[0] if waits else ""


def describe_hang(stacks: Mapping[int, str], size: int) -> str:
    """Say which ranks hang where, which wait in which collective, and which gave no stacks."""
    found: dict[tuple[str, str], list[int]] = {}
    for rank, text in sorted(stacks.items()):
        place, collective = locate(text)
        key = ("wait", collective) if collective else ("hang", place) if place else ("without", "")
        found.setdefault(key, []).append(rank)
    parts = []
    for (what, where), ranks in sorted(found.items()):
        who = name_ranks(ranks, size)
        verb = what if len(ranks) > 1 else f"{what}s"
        parts.append(f"{who} {verb} in {where}" if where else f"{who} gave no stacks")
    return ", ".join(parts)


def shorten(stacks: str) -> str:
    """Return stacks without pytest's own frames, unless a thread is in one, and of limited length."""
    lines: list[str] = []
    kept = 0  # of the thread
    # Equal stacks compare equal.
    for line in _THREAD.sub(r"\1 (most recent call first):", stacks).splitlines():
        frame = _FRAME.match(line)
        if frame is None:
            kept = 0
            lines.append(line)
        elif kept == 0 or not _inside(frame[1], _PYTEST):
            kept += 1
            lines += [line] if kept <= _MAX_FRAMES else ["  ..."] if kept == _MAX_FRAMES + 1 else []
    if len(lines) > _MAX_LINES:
        lines = [*lines[: _MAX_LINES // 2], "...", *lines[-_MAX_LINES // 2 :]]
    return "\n".join(lines).strip()


def _inside(file: str, parts: Iterable[str]) -> bool:
    return any(part in file for part in parts)
