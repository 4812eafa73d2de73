"""`pytest-accel compile`: fill torch's compile caches, many benchmarks side by side, before anything is measured."""

from __future__ import annotations

import argparse
import getpass
import os
import re
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_accel.commands.registry import argument, command, count, duration
from pytest_accel.stats.quantities import counted, seconds

if TYPE_CHECKING:
    from pytest_accel.commands.runner import Job, Runner

_MAX_JOBS = 8  # unless more are asked for: each takes gigabytes of the host and of the device
_CORES_PER_JOB = 2
_THREADS, _CACHE, _ADDOPTS = "TORCHINDUCTOR_COMPILE_THREADS", "TORCHINDUCTOR_CACHE_DIR", "PYTEST_ADDOPTS"
_TUNED = "*/*.best_config"  # the variant of a kernel that torch's autotuner chose
_SHOWN_LINES = 8
_OUTCOMES = {
    "compiled": "compiled",
    "found": "compiled before",
    "passed": "built, nothing to compile",
    "skipped": "skipped",
    "unfit": "does not fit on the device",
    "no room": "no room beside the others",
    "failed": "failed",
}


@command(
    argument(
        "--jobs",
        type=count,
        metavar="N",
        help=f"benchmarks side by side (half of the cores, at most {_MAX_JOBS})",
    ),
    argument(
        "--timeout",
        type=duration,
        default=1800.0,
        metavar="TIME",
        help="the longest that one benchmark may take, such as 90s or 30min (30min)",
    ),
    name="compile",
    runs_pytest=True,
)
def compile_(args: argparse.Namespace) -> int:
    """Build benchmarks side by side and run one step of each, so that they are compiled later; 1 where one fails."""
    from pytest_accel.commands.runner import (
        INTERRUPTED,
        Console,
        InterruptedRunError,
        Runner,
        runner_environment,
        signals_noted,
    )

    if {"--co", "--collect-only"} & {*args.for_pytest}:
        raise ValueError("--collect-only after -- would build nothing. Leave it out.")
    cores = len(os.sched_getaffinity(0))
    jobs = args.jobs or max(1, min(_MAX_JOBS, cores // _CORES_PER_JOB))
    # torch would start a compiling process for every core in every job.
    environ = {_THREADS: str(max(1, cores // jobs)), **runner_environment()}
    with tempfile.TemporaryDirectory(prefix="accel-compile-") as folder, signals_noted() as signals:
        runner = Runner(signals=signals, console=Console(sys.stderr), environ=environ)
        work = _Compilation(folder=Path(folder), runner=runner, jobs=jobs, timeout_s=args.timeout)
        try:
            return work.run(args.for_pytest)
        except InterruptedRunError:
            total = counted(work.total, "benchmark")
            runner.console.say(f"interrupted after {work.done} of {total}. What was compiled stays.")
            return INTERRUPTED


@dataclass(slots=True, kw_only=True)
class _Compilation:
    """List the benchmarks and compile them side by side; what found no memory is tried again alone."""

    folder: Path
    runner: Runner
    jobs: int
    timeout_s: float
    begun_at: float = field(default_factory=time.time)
    outcomes: dict[str, str] = field(default_factory=dict)  # by node id
    total: int = 0

    @property
    def done(self) -> int:
        return sum(outcome != "no room" for outcome in self.outcomes.values())

    @property
    def cache(self) -> Path:
        """torch's cache folder, without the seconds that importing torch takes."""
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
        return Path(self.runner.environ.get(_CACHE) or Path(tempfile.gettempdir(), f"torchinductor_{user}"))

    def run(self, for_pytest: Sequence[str]) -> int:
        from pytest_accel.commands.runner import InterruptedRunError

        begun_s = self.runner.clock()
        alone, others, arguments = self._list(for_pytest)
        self.total = len(alone) + len(others)
        if self.jobs > 1:
            self._compile(others, arguments, at_once=self.jobs)
            others = [name for name in others if self.outcomes[name] == "no room"]
        self._compile([*others, *alone], arguments, at_once=1)
        if self.runner.signals.count:
            raise InterruptedRunError
        self._summarize(self.runner.clock() - begun_s)
        return 1 if "failed" in self.outcomes.values() else 0

    def _list(self, for_pytest: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
        """Return distributed benchmarks, the others, and pytest's arguments for one of them."""
        from pytest_accel.commands.worker import list_arguments, read_answer
        from pytest_accel.distributed.worker import rank_arguments

        log = self.folder / "list.log"
        # Without options that write files: a list is no result.
        added = rank_arguments(shlex.split(self.runner.environ.get(_ADDOPTS, "")))
        runner = replace(self.runner, environ={**self.runner.environ, _ADDOPTS: shlex.join(added)})
        words = ["-m", "pytest", *list_arguments(log.with_suffix(".json")), *rank_arguments(for_pytest)]
        status = runner.run([sys.executable, *words], log, title="collecting", timeout_s=self.timeout_s)
        answer = read_answer(log.with_suffix(".json"))
        listed = answer.get("benchmarks", [])
        if status not in (0, 5) or not listed:
            sys.stderr.write(log.read_text(encoding="utf-8", errors="replace"))
            raise ValueError(
                "no benchmark was found that this machine can run. Name what to compile after --: bench_suites -m h200."
                if status in (0, 5)
                else "pytest could not collect; see above."
            )
        distributed = [each["node_id"] for each in listed if each["distributed"]]
        others = [each["node_id"] for each in listed if not each["distributed"]]
        return distributed, others, answer["arguments"]

    def _compile(self, node_ids: Sequence[str], arguments: Sequence[str], *, at_once: int) -> None:
        from pytest_accel.commands.runner import Job
        from pytest_accel.commands.worker import step_arguments

        title = f"compiling, {at_once} side by side" if at_once > 1 else "compiling, one after the other"
        # What is in the variable is among the arguments.
        environ = {name: value for name, value in self.runner.environ.items() if name != _ADDOPTS}
        jobs = []
        for number, node_id in enumerate(node_ids):
            log = self.folder / f"{at_once}-{number}.log"
            words = ["-m", "pytest", *step_arguments(node_id, log.with_suffix(".json")), *arguments]
            jobs.append(Job(name=node_id, command=(sys.executable, *words), log=log))
        runner = replace(self.runner, environ=environ)
        running = runner.run_all(jobs, at_once=at_once, timeout_s=self.timeout_s, title=title)
        try:
            with closing(running):
                for job, status, took_s in running:
                    self._take(job, status, took_s, alone=at_once == 1)
                    self._forget_tuning()  # not only at the end, which a time limit may cut off
        finally:
            self._forget_tuning()

    def _take(self, job: Job, status: int | None, took_s: float, *, alone: bool) -> None:
        from pytest_accel.commands.runner import describe_exit, last_lines
        from pytest_accel.commands.worker import read_answer

        answer = {} if status is None else read_answer(job.log.with_suffix(".json"))
        if status is None:
            outcome, text = (
                "failed",
                f"it took longer than {seconds(self.timeout_s)} and was ended (--timeout)",
            )
        elif "end" in answer:
            outcome, text = answer["end"]["outcome"], answer["end"]["text"]
        else:  # killed, as where the host's memory ran out, or broken off
            outcome = "no room" if status < 0 else "failed"
            text = "\n".join([f"it {describe_exit(status)}", *last_lines(job.log, _SHOWN_LINES - 1)])
        if outcome == "passed":
            outcome = "compiled" if answer["compiled"] else "found" if answer["found"] else "passed"
        elif outcome in ("no room", "unfit"):
            outcome = "no room" if not alone else "failed" if outcome == "no room" else outcome
        self.outcomes[job.name] = outcome
        say = self.runner.console.say
        say(f"[{self.done}/{self.total}] {job.name}: {_OUTCOMES[outcome]}, {seconds(took_s)}")
        if outcome == "failed":
            for line in text.strip().splitlines()[:_SHOWN_LINES]:
                say(f"    {line}")

    def _forget_tuning(self) -> None:
        """Remove what torch's autotuner chose: it timed kernels beside other processes. The session tunes again."""
        if self.jobs == 1:
            return
        for chosen in self.cache.glob(_TUNED):
            with suppress(OSError):  # another command cleans up, too
                if chosen.stat().st_mtime >= self.begun_at:
                    chosen.unlink()

    def _summarize(self, took_s: float) -> None:
        counts = Counter(self.outcomes.values())
        parts = [f"{counts[outcome]} {words}" for outcome, words in _OUTCOMES.items() if counts[outcome]]
        say = self.runner.console.say
        say(f"{counted(self.total, 'benchmark')}: {', '.join(parts)}; {seconds(took_s)}")
        if counts["compiled"] or counts["found"]:
            hint = "" if self.runner.environ.get(_CACHE) else f"; {_CACHE} names a folder that outlives a job"
            say(f"kept in {self.cache}{hint}")
        if failed := next((name for name, outcome in self.outcomes.items() if outcome == "failed"), None):
            say(f"by hand: pytest {shlex.quote(failed)} --benchmark-disable")
