"""Gathers a stream: fresh processes one after another, or built in groups and measured one after another.

Only one process measures at a time. With `ahead` a group of N processes imports and builds at once while nobody
measures: this process holds the lock of the device, all of them come to wait for it, and once they are idle it lets go.
The plugin's own lock has them measure in turn from there; nothing is imported or built beside a measurement. What is left
beside it are idle contexts with their memory, and the end of the process before, which the next one's warm-up outlasts.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks.noise.processes import Child, GatherError, cpu_s, head_of, run_of, the_result
from benchmarks.noise.streams import (
    Plan,
    Stream,
    StreamError,
    StreamRun,
    append,
    begin,
    cut_off,
    read_interrupted,
)
from pytest_accel.stats.environment import safe_arguments
from pytest_accel.stats.quantities import seconds
from pytest_accel.stats.results import Result, SessionResults

POLL_S = 0.05
# Waiting processes count as idle below a tenth of a CPU, all together: each looks at its lock ten times a second.
IDLE_SHARE, IDLE_WINDOW_S, IDLE_LIMIT_S = 0.1, 0.5, 60.0
IN_A_ROW = 3  # processes that were disturbed, after which waiting for a better moment is wiser

Start = Callable[[float, Path], Child]  # a process with this slowdown, in this folder
Hold = Callable[[], AbstractContextManager[object]]  # the lock of the device


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a stream is to be."""

    name: str
    arguments: tuple[str, ...]  # of pytest
    plan: Plan
    out: Path
    ahead: int = 0
    trial: bool = False
    timeout_s: float = 600.0  # of one process

    @property
    def wait_s(self) -> float | None:
        """How long a process that is built ahead may wait for its turn: for the slowest to be built, and for all before it."""
        return self.ahead * self.timeout_s + IDLE_LIMIT_S if self.ahead else None


def gather(asked: Asked, start: Start, hold: Hold, folder: Path, *, resume: bool = False) -> Stream:
    """All runs that are missing, each appended when it has ended."""
    stream = _continued(asked) if resume and asked.out.exists() else None
    if stream is None and asked.out.exists():
        raise StreamError(f"{asked.out} is there already. Go on with --resume, or name another --out.")
    progress = Progress(total=len(asked.plan.order()))
    disturbed, number = 0, 0
    while left := (stream.remaining if stream else asked.plan.order()):
        group = left[: max(1, asked.ahead)]
        folders = [folder / str(number + each) for each in range(len(group))]
        number += len(group)
        # Closed, because a traceback would keep it and its processes alive until after their folder is removed.
        with closing(
            _in_turn(group, folders, start, hold if asked.ahead else None, asked.timeout_s)
        ) as children:
            for child, took_s in children:
                session = child.results()
                result = the_result(session)
                stream = _taken(asked, stream, session, result, slowdown=child.slowdown, took_s=took_s)
                disturbed = 0 if stream.runs[-1].is_valid else disturbed + 1
                progress.tell(stream.runs[-1], len(stream.remaining))
                if disturbed == IN_A_ROW:
                    raise GatherError(
                        f"{disturbed} processes in a row were disturbed, the last one: {stream.runs[-1].invalid}. "
                        "Go on with --resume when the machine is quiet."
                    )
    assert stream is not None  # a plan has runs
    return stream


def _continued(asked: Asked) -> Stream:
    """What is there already, if it is of the same question; a line that was cut off goes."""
    stream, cut_bytes = read_interrupted(asked.out)
    head = stream.head
    wanted = {
        "name": asked.name,
        "plan": asked.plan,
        "command": tuple(safe_arguments(list(asked.arguments))),
        "trial": asked.trial,
    }
    for what, value in wanted.items():
        if getattr(head, what) != value:
            raise StreamError(
                f"{asked.out} has another {what}: {getattr(head, what)!r}, and now it is {value!r}. Repeat the command as it "
                "was, or name another --out."
            )
    if cut_bytes:
        cut_off(asked.out, cut_bytes)
        _say(f"{asked.out}: its last line was cut off and is removed; that run is measured again.\n")
    return stream


def _taken(
    asked: Asked,
    stream: Stream | None,
    session: SessionResults,
    result: Result,
    *,
    slowdown: float,
    took_s: float,
) -> Stream:
    """The stream with one run more, in the file too."""
    run = run_of(session, result, place=len(stream.runs) if stream else 0, slowdown=slowdown, took_s=took_s)
    if stream is None and not run.is_valid:
        raise GatherError(
            f"the first process was disturbed: {run.invalid}. Begin when the machine is quiet (pytest-accel doctor)."
        )
    if stream is None:
        head = head_of(
            session,
            result,
            name=asked.name,
            arguments=asked.arguments,
            plan=asked.plan,
            ahead=asked.ahead,
            trial=asked.trial,
        )
        begin(asked.out, head)
        stream = Stream(head=head, runs=())
    elif run.is_valid:
        _require_same(stream, session, result)
    append(asked.out, run)
    return dataclasses.replace(stream, runs=(*stream.runs, run))


