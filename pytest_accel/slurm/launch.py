"""The command `launch`: submits a run of pytest, waits for it with progress, and leaves as it left."""

from __future__ import annotations

import secrets
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pytest_accel.report.console import Console, last_line
from pytest_accel.slurm.job import (
    EXIT_TIME,
    Ending,
    Job,
    JobState,
    Phase,
    Slurm,
    UnansweredError,
    ending,
)
from pytest_accel.slurm.script import LOG, SCRIPT, STATUS, Request, results, sbatch_environment, script
from pytest_accel.stats.quantities import seconds

_SILENCE_S = 600.0  # a controller that is restarted answers again within minutes
_GRACE_S = 60.0  # a network file system may show a new file this late (NFS: acdirmax)
_CANCELLING_S = 30.0
_SILENT = JobState(state="")  # no answer this time: as if it ran on


def launch(
    request: Request, environ: Mapping[str, str], *, timeout_s: float | None, grace_s: float = _GRACE_S
) -> int:
    """Submit, wait, show; the run's exit status, or one of ours with a line that says why."""
    path = prepare(request)
    slurm = Slurm(environ=sbatch_environment(environ, request), directory=request.directory)
    console = Console(sys.stderr)
    with signals_held() as signals:
        job, remark = slurm.submit(path, lambda: signals.received is not None)
        if remark:
            console.say(remark)
        if job is None:
            console.say(
                f"interrupted while submitting; should there be a job, end it: scancel --name={request.name}"
            )
            return 128 + (signals.received or signal.SIGINT)
        console.say(f"job {job.number} submitted: {path}")
        watch = SamplingThread(
            slurm=slurm, job=job, folder=request.folder, signals=signals, console=console, grace_s=grace_s
        )
        try:
            how = watch.until_ended(timeout_s)
        finally:
            console.clear()
    _show_log(request.folder / LOG)
    for what, place in results(request).items():
        if place.is_file() and place.stat().st_size:
            console.say(f"{what:<6}{place}")
    console.say(f"log   {request.folder / LOG}")
    console.say(how.line or f"job {job.number} ended with exit status {how.status}")
    return how.status


def new_folder() -> Path:
    """Sortable by time, unique among those who launch at once."""
    return Path("accel-slurm") / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def prepare(request: Request) -> Path:
    """The run folder with its script."""
    text = script(request)
    path = request.folder / SCRIPT
    try:
        request.folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
    except FileExistsError:
        raise ValueError(f"{request.folder} holds an earlier run: name another --output-dir.") from None
    except OSError as error:
        raise ValueError(f"the run folder {request.folder} cannot be written: {error.strerror}.") from None
    return path


class Signals:
    """Ctrl-C and SIGTERM, taken when there is time for them: a job must not be lost between two lines."""

    def __init__(self) -> None:
        self.kinds = (signal.SIGINT, signal.SIGTERM)
        self._received: int | None = None

    @property
    def received(self) -> int | None:
        self.wait(0)
        return self._received

    def wait(self, timeout_s: float) -> bool:
        """Whether one came within this time."""
        found = signal.sigtimedwait(self.kinds, timeout_s)
        if found is not None:
            self._received = found.si_signo
        return found is not None


@contextmanager
def signals_held() -> Iterator[Signals]:
    """Within, signals wait until they are asked for; Slurm's commands are not interrupted either."""
    signals = Signals()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals.kinds)
    try:
        yield signals
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(slots=True, kw_only=True)
class SamplingThread:
    """Follows one job to its end."""

    slurm: Slurm
    job: Job
    folder: Path
    signals: Signals
    console: Console
    grace_s: float
    answered: float = field(default_factory=time.monotonic)

    def until_ended(self, timeout_s: float | None) -> Ending:
        began = time.monotonic()
        nearly: float | None = None  # since when either Slurm or the script says that it is over
        while True:
            state, status = self._look(), self._status()
            over = state is None or state.phase is Phase.ENDED
            if status == 0 or (over and (status is not None or not _may_come_late(state))):
                return self._ending(state, status)
            if over or status is not None:
                nearly = nearly or time.monotonic()
                self.console.show(f"job {self.job.number} is ending")
                if time.monotonic() - nearly > self.grace_s:
                    return self._ending(state, status)
            elif state is not None:
                self._show(state)
            if time.monotonic() - self.answered > _SILENCE_S:
                return self._given_up()
            if self.signals.received or self.signals.wait(_interval_s(time.monotonic() - began)):
                return self._cancelled("interrupted", 128 + (self.signals.received or signal.SIGINT))
            if timeout_s is not None and time.monotonic() - began > timeout_s:
                seen = f" ({state.words()})" if state else ""
                return self._cancelled(f"not ended after {seconds(timeout_s)}{seen}", EXIT_TIME)

    def _look(self) -> JobState | None:
        """Slurm's word; the silence of a busy controller is no word, and is borne for some minutes."""
        try:
            state = self.slurm.look(self.job)
        except UnansweredError as error:
            self.console.show("Slurm does not answer", str(error).splitlines()[-1])
            return _SILENT
        self.answered = time.monotonic()
        return state

    def _status(self) -> int | None:
        """What the script wrote at its end."""
        try:
            return int((self.folder / STATUS).read_text())
        except (OSError, ValueError):
            return None

    def _ending(self, state: JobState | None, status: int | None) -> Ending:
        known = state.state if state is not None and state.phase is Phase.ENDED else ""
        return ending(self.job, known, status, self.folder)

    def _given_up(self) -> Ending:
        number = self.job.number
        return Ending(
            status=EXIT_TIME,
            line=f"Slurm has not answered for {seconds(_SILENCE_S)}; job {number} may still run: "
            f"squeue --jobs={number}, scancel {number}",
        )

    def _cancelled(self, why: str, status: int) -> Ending:
        """Cancel, and see it end, so that what it still wrote can be shown; a second Ctrl-C is not kept waiting."""
        number = self.job.number
        self.console.say(f"{why}: cancelling job {number}")
        if problem := self.slurm.cancel(self.job):
            return Ending(
                status=status, line=f"job {number} could not be cancelled ({problem}): scancel {number}"
            )
        until = time.monotonic() + _CANCELLING_S
        while time.monotonic() < until:
            state = self._look()
            if state is None or state.phase is Phase.ENDED:
                return Ending(status=status, line=f"job {number} was cancelled: {why}")
            if self.signals.wait(0.5):
                break
        return Ending(
            status=status,
            line=f"job {number} was told to end ({why}) and has not yet: squeue --jobs={number}",
        )

    def _show(self, state: JobState) -> None:
        if state is _SILENT:
            return
        detail = last_line(self.folder / LOG) if state.phase is Phase.RUNNING else ""
        self.console.show(
            f"job {self.job.number} {state.words()}", detail, topic=f"{state.state}{state.reason}"
        )


def _may_come_late(state: JobState | None) -> bool:
    """Whether the script came to its end, so that its status is only not to be seen yet."""
    return state is None or state.state in ("COMPLETED", "FAILED")


def _show_log(log: Path) -> None:
    """The run's own words, on the standard output; ours are on the other one."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return
    sys.stdout.write(text)
    sys.stdout.flush()


def _interval_s(waited_s: float) -> float:
    """Every second in the first minute, then more and more seldom: a controller has many to answer."""
    return min(5.0, max(1.0, waited_s / 60))
