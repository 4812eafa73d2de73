"""`pytest-accel compile`: fill torch's compile caches, many benchmarks side by side, before anything is measured."""

from __future__ import annotations

import argparse
import getpass
import itertools
import os
import re
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_accel.commands.registry import argument, command, count, duration
from pytest_accel.stats.quantities import counted, seconds

if TYPE_CHECKING:
    from pytest_accel.commands.runner import Job, Runner

_MAX_JOBS = 8  # unless more are asked for: each takes gigabytes of the host and of the device
_CORES_PER_JOB = 2
_FEWER = 3  # times fewer side by side, where several ran out of memory
_THREADS, _CACHE, _ADDOPTS = "TORCHINDUCTOR_COMPILE_THREADS", "TORCHINDUCTOR_CACHE_DIR", "PYTEST_ADDOPTS"
_TUNED = "*/*.best_config"  # the variant of a kernel that torch's autotuner chose
_SHOWN_LINES = 8
_OUTCOMES = {
    "compiled": "compiled",
    "found": "compiled before",
    "unkept": "compiled, and torch cannot keep it",
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
    """List the benchmarks and compile them; what found no memory is tried again beside fewer, then alone."""

    folder: Path
    runner: Runner
    jobs: int
    timeout_s: float
    begun_at: float = field(default_factory=time.time)
    outcomes: dict[str, str] = field(default_factory=dict)  # by node id
    numbers: Iterator[int] = field(default_factory=itertools.count)  # of logs
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
        try:
            for at_once in (self.jobs, self.jobs // _FEWER):
                if min(at_once, len(others)) > 1:
                    self._compile(others, arguments, at_once=at_once)
                    others = [name for name in others if self.outcomes[name] == "no room"]
            self._compile([*others, *alone], arguments, at_once=1)
        finally:
            self._forget_tuning()
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
        if not node_ids:
            return
        title = f"compiling, {at_once} side by side" if at_once > 1 else "compiling, one after the other"
        # What is in the variable is among the arguments.
        environ = {name: value for name, value in self.runner.environ.items() if name != _ADDOPTS}
        runner = replace(self.runner, environ=environ)
        jobs = runner.run_side_by_side(
            list(self._jobs(node_ids, arguments)), at_once=at_once, timeout_s=self.timeout_s, title=title
        )
        with closing(jobs):
            for job, status, took_s in jobs:
                self._take(job, status, took_s, alone=at_once == 1)
                self._forget_tuning()  # not only at the end, which a time limit may cut off

    def _jobs(self, node_ids: Sequence[str], arguments: Sequence[str]) -> Iterator[Job]:
        from pytest_accel.commands.runner import Job
        from pytest_accel.commands.worker import step_arguments

        for node_id in node_ids:
            log = self.folder / f"{next(self.numbers)}.log"
            words = ["-m", "pytest", *step_arguments(node_id, log.with_suffix(".json")), *arguments]
            yield Job(name=node_id, command=(sys.executable, *words), log=log)

    def _take(self, job: Job, status: int | None, took_s: float, *, alone: bool) -> None:
        from pytest_accel.commands.worker import read_answer

        answer = {} if status is None else read_answer(job.log.with_suffix(".json"))
        outcome, text = self._outcome(job, status, answer)
        if outcome == "no room" and alone:
            outcome = "failed"
        elif outcome == "unfit" and not alone:
            outcome = "no room"
        self.outcomes[job.name] = outcome
        say = self.runner.console.say
        say(f"[{self.done}/{self.total}] {job.name}: {_OUTCOMES[outcome]}, {seconds(took_s)}")
        if outcome == "failed":
            for line in text.strip().splitlines()[:_SHOWN_LINES]:
                say(f"    {line}")

    def _outcome(self, job: Job, status: int | None, answer: Mapping[str, Any]) -> tuple[str, str]:
        """Return a key of `_OUTCOMES`, and the reason of a failure."""
        from pytest_accel.commands.runner import describe_exit, last_lines

        if status is None:
            return "failed", f"it took longer than {seconds(self.timeout_s)} and was ended (--timeout)"
        if "end" not in answer:
            text = "\n".join([f"it {describe_exit(status)}", *last_lines(job.log, _SHOWN_LINES - 1)])
            return ("no room" if status < 0 else "failed"), text  # killed, as where the host's memory ran out
        outcome, text = answer["end"]["outcome"], answer["end"]["text"]
        if outcome == "passed":
            outcome = next((word for word in ("compiled", "found", "unkept") if answer[word]), outcome)
        return (outcome if outcome in _OUTCOMES else "failed"), text

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