def _require_same(stream: Stream, session: SessionResults, result: Result) -> None:
    """A/A runs are of one code on one machine, or they say nothing of noise."""
    environment, head = session.environments[result.environment], stream.head
    now = {
        "benchmark": result.benchmark,
        "configuration": dict(result.configuration),
        "identity": dict(environment.identity),
        "context": dict(environment.context),
    }
    for what, value in now.items():
        before = getattr(head, what)
        if value != before:
            raise GatherError(
                f"the {what} is another one than that of the stream: {value!r}, and it was {before!r}. "
                "Gather a new stream on this machine."
            )


# --- processes --------------------------------------------------------------------------------------


def _in_turn(
    group: Sequence[float], folders: Sequence[Path], start: Start, hold: Hold | None, timeout_s: float
) -> Generator[tuple[Child, float]]:
    """The group's processes as they end, with the seconds that each took since the one before; none outlives us."""
    children: list[Child] = []
    before_s = time.monotonic()
    try:
        with hold() if hold else nullcontext():
            # One by one: where the next cannot start, those before it are stopped.
            for slowdown, path in zip(group, folders, strict=True):
                children.append(start(slowdown, path))
            if hold:
                _until_all_wait(children, timeout_s)
                _until_idle(children)
        for child in _as_they_end(children, timeout_s):
            now_s = time.monotonic()
            yield child, now_s - before_s
            before_s = now_s
    finally:
        for child in children:
            child.stop()


def _until_all_wait(children: Sequence[Child], timeout_s: float) -> None:
    until_s = time.monotonic() + timeout_s
    while not all(child.is_waiting for child in children):
        if ended := next((child for child in children if child.has_ended), None):
            the_result(ended.results())  # says why, where it failed
            raise GatherError(
                "a process measured without waiting for the device: benchmarks on the CPU take no lock, and accel_lock=off "
                "takes none. Leave --ahead out."
            )
        if time.monotonic() >= until_s:
            raise GatherError(
                f"not all processes were built within {timeout_s:.0f} s. Try a smaller --ahead."
            )
        time.sleep(POLL_S)


def _until_idle(children: Sequence[Child], limit_s: float = IDLE_LIMIT_S) -> None:
    """Loaders fill their queues and compilers start up while their process waits already."""
    until_s = time.monotonic() + limit_s
    while (busy := _busy_share(children)) > IDLE_SHARE:
        if time.monotonic() >= until_s:
            raise GatherError(
                f"processes that wait for the device keep {busy:.1f} CPUs busy, beside which none should measure. "
                "Leave --ahead out."
            )


def _busy_share(children: Sequence[Child]) -> float:
    """CPUs that they kept busy for a moment."""
    before_cpu_s, before_s = cpu_s(children), time.monotonic()
    time.sleep(IDLE_WINDOW_S)
    return (cpu_s(children) - before_cpu_s) / (time.monotonic() - before_s)


def _as_they_end(children: Sequence[Child], timeout_s: float) -> Iterator[Child]:
    running = list(children)
    until_s = time.monotonic() + timeout_s
    while running:
        if ended := next((child for child in running if child.has_ended), None):
            running.remove(ended)
            until_s = time.monotonic() + timeout_s
            yield ended
        elif time.monotonic() >= until_s:
            raise GatherError(
                f"a process did not end within {timeout_s:.0f} s ({running[0].log}). Give it longer with --timeout."
            )
        else:
            time.sleep(POLL_S)


# --- the device -------------------------------------------------------------------------------------


def hold_devices() -> AbstractContextManager[None]:
    """The locks that the plugin's sessions take, of all devices here: whichever one the benchmark runs on."""
    from pytest_accel.platforms.machine import detect

    uuids = [device.uuid for device in detect().devices if device.uuid]
    if not uuids:
        raise GatherError(
            "--ahead needs a device that sessions lock, and there is none here: on the CPU nothing keeps a process from "
            "measuring beside another. Leave it out."
        )
    return _held(uuids)


@contextmanager
def _held(uuids: Sequence[str]) -> Iterator[None]:
    from pytest_accel.measure.locks import LockedError, lock_devices

    def unlocked(text: str) -> None:
        raise GatherError(f"{text} --ahead needs locks: leave it out, or have them work.")

    try:
        with lock_devices(
            uuids, mode="wait", waiting=lambda text: _say(f"{text}\n"), unlocked=unlocked, timeout_s=600.0
        ):
            yield
    except LockedError as error:
        raise GatherError(str(error)) from None


# --- telling ----------------------------------------------------------------------------------------


class Progress:
    """A line for every run: what it was, and how long the others will take."""

    def __init__(self, total: int, tell: Callable[[str], object] | None = None) -> None:
        self._total = total
        self._tell = tell or _say
        self._took_s: list[float] = []

    def tell(self, run: StreamRun, left: int) -> None:
        self._took_s.append(run.took_s)
        kind = f"slower by {100 * run.slowdown:g} %" if run.slowdown else "A/A"
        each_s = sum(self._took_s) / len(self._took_s)
        found = (
            f"{1e3 * sorted(run.rounds_s)[len(run.rounds_s) // 2]:.5g} ms" if run.is_valid else run.invalid
        )
        self._tell(
            f"{self._total - left} of {self._total}  {kind}: {found}, {run.took_s:.1f} s; about {seconds(left * each_s)} left\n"
        )


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
