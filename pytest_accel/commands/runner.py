"""Subprocesses of commands: output in a log, progress on the console, an orderly end on Ctrl-C and time limits."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from pytest_accel.distributed.processes import exit_words, signal_group, signals_noted, tail
from pytest_accel.report.markdown import STEP_SUMMARY
from pytest_accel.stats.quantities import printable, seconds

INTERRUPTED = 2  # pytest's exit status
_POLL_S = 0.1
_TAIL_LINES = 1000  # of a log, before empty ones are left out
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
    shown = [line for line in _ESCAPES.sub("", tail(log, _TAIL_LINES)).splitlines() if line.strip()]
    return [printable(line) for line in shown[-lines:]]


def describe_exit(status: int | None) -> str:
    """Return how a subprocess ended: "ended with status 3", "was killed by SIGSEGV"; None where it took too long."""
    return "took too long and was ended" if status is None else exit_words(status)


def stops_noted() -> AbstractContextManager[list[int]]:
    """Note Ctrl-C, SIGTERM and a lost terminal, to act on them where there is a process to end."""
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return signals_noted(signal.SIGINT, signal.SIGTERM, *(() if nohup else (signal.SIGHUP,)))


def runner_environment() -> dict[str, str]:
    """Return our environment without GitHub's step summary: the command writes one for the whole, or none."""
    return {name: value for name, value in os.environ.items() if name != STEP_SUMMARY}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    name: str
    command: tuple[str, ...]
    log: Path


@dataclass(slots=True, kw_only=True)
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    begun_s: float
    stops: deque[tuple[signal.Signals, float]] = field(default_factory=lambda: deque(_STOPS))
    patience_s: float = 0.0  # until when the last signal has time
    is_late: bool = False

    def is_over(self, now_s: float) -> bool:
        return self.process.poll() is not None or (not self.stops and now_s >= self.patience_s)

    def stop(self, now_s: float, *, hurry: bool = False) -> None:
        """Send the next signal once the last one had its time; a second Ctrl-C does not wait for that."""
        if self.stops and not self.is_over(now_s) and (hurry or now_s >= self.patience_s):
            number, patience_s = self.stops.popleft()
            signal_group(self.process.pid, number)
            self.patience_s = now_s + patience_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    signals: Sequence[int]  # that were noted
    console: Console
    environ: Mapping[str, str] = field(default_factory=runner_environment)

    def run(
        self, command: Sequence[str], log: Path, *, title: str, timeout_s: float = math.inf
    ) -> int | None:
        """Return the exit status of one command, as `run_all` does."""
        job = Job(name=title, command=tuple(command), log=log)
        ((_, status, _),) = self.run_all([job], title=title, timeout_s=timeout_s)
        return status

    def run_all(
        self, jobs: Sequence[Job], *, title: str, timeout_s: float, at_once: int = 1
    ) -> Generator[tuple[Job, int | None, float]]:
        """Yield jobs as they end, with exit status and seconds; None for one ended after `timeout_s`.

        The status is negative for the signal that killed it. Nothing is left running after InterruptedRunError or `close`.
        """
        waiting, running = deque(jobs), list[_Running]()
        try:
            while waiting or running:
                if self.signals:
                    self.console.say(f"interrupted: waiting for what is running to end ({len(running)})")
                    raise InterruptedRunError
                while waiting and len(running) < at_once:
                    job = waiting.popleft()
                    running.append(_Running(job=job, process=self._start(job), begun_s=time.monotonic()))
                self.console.show(title, _detail(running, len(waiting), time.monotonic()))
                with suppress(subprocess.TimeoutExpired):
                    running[0].process.wait(_POLL_S)
                for each in list(running):
                    each.is_late = each.is_late or time.monotonic() - each.begun_s > timeout_s
                    if each.is_late:
                        each.stop(time.monotonic())
                    if each.is_over(time.monotonic()):
                        running.remove(each)
                        signal_group(each.process.pid, signal.SIGKILL)  # its own subprocesses
                        status = None if each.is_late else each.process.returncode
                        yield each.job, status, time.monotonic() - each.begun_s
        finally:
            self._end(running)
            self.console.clear()

    def _start(self, job: Job) -> subprocess.Popen[bytes]:
        with job.log.open("wb") as output:
            try:
                # A session of its own: Ctrl-C on the terminal reaches us alone, and the command once, from us.
                return subprocess.Popen(  # noqa: S603 - what the user named
                    list(job.command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=dict(self.environ),
                    start_new_session=True,
                )
            except OSError as error:
                raise ValueError(
                    f"{shlex.join(job.command[:3])} ... cannot be started: {error.strerror}. Try it by hand."
                ) from None

    def _end(self, running: Sequence[_Running]) -> None:
        """Stop all of them at once."""
        heard = len(self.signals)
        while left := [each for each in running if not each.is_over(time.monotonic())]:
            hurry, heard = len(self.signals) != heard, len(self.signals)
            for each in left:
                each.stop(time.monotonic(), hurry=hurry)
            with suppress(subprocess.TimeoutExpired):
                left[0].process.wait(_POLL_S)
        for each in running:
            signal_group(each.process.pid, signal.SIGKILL)


def _detail(running: Sequence[_Running], waiting: int, now_s: float) -> str:
    if now_s - running[0].begun_s < 1:
        return ""
    if len(running) == 1:
        return " ".join([seconds(now_s - running[0].begun_s), *last_lines(running[0].job.log, 1)])
    names = ", ".join(each.job.name.rpartition("::")[2] for each in running)
    return f"{waiting} waiting, {names}"
