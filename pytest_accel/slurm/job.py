"""A job of Slurm's: submitted, looked at, cancelled; what Slurm answers, as values."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pytest_accel.slurm.script import LOG

_ANSWER_S = 60.0  # squeue and scancel themselves give up on a silent controller sooner, as configured
_LAST_WORDS_S = 10.0  # for sbatch to say its job's number, after an interrupt


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A submitted job."""

    number: str
    cluster: str = ""  # where sbatch chose among several

    @property
    def selector(self) -> list[str]:
        """Names this job to squeue."""
        return [f"--jobs={self.number}", *([f"--clusters={self.cluster}"] if self.cluster else [])]

    @property
    def cancel(self) -> list[str]:
        return ["scancel", *([f"--clusters={self.cluster}"] if self.cluster else []), self.number]


def parse_submission(text: str) -> Job:
    """The answer of `sbatch --parsable`; a site's own words may stand before it."""
    for line in reversed(text.splitlines()):
        if found := re.fullmatch(r"(\d+)(?:;([\w.-]+))?", line.strip(), re.ASCII):
            return Job(number=found[1], cluster=found[2] or "")
    raise ValueError(f"sbatch gave no job number but {text.strip()!r}.")


def refusal(text: str) -> str:
    """What sbatch said, as one line."""
    lines = [re.sub(r"^sbatch: (error: |fatal: )?", "", line.strip()) for line in text.splitlines()]
    return "; ".join(line for line in lines if line) or "it did not say why"


SQUEUE_FORMAT = "%T|%M|%S|%r"


class Phase(Enum):
    """How far a job is."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """One look at a job."""

    state: str  # in Slurm's words
    elapsed: str = ""
    start: str = ""  # while pending: when Slurm expects it to start
    reason: str = ""

    @property
    def phase(self) -> Phase:
        if self.state in (
            "PENDING",
            "CONFIGURING",
            "REQUEUED",
            "REQUEUE_HOLD",
            "SPECIAL_EXIT",
            "RESV_DEL_HOLD",
        ):
            return Phase.PENDING
        alive = ("", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
        return Phase.RUNNING if self.state in alive else Phase.ENDED

    def words(self) -> str:
        """For a line of progress."""
        if self.phase is not Phase.PENDING:
            return f"{self.state.lower()}, {self.elapsed}" if self.elapsed else self.state.lower()
        why = f" ({self.reason})" if self.reason and self.reason != "None" else ""
        when = f", expected to start {self.start}" if re.match(r"\d", self.start) else ""
        return f"{self.state.lower()}{why}{when}"


def parse_squeue(text: str) -> JobState | None:
    """The line of one job; None if squeue knows it no more."""
    for line in text.splitlines():
        parts = line.strip().split("|", 3)
        if len(parts) == 4:
            state, elapsed, start, reason = parts
            return JobState(state=state, elapsed=elapsed, start=start, reason=reason)
    return None


# --- how it ended -----------------------------------------------------------------------------------------

# As `timeout` has them: 124 for time, 125 for what never came to an end of its own.
EXIT_TIME, EXIT_LOST = 124, 125


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The exit status of launch, and the line that says why, where it is not simply the run's own."""

    status: int
    line: str = ""


def ending(job: Job, state: str, status: int | None, folder: Path) -> Ending:
    """From Slurm's last word on a job (empty if it has forgotten) and the status that the script left."""
    title = f"job {job.number}"
    log = folder / LOG
    match state:
        case "TIMEOUT" | "DEADLINE":
            return Ending(
                status=EXIT_TIME, line=f"{title} reached its time limit: give more with --time. Log: {log}"
            )
        case "CANCELLED" | "PREEMPTED" | "REVOKED":
            return Ending(
                status=EXIT_LOST, line=f"{title} was {state.lower()} before the run ended. Log: {log}"
            )
        case "NODE_FAIL" | "BOOT_FAIL":
            return Ending(status=EXIT_LOST, line=f"{title} lost a node ({state}): launch again. Log: {log}")
    if status is not None:
        note = f"{title} ran out of memory on the way" if state == "OUT_OF_MEMORY" else ""
        return Ending(status=status, line=note)
    if state == "OUT_OF_MEMORY":
        return Ending(
            status=EXIT_LOST,
            line=f"{title} ran out of memory: --sbatch=--mem=0 gives a node's all. Log: {log}",
        )
    ended = f"ended ({state})" if state else "ended, and Slurm has forgotten how,"
    return Ending(
        status=EXIT_LOST,
        line=f"{title} {ended} and left no status in {folder}. Can compute nodes write there? "
        "Launch from a directory that they share with this machine, or name one with --output-dir.",
    )


# --- asking Slurm -----------------------------------------------------------------------------------------


class UnansweredError(RuntimeError):
    """Slurm did not answer this time; it may the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """Slurm's commands, called in one environment and directory."""

    environ: Mapping[str, str]
    directory: Path

    def submit(self, script: Path, interrupted: Callable[[], bool]) -> tuple[Job | None, str]:
        """The job and what sbatch had to say beside; no job if an interrupt came before its number."""
        program = shutil.which("sbatch", path=self.environ.get("PATH"))
        if program is None:
            raise ValueError(
                "sbatch is not on PATH. Launch where Slurm's commands are, on a login node say; "
                "--dry-run prints the script anywhere."
            )
        process = subprocess.Popen(  # noqa: S603 -- a list, no shell
            [program, "--parsable", str(script)],
            env=self.environ,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        patience_s = _LAST_WORDS_S
        while True:
            try:
                out, err = process.communicate(timeout=0.1)
                break
            except subprocess.TimeoutExpired:
                patience_s -= 0.1 if interrupted() else 0
                if patience_s <= 0:
                    process.kill()
        if process.returncode and interrupted():
            return None, err
        if process.returncode:
            raise ValueError(f"sbatch refused the job: {refusal(err)}. The script: {script}")
        return parse_submission(out), err.strip()

    def look(self, job: Job) -> JobState | None:
        """The job's state; None if Slurm has forgotten it."""
        done = self._ask("squeue", "--noheader", "--states=all", f"--format={SQUEUE_FORMAT}", *job.selector)
        if done.returncode == 0:
            return parse_squeue(done.stdout)
        if "Invalid job id" in done.stderr:
            return None
        raise UnansweredError(done.stderr.strip() or f"squeue ended with status {done.returncode}")

    def cancel(self, job: Job) -> str:
        """Why it could not be; empty if it could."""
        try:
            done = self._ask(*job.cancel)
        except UnansweredError as error:
            return str(error)
        return (done.stderr.strip() or f"status {done.returncode}") if done.returncode else ""

    def _ask(self, *command: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(  # noqa: S603 -- a list, no shell
                command,
                env=self.environ,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=_ANSWER_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnansweredError(str(error)) from None
