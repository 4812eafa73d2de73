"""Commands with their output in a log, one after the other or side by side, ended in good order when they must end."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from pytest_accel.distributed.processes import send_group
from pytest_accel.report.console import Console, last_line
from pytest_accel.stats.quantities import seconds
from pytest_accel.storage.whole import seen_from

_POLL_S = 0.1
# pytest tells and writes what it has measured when it is interrupted; a gang may take its time to end.
_PATIENCE_S = 60.0
_LAST_PATIENCE_S = 5.0
_WAYS = (
    (signal.SIGINT, _PATIENCE_S),
    (signal.SIGTERM, _LAST_PATIENCE_S),  # srun takes the first interrupt for a question
    (signal.SIGKILL, _LAST_PATIENCE_S),
)


class InterruptedPhaseError(Exception):
    """Ctrl-C or SIGTERM; the phase has ended, and what it left is whole."""


class Signals:
    """Ctrl-C, SIGTERM and a lost terminal, noted here and acted upon where there is a process to end."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1


@contextmanager
def signals_noted() -> Iterator[Signals]:
    """Handlers, not a mask: a mask would be inherited by what is started within."""
    signals = Signals()
    noted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        noted.append(signal.SIGHUP)
    before = {number: signal.signal(number, signals.note) for number in noted}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One of several commands that need not wait for each other."""

    name: str
    command: tuple[str, ...]
    log: Path


class _Ending:
    """A process that has to end: in good order where it may still end so, then less so."""

    def __init__(self, process: subprocess.Popen[bytes], clock: Callable[[], float]) -> None:
        self._process = process
        self._clock = clock
        self._ways = list(_WAYS)
        self._until_s = clock()

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None or (not self._ways and self._clock() >= self._until_s)

    def go_on(self, *, hurry: bool = False) -> None:
        """The next way, when the last one has had its time; a second Ctrl-C does not wait for that."""
        if self._ways and not self.is_over and (hurry or self._clock() >= self._until_s):
            number, patience_s = self._ways.pop(0)
            send_group(self._process.pid, number)
            self._until_s = self._clock() + patience_s


@dataclass(slots=True, kw_only=True)
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    begun_s: float
    ending: _Ending | None = None  # where it took too long


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Runs commands, with progress."""

    signals: Signals
    console: Console
    verbose: bool = False
    held: tuple[int, ...] = ()  # descriptors that a command keeps open, so that what they lock stays locked
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    clock: Callable[[], float] = time.monotonic

    def run(
        self,
        command: Sequence[str],
        log: Path,
        *,
        title: str,
        timeout_s: float | None = None,
        log_stays: bool = True,
    ) -> int:
        """Its exit status, negative for the signal that killed it; InterruptedPhaseError when it was us who ended it."""
        self._refuse_interrupted()
        begun_s = self.clock()
        where = f" (log: {seen_from(Path.cwd(), log)})" if log_stays else ""
        self.console.show(f"{title}{where}", topic=title)
        process = self._start(command, log)
        told = _Tail(log)
        try:
            while process.poll() is None:
                self._wait(process)
                lasted_s = self.clock() - begun_s
                if self.verbose:
                    told.echo()
                else:
                    self.console.show(f"{title}, {seconds(lasted_s)}", last_line(log), topic=title)
                if self.signals.count:
                    self.console.say(f"interrupted: waiting for {title.partition(':')[0]} to end")
                    raise InterruptedPhaseError
                if timeout_s is not None and lasted_s > timeout_s:
                    self.console.say(f"{title}: no answer within {seconds(timeout_s)}")
                    break
        finally:
            self._end(process)
            self.console.clear()
            if self.verbose:
                told.echo()
        return process.returncode

    def run_side_by_side(
        self, waiting: deque[Job], *, at_once: int, timeout_s: float, title: str
    ) -> Generator[tuple[Job, int | None, float]]:
        """Jobs as they end, with their exit status and seconds; None for one that took longer than `timeout_s` and was ended.

        They are taken from `waiting`, to which whoever asks may add meanwhile.
        InterruptedPhaseError when it was us who ended them; then, and when nobody asks for more, nothing is left running.
        """
        running = list[_Running]()
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    self._refuse_interrupted()
                    job = waiting.popleft()
                    running.append(
                        _Running(job=job, process=self._start(job.command, job.log), begun_s=self.clock())
                    )
                self._wait(running[0].process)
                if self.signals.count:
                    self.console.say(f"interrupted: waiting for what is running to end ({len(running)})")
                    raise InterruptedPhaseError
                for each in [each for each in running if self._is_over(each, timeout_s)]:
                    running.remove(each)
                    send_group(each.process.pid, signal.SIGKILL)  # what it left behind
                    status = None if each.ending else each.process.returncode
                    yield each.job, status, self.clock() - each.begun_s
                names = ", ".join(each.job.name.rpartition("::")[2] for each in running)
                self.console.show(f"{title}, {len(waiting)} waiting", names, topic=title)
        finally:
            self._end(*(each.process for each in running))
            for each in running:
                send_group(each.process.pid, signal.SIGKILL)
            self.console.clear()

    def _is_over(self, running: _Running, timeout_s: float) -> bool:
        """Whether it has ended; one that took too long is told to, and the others need not wait for it."""
        if running.ending is None and self.clock() - running.begun_s > timeout_s:
            running.ending = _Ending(running.process, self.clock)
        if running.ending is None:
            return running.process.poll() is not None
        running.ending.go_on()
        return running.ending.is_over

    def _start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            try:
                # A session of its own: Ctrl-C on the terminal reaches us alone, and the command once, from us.
                return subprocess.Popen(  # noqa: S603 - what the user named
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=dict(self.environ),
                    start_new_session=True,
                    pass_fds=self.held,
                )
            except OSError as error:
                raise ValueError(
                    f"{shlex.join(command[:3])} ... cannot be started: {error.strerror}. Try it by hand."
                ) from None

    def _refuse_interrupted(self) -> None:
        if self.signals.count:
            raise InterruptedPhaseError

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            return

    def _end(self, *processes: subprocess.Popen[bytes]) -> None:
        """All of them at once."""
        ways = [_Ending(process, self.clock) for process in processes]
        heard = self.signals.count
        while not all(each.is_over for each in ways):
            hurry, heard = self.signals.count != heard, self.signals.count
            for each in ways:
                each.go_on(hurry=hurry)
            self._wait(next((process for process in processes if process.poll() is None), processes[0]))


class _Tail:
    """Hands on what is written to a log, as it is written."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._shown_bytes = 0

    def echo(self) -> None:
        with self._log.open("rb") as stream:
            stream.seek(self._shown_bytes)
            fresh = stream.read()
        self._shown_bytes += len(fresh)
        sys.stdout.write(fresh.decode("utf-8", errors="replace"))
        sys.stdout.flush()
