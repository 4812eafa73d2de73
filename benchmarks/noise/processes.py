"""One fresh pytest process of one benchmark: how it is started, what it says while it waits, what it measured."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.noise.streams import Head, Plan, StreamRun, significant
from pytest_accel.commands.runner import runner_environment
from pytest_accel.distributed.processes import descendants
from pytest_accel.stats.environment import safe_arguments
from pytest_accel.stats.results import Ending, Result, SessionResults
from pytest_accel.stats.verdict import Outcome
from pytest_accel.storage.results import read_results

if TYPE_CHECKING:
    from collections.abc import Sequence

STOPPING_S = 20.0  # for a process that was told to end: pytest tears down what it built
WAITING = ": waiting for "  # of the line in which the plugin says that another session holds the device
KEPT_METRICS = (
    *("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_mean_w"),
    *("throttled_share", "power_capped_share", "slowdown_felt"),
)
_WORDS = 160  # characters of a note
_LAST_LINES = 15


class GatherError(RuntimeError):
    """A process that gave nothing, or something else than was asked for; the text says what to do."""


@dataclass(slots=True, kw_only=True)
class Child:
    """A pytest process of ours."""

    slowdown: float
    folder: Path  # its own: what it prints, what it measured
    process: subprocess.Popen[bytes]

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def is_waiting(self) -> bool:
        """For its device: all is built, and nothing measured."""
        return WAITING in self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def stop(self) -> None:
        if not self.has_ended:
            self.process.terminate()
            try:
                self.process.wait(STOPPING_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def results(self) -> SessionResults:
        try:
            return read_results(self.folder / "results.json")
        except ValueError as error:
            said = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
            raise GatherError(
                f"pytest ended with {self.process.returncode} and left no results ({error}). It said last:\n"
                + "\n".join(said)
            ) from None


def start(
    arguments: Sequence[str],
    slowdown: float,
    folder: Path,
    *,
    wait_s: float | None = None,
    python: str = sys.executable,
) -> Child:
    """Judged against nothing (an empty folder of baselines), kept nowhere else: only its rounds are wanted.

    One that is to wait for others gets the time for that (`wait_s`); what `arguments` say of it comes later and wins.
    """
    folder.mkdir(parents=True)
    command = [
        *(python, "-m", "pytest"),
        *([f"--accel-timeout={wait_s:g}"] if wait_s else []),
        *(*arguments, "-p", "no:cacheprovider"),
        f"--accel-baselines={folder / 'no-baselines'}",
        *("--accel-history=off", "--accel-repeats=1", f"--accel-json={folder / 'results.json'}"),
        *([f"--accel-slowdown={slowdown:g}"] if slowdown else []),
    ]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - the command that the user gave us
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=runner_environment(),
        )
    return Child(slowdown=slowdown, folder=folder, process=process)


def cpu_s(children: Sequence[Child]) -> float:
    """CPU time that these processes have used so far, and whatever they started and still have: loaders, compilers."""
    pids = {pid for child in children for pid in (child.process.pid, *descendants(child.process.pid))}
    return sum(map(_ticks, pids)) / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> int:
    """proc(5): utime and stime, counted after the name, which may hold anything."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(told[11]) + int(told[12])
    except (OSError, ValueError, IndexError):  # gone meanwhile
        return 0


# --- what it measured -------------------------------------------------------------------------------


def the_result(session: SessionResults) -> Result:
    """The one benchmark that was measured, or tried to be."""
    ran = [
        each
        for each in session.results
        if each.status not in (Ending.SKIPPED, Outcome.VANISHED, Ending.NOT_MEASURED)
    ]
    if len(ran) != 1:
        names = ", ".join(f"{each.benchmark} ({each.status.value})" for each in session.results) or "none"
        raise GatherError(
            f"{len(ran)} benchmarks ran, and a stream is of one. These were selected: {names}. Name one by its node id, "
            "with its platform (-m h200) where it has several."
        )
    (result,) = ran
    if not result.runs and result.status is not Outcome.INVALID:
        raise GatherError(f"{result.benchmark} was not measured ({result.status.value}): {result.text}")
    return result


def run_of(
    session: SessionResults, result: Result, *, place: int, slowdown: float, took_s: float
) -> StreamRun:
    """What is kept of it. A run that was replaced by the session, because it was disturbed, stands in the notes."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    problems = tuple(
        _clipped(f"{each['subject']}: {each['text']}") for each in session.findings if _matters(each)
    )
    if not result.runs:
        return StreamRun(
            place=place,
            at=at,
            took_s=round(took_s, 1),
            slowdown=slowdown,
            invalid=_clipped(result.text) or "disturbed",
            problems=problems,
        )
    run = result.runs[-1]
    metrics = {name: run.metrics[name] for name in KEPT_METRICS if name in run.metrics}
    times = {"first_step_s": run.first_step_s, "warmup_s": run.warmup_s}
    metrics |= {name: value for name, value in times.items() if value is not None}
    return StreamRun(
        place=place,
        at=at,
        took_s=round(took_s, 1),
        slowdown=slowdown,
        steps_per_round=run.steps_per_round,
        rounds_s=tuple(map(significant, run.rounds_s)),
        steady=result.steady,
        notes=tuple(map(_clipped, result.details)),
        problems=problems,
        metrics={name: significant(value) for name, value in metrics.items()},
    )


def head_of(
    session: SessionResults,
    result: Result,
    *,
    name: str,
    arguments: Sequence[str],
    plan: Plan,
    ahead: int,
    trial: bool,
) -> Head:
    environment = session.environments[result.environment]
    return Head(
        name=name,
        benchmark=result.benchmark,
        platform=result.platform,
        device=result.disk_name,
        unit=result.unit,
        work_per_step=result.work_per_step,
        configuration=dict(result.configuration),
        identity=dict(environment.identity),
        context=dict(environment.context),
        version=session.version,
        revision=session.revision,
        command=tuple(safe_arguments(list(arguments))),
        plan=plan,
        ahead=ahead,
        trial=trial,
    )


def _matters(finding: object) -> bool:
    return isinstance(finding, dict) and finding.get("level") == "problem"


def _clipped(text: str) -> str:
    return text if len(text) <= _WORDS else text[: _WORDS - 1] + "…"
