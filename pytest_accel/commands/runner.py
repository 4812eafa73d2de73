"""Subprocesses of commands: output in a log, progress on the console, an orderly end on Ctrl-C and time limits."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TextIO

from pytest_accel.distributed.processes import exit_words, signal_group, with_verb
from pytest_accel.report.github import STEP_SUMMARY
from pytest_accel.stats.quantities import printable, seconds

INTERRUPTED = 2  # pytest's exit status
_POLL_S = 0.1
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# pytest reports and writes what it has measured when it is interrupted; a process group may take its time to end.
_STOPS = (
    (signal.SIGINT, 60.0),
    (signal.SIGTERM, 5.0),  # srun only asks back on the first interrupt
    (signal.SIGKILL, 5.0),
)


class InterruptedRunError(Exception):
    """Ctrl-C or SIGTERM; the subprocess has ended."""


class Console:
    """Progress: one live line on a terminal; in a log, a line for each topic and one a minute."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._live = stream.isatty()
        self._topic = ""
        self._shown_s = clock()

    def show(self, topic: str, detail: str = "") -> None:
        line = f"{topic} | {detail}" if detail else topic
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\x1b[K{line[:width]}")
        elif topic != self._topic or self._clock() - self._shown_s >= 60:
            self._write(f"{line}\n")
            self._shown_s = self._clock()
        self._topic = topic

    def say(self, line: str) -> None:
        self.clear()
        self._write(f"{line}\n")

    def clear(self) -> None:
        if self._live:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def last_lines(log: Path, lines: int = 8) -> list[str]:
    """Return the end of a log without colours, empty lines and control characters."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 65536))
            text = stream.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    shown = [line for line in _ESCAPES.sub("", text).splitlines() if line.strip()]
    return [printable(line) for line in shown[-lines:]]


def describe_exit(status: int) -> str:
    """Return how a subprocess ended: "ended with status 3", "was killed by SIGSEGV"."""
    return with_verb(exit_words(status))


class Signals:
    """Ctrl-C, SIGTERM and a lost terminal, counted here and acted upon where there is a process to end."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1


@contextmanager
def signals_noted() -> Iterator[Signals]:
    """Count signals meanwhile; handlers, because subprocesses would inherit a mask."""
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


def runner_environment() -> dict[str, str]:
    """Return our environment without GitHub's step summary: the command writes one for the whole, or none."""
    return {name: value for name, value in os.environ.items() if name != STEP_SUMMARY}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One of several commands that run side by side."""

    name: str
    command: tuple[str, ...]
    log: Path


class _Stop:
    """A process that is being stopped: interrupt first, then SIGTERM, then SIGKILL."""

    def __init__(self, process: subprocess.Popen[bytes], clock: Callable[[], float]) -> None:
        self._process = process
        self._clock = clock
        self._stops = list(_STOPS)
        self._until_s = clock()

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None or (not self._stops and self._clock() >= self._until_s)

    def go_on(self, *, hurry: bool = False) -> None:
        """Send the next signal once the last one had its time; a second Ctrl-C does not wait for that."""
        if self._stops and not self.is_over and (hurry or self._clock() >= self._until_s):
            number, patience_s = self._stops.pop(0)
            signal_group(self._process.pid, number)
            self._until_s = self._clock() + patience_s


@dataclass(slots=True, kw_only=True)
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    begun_s: float
    stop: _Stop | None = None  # set where it took too long


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """Runs commands with progress."""

    signals: Signals
    console: Console
    held: tuple[int, ...] = ()  # descriptors that subprocesses inherit, so that their locks stay held
    environ: Mapping[str, str] = field(default_factory=runner_environment)
    clock: Callable[[], float] = time.monotonic

    def run(self, command: Sequence[str], log: Path, *, title: str, timeout_s: float | None = None) -> int:
        """Return the exit status, negative for the signal that killed it; InterruptedRunError when we ended it."""
        self._refuse_interrupted()
        begun_s = self.clock()
        self.console.show(title)
        process = self._start(command, log)
        try:
            while process.poll() is None:
                self._wait(process)
                lasted_s = self.clock() - begun_s
                self.console.show(title, " ".join([seconds(lasted_s), *last_lines(log, 1)]))
                if self.signals.count:
                    self.console.say(f"interrupted: waiting for {title.partition(':')[0]} to end")
                    raise InterruptedRunError
                if timeout_s is not None and lasted_s > timeout_s:
                    self.console.say(f"{title}: no answer within {seconds(timeout_s)}")
                    break
        finally:
            self._end(process)
            self.console.clear()
        return process.returncode

    def run_side_by_side(
        self, jobs: Sequence[Job], *, at_once: int, timeout_s: float, title: str
    ) -> Generator[tuple[Job, int | None, float]]:
        """Yield jobs as they end, with exit status and seconds; None for one stopped after `timeout_s`.

        Nothing is left running after InterruptedRunError or `close`.
        """
        waiting, running = deque(jobs), list[_Running]()
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    self._refuse_interrupted()
                    job = waiting.popleft()
                    process = self._start(job.command, job.log)
                    running.append(_Running(job=job, process=process, begun_s=self.clock()))
                self._wait(running[0].process)
                if self.signals.count:
                    self.console.say(f"interrupted: waiting for what is running to end ({len(running)})")
                    raise InterruptedRunError
                for each in [each for each in running if self._is_over(each, timeout_s)]:
                    running.remove(each)
                    signal_group(each.process.pid, signal.SIGKILL)  # its own subprocesses
                    status = None if each.stop else each.process.returncode
                    yield each.job, status, self.clock() - each.begun_s
                names = ", ".join(each.job.name.rpartition("::")[2] for each in running)
                self.console.show(title, f"{len(waiting)} waiting, {names}")
        finally:
            self._end(*(each.process for each in running))
            for each in running:
                signal_group(each.process.pid, signal.SIGKILL)
            self.console.clear()

    def _is_over(self, running: _Running, timeout_s: float) -> bool:
        if running.stop is None and self.clock() - running.begun_s > timeout_s:
            running.stop = _Stop(running.process, self.clock)
        if running.stop is None:
            return running.process.poll() is not None
        running.stop.go_on()
        return running.stop.is_over

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
            raise InterruptedRunError

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            return

    def _end(self, *processes: subprocess.Popen[bytes]) -> None:
        """Stop all of them at once."""
        stops = [_Stop(process, self.clock) for process in processes]
        heard = self.signals.count
        while not all(each.is_over for each in stops):
            hurry, heard = self.signals.count != heard, self.signals.count
            for each in stops:
                each.go_on(hurry=hurry)
            self._wait(next((process for process in processes if process.poll() is None), processes[0]))
