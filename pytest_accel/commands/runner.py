"""Subprocesses of commands: output in a log, an orderly end on Ctrl-C and time limits."""

from __future__ import annotations

import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pytest_accel.distributed.processes import exit_words, signal_group, signals_noted, tail
from pytest_accel.report.markdown import STEP_SUMMARY
from pytest_accel.stats.quantities import printable

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


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


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
    command: Sequence[str]
    log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    signals: list[int]  # that were noted
    environ: Mapping[str, str] = field(default_factory=runner_environment)

    def run(self, job: Job, timeout_s: float = math.inf) -> tuple[int | None, float]:
        """Return exit status and seconds; the status is None after `timeout_s`, negative for the signal that killed it.

        Nothing of it is left running, neither then nor after InterruptedRunError.
        """
        if self.signals:
            raise InterruptedRunError
        begun_s = time.monotonic()
        process = self._start(job)
        try:
            while process.poll() is None and not self.signals and time.monotonic() - begun_s < timeout_s:
                _wait(process)
            was_ended = process.poll() is None
            if was_ended:
                self._stop(process, job)
        finally:
            signal_group(process.pid, signal.SIGKILL)  # its own subprocesses
        if self.signals:
            raise InterruptedRunError
        return None if was_ended else process.returncode, time.monotonic() - begun_s

    def run_all(
        self, jobs: Sequence[Job], *, timeout_s: float, at_once: int
    ) -> Generator[tuple[Job, int | None, float]]:
        """Yield jobs as they end, with what `run` returns."""
        with ThreadPoolExecutor(at_once) as pool:
            try:
                running = {pool.submit(self.run, job, timeout_s): job for job in jobs}
                for done in as_completed(running):
                    yield running[done], *done.result()
            except BaseException:
                if not self.signals:  # whatever ends us ends the others
                    self.signals.append(signal.SIGTERM)
                raise

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

    def _stop(self, process: subprocess.Popen[bytes], job: Job) -> None:
        """Send one signal after the other; a second Ctrl-C does not wait for what the last one does."""
        if self.signals:
            say(f"interrupted: waiting for {job.name} to end")
        for number, patience_s in _STOPS:
            heard, until_s = len(self.signals), time.monotonic() + patience_s
            signal_group(process.pid, number)
            while process.poll() is None and len(self.signals) == heard and time.monotonic() < until_s:
                _wait(process)


def _wait(process: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(_POLL_S)
