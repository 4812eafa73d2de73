"""`pytest-accel compile`: fill torch's compile caches, many benchmarks side by side, before anything is measured."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_accel.commands.environments import INTERRUPTED, environment_of_phases
from pytest_accel.commands.registry import argument, command, count, duration
from pytest_accel.core.quantities import counted, seconds

if TYPE_CHECKING:
    from pytest_accel.conducting.phases import Job, Phases

_MOST = 8  # side by side, unless more are asked for: each takes gigabytes of the host and of the device
_CORES_EACH = 2
_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
_TUNED = "*.best_config"  # which of its variants a kernel is, as torch's autotuner found it
_LAST_LINES = 8
_ENDS = {
    "compiled": "compiled",
    "found": "compiled before",
    "passed": "built, nothing to compile",
    "skipped": "skipped",
    "no room": "no room on the device",
    "failed": "failed",
}


@command(
    argument(
        "--jobs",
        type=count,
        metavar="N",
        help=f"so many benchmarks side by side (half of the cores, at most {_MOST})",
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
    """Build benchmarks side by side and take one step of each, so that measuring them later finds them compiled; 1 where one fails."""
    from pytest_accel.conducting.phases import InterruptedPhaseError, Phases, signals_noted
    from pytest_accel.console import Console

    cores = len(os.sched_getaffinity(0))
    jobs = args.jobs or max(1, min(_MOST, cores // _CORES_EACH))
    console = Console(sys.stderr)
    with tempfile.TemporaryDirectory(prefix="accel-compile-") as folder, signals_noted() as signals:
        environ = _environment(cores, jobs)
        course = _Course(
            folder=Path(folder),
            phases=Phases(signals=signals, console=console, environ=environ),
            jobs=jobs,
            timeout_s=args.timeout,
        )
        try:
            return course.run(args.for_pytest)
        except InterruptedPhaseError:
            console.say(f"interrupted. {course.told()}: what was compiled stays.")
            return INTERRUPTED


def _environment(cores: int, jobs: int) -> dict[str, str]:
    """Each job has its share of the cores: torch would start a compiling process for every core in every job."""
    environ = environment_of_phases()
    environ.setdefault(_THREADS, str(max(1, cores // jobs)))
    return environ


@dataclass(slots=True, kw_only=True)
class _Course:
    """List them, compile them, and again alone what found no room beside the others."""

    folder: Path
    phases: Phases
    jobs: int
    timeout_s: float
    begun_at: float = field(default_factory=time.time)
    ends: dict[str, str] = field(default_factory=dict)  # by node id
    caches: set[Path] = field(default_factory=set)
    numbers: Iterator[int] = field(default_factory=itertools.count)  # of logs
    total: int = 0

    def run(self, for_pytest: Sequence[str]) -> int:
        from pytest_accel.conducting.compiling import words_for_list
        from pytest_accel.spmd.arguments import rank_arguments

        begun_s = self.phases.clock()
        log = self.folder / "list.log"
        # A list must not be taken for results: nothing that writes files.
        words = [sys.executable, "-m", "pytest", *words_for_list(_told_by(log)), *rank_arguments(for_pytest)]
        status = self.phases.run(words, log, title="collecting", timeout_s=self.timeout_s)
        listed = _read(_told_by(log))
        if not listed.get("benchmarks"):
            sys.stderr.write(log.read_text(encoding="utf-8", errors="replace"))
            raise ValueError(
                "no benchmark was found that this machine can run. Name what to compile after --: bench_suites -m h200."
                if status in (0, 5)
                else "pytest could not collect; see above."
            )
        gangs = [each["node_id"] for each in listed["benchmarks"] if each["gang"]]
        others = [each["node_id"] for each in listed["benchmarks"] if not each["gang"]]
        self.total = len(gangs) + len(others)
        arguments: list[str] = listed["arguments"]
        try:
            self._compile(others, arguments, self.jobs)
            crowded = [name for name in others if self.ends[name] == "no room"] if self.jobs > 1 else []
            self._compile([*crowded, *gangs], arguments, 1)
        finally:
            self._forget_tuning()
        self.phases.console.say(f"{self.told()}; {seconds(self.phases.clock() - begun_s)}.{self._kept()}")
        return 1 if "failed" in self.ends.values() else 0

    def _compile(self, node_ids: Sequence[str], arguments: Sequence[str], at_once: int) -> None:
        if not node_ids:
            return
        title = f"compiling, {at_once} side by side" if at_once > 1 else "compiling, one after the other"
        jobs = list(self._jobs(node_ids, arguments))
        # What is in PYTEST_ADDOPTS is among the arguments.
        environ = {name: value for name, value in self.phases.environ.items() if name != "PYTEST_ADDOPTS"}
        phases = replace(self.phases, environ=environ)
        with closing(
            phases.run_side_by_side(jobs, at_once=at_once, timeout_s=self.timeout_s, title=title)
        ) as ended:
            for job, status, took_s in ended:
                self._take(job, status, took_s)

    def _jobs(self, node_ids: Sequence[str], arguments: Sequence[str]) -> Iterator[Job]:
        from pytest_accel.conducting.compiling import words_for_one
        from pytest_accel.conducting.phases import Job

        for node_id in node_ids:
            log = self.folder / f"{next(self.numbers)}.log"
            words = ["-m", "pytest", *words_for_one(node_id, _told_by(log)), *arguments]
            yield Job(name=node_id, command=(sys.executable, *words), log=log)

    def _take(self, job: Job, status: int | None, took_s: float) -> None:
        found = _read(_told_by(job.log))
        end = found.get("end", {"outcome": "failed", "text": ""})
        how = end["outcome"]
        if how == "passed":
            how = next((word for word in ("compiled", "found") if found.get(word)), how)
        if "cache" in found:
            self.caches.add(Path(found["cache"]))
        self.ends[job.name] = how
        say = self.phases.console.say
        say(f"[{len(self.ends)}/{self.total}] {job.name}: {_ENDS[how]}, {seconds(took_s)}")
        if status is None:
            say(f"    it took longer than {seconds(self.timeout_s)} and was ended (--timeout)")
        if how == "failed":
            text = end["text"] or job.log.read_text(encoding="utf-8", errors="replace")
            for line in text.strip().splitlines()[-_LAST_LINES:]:
                say(f"    {line}")

    def _forget_tuning(self) -> None:
        """What was tuned beside others was tuned wrong: the session that measures tunes again, alone."""
        for cache in self.caches:
            for chosen in cache.rglob(_TUNED):
                if chosen.stat().st_mtime >= self.begun_at:
                    chosen.unlink(missing_ok=True)

    def told(self) -> str:
        counts = Counter(self.ends.values())
        parts = [f"{counts[end]} {words}" for end, words in _ENDS.items() if counts[end]]
        return f"{counted(self.total, 'benchmark')}: {', '.join(parts) or 'none compiled'}"

    def _kept(self) -> str:
        if not self.caches:
            return ""
        return (
            f" Kept in {', '.join(map(str, sorted(self.caches)))}; TORCHINDUCTOR_CACHE_DIR names a folder that outlives "
            "the job."
        )


def _told_by(log: Path) -> Path:
    """Where a process says what came of it, beside what it printed."""
    return log.with_suffix(".json")


def _read(told: Path) -> Mapping[str, Any]:
    """What a process said in the end; nothing, where it was killed before."""
    try:
        found: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found
