"""`pytest-accel compile`: fill torch's compile caches, many benchmarks side by side, before anything is measured."""

from __future__ import annotations

import argparse
import getpass
import json
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pytest_accel.commands.registry import argument, command, parsed
from pytest_accel.commands.runner import (
    INTERRUPTED,
    InterruptedRunError,
    Job,
    Runner,
    describe_exit,
    last_lines,
    runner_environment,
    say,
    stops_noted,
)
from pytest_accel.commands.worker import DOES_NOT_FIT, list_arguments, step_arguments
from pytest_accel.distributed.worker import rank_arguments
from pytest_accel.platforms.host import usable_cpus
from pytest_accel.stats.quantities import counted, parse_count, parse_seconds, seconds

_MAX_JOBS = 8  # unless more are asked for: each takes gigabytes of the host and of the device
_CORES_PER_JOB = 2
_THREADS, _CACHE = "TORCHINDUCTOR_COMPILE_THREADS", "TORCHINDUCTOR_CACHE_DIR"
_AGAIN = "failed, and is tried again alone"
_TUNED = "*/*.best_config"  # the variant of a kernel that torch's autotuner chose


@command(
    argument(
        "--jobs",
        type=parsed(parse_count(1, 1000)),
        metavar="N",
        help=f"benchmarks side by side (half of the cores, at most {_MAX_JOBS})",
    ),
    argument(
        "--timeout",
        type=parsed(parse_seconds),
        default=1800.0,
        metavar="TIME",
        help="the longest that one benchmark may take, such as 90s or 30min (30min)",
    ),
    name="compile",
    example="compile -- bench_suites -m gh200",
    runs_pytest=True,
)
def compile_(args: argparse.Namespace) -> int:
    """Compile benchmarks ahead, several side by side.

    Each is built and runs one step. Exit status 1 where one fails. What follows -- goes to pytest.
    """
    cores = max(1, int(usable_cpus()))
    jobs = args.jobs or max(1, min(_MAX_JOBS, cores // _CORES_PER_JOB))
    # torch would start a compiling process for every core in every job.
    environ = {_THREADS: str(max(1, cores // jobs)), **runner_environment()}
    # Without options that write files: nothing here is a result.
    for_pytest = rank_arguments([*shlex.split(environ.pop("PYTEST_ADDOPTS", "")), *args.for_pytest])
    with tempfile.TemporaryDirectory(prefix="accel-compile-") as folder, stops_noted() as signals:
        runner = Runner(signals=signals, environ=environ)
        work = _Compilation(folder=Path(folder), runner=runner, jobs=jobs, timeout_s=args.timeout)
        try:
            return work.run(for_pytest)
        except InterruptedRunError:
            total = counted(work.total, "benchmark")
            say(f"interrupted after {len(work.built)} of {total}. What was compiled stays.")
            return INTERRUPTED


@dataclass(slots=True, kw_only=True)
class _Compilation:
    """List the benchmarks and build them side by side; one that fails is tried again alone, with all the memory."""

    folder: Path
    runner: Runner
    jobs: int
    timeout_s: float
    begun_at: float = field(default_factory=time.time)
    built: dict[str, bool] = field(default_factory=dict)  # by node id; False: it failed for good
    total: int = 0

    @property
    def cache(self) -> Path:
        """torch's cache folder, without the seconds that importing torch takes."""
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
        return Path(self.runner.environ.get(_CACHE) or Path(tempfile.gettempdir(), f"torchinductor_{user}"))

    def run(self, for_pytest: Sequence[str]) -> int:
        begun_s = time.monotonic()
        distributed, others, arguments = self._list(for_pytest)
        self.total = len(distributed) + len(others)
        if self.jobs > 1:
            self._build(others, arguments, at_once=self.jobs)
        left = [name for name in (*others, *distributed) if name not in self.built]
        self._build(left, arguments, at_once=1)
        failed = [name for name, is_built in self.built.items() if not is_built]
        took = seconds(time.monotonic() - begun_s)
        built = self.total - len(failed)
        say(f"{counted(self.total, 'benchmark')}: {built} built, {len(failed)} failed; {took}")
        say(f"torch keeps what it compiles in {self.cache} ({_CACHE})")
        for name in failed:
            say(f"by hand: pytest {shlex.quote(name)} --benchmark-disable")
        return 1 if failed else 0

    def _list(self, for_pytest: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
        """Return distributed benchmarks, the others, and pytest's arguments for one of them."""
        file, log = self.folder / "list.json", self.folder / "list.log"
        words = [sys.executable, "-m", "pytest", *list_arguments(file), *for_pytest]
        say("collecting")
        status, _ = self.runner.run(Job(name="pytest", command=words, log=log), self.timeout_s)
        if status not in (0, 5) or not file.exists():
            sys.stderr.write(log.read_text(encoding="utf-8", errors="replace"))
            raise ValueError("pytest could not collect; see above.")
        found = json.loads(file.read_text(encoding="utf-8"))
        if not found["distributed"] and not found["others"]:
            raise ValueError(
                "no benchmark was found that this machine can run. Name what to compile after --: bench_suites -m h200."
            )
        return found["distributed"], found["others"], found["arguments"]

    def _build(self, node_ids: Sequence[str], arguments: Sequence[str], *, at_once: int) -> None:
        if node_ids:
            say(f"compiling, {at_once} side by side" if at_once > 1 else "compiling, one after the other")
        jobs = []
        for number, node_id in enumerate(node_ids):
            words = (sys.executable, "-m", "pytest", *step_arguments(node_id), *arguments)
            jobs.append(Job(name=node_id, command=words, log=self.folder / f"{at_once}-{number}.log"))
        running = self.runner.run_all(jobs, at_once=at_once, timeout_s=self.timeout_s)
        try:
            with closing(running):
                for job, status, took_s in running:
                    word = _outcome(status, alone=at_once == 1)
                    if word != _AGAIN:
                        self.built[job.name] = word != "failed"
                    say(f"[{len(self.built)}/{self.total}] {job.name}: {word}, {seconds(took_s)}")
                    if word == "failed":
                        errors = [line for line in last_lines(job.log, 200) if line.startswith("E  ")]
                        for line in [f"it {describe_exit(status)}", *(errors[:8] or last_lines(job.log))]:
                            say(f"    {line}")
                    self._forget_tuning()  # not only at the end, which a time limit may cut off
        finally:
            self._forget_tuning()

    def _forget_tuning(self) -> None:
        """Remove what torch's autotuner chose: it timed kernels beside other processes. The session tunes again."""
        if self.jobs == 1:
            return
        for chosen in self.cache.glob(_TUNED):
            with suppress(OSError):  # another command cleans up, too
                if chosen.stat().st_mtime >= self.begun_at:
                    chosen.unlink()


def _outcome(status: int | None, *, alone: bool) -> str:
    if status == 0:
        return "built"
    if status is not None and not alone:  # as where the memory of the device or of the host ran out
        return _AGAIN
    return "does not fit on the device" if status == DOES_NOT_FIT else "failed"
