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
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_accel.commands.environments import INTERRUPTED, environment_of_phases
from pytest_accel.commands.registry import argument, command, count, duration
from pytest_accel.stats.quantities import counted, seconds

if TYPE_CHECKING:
    from pytest_accel.commands.phases import Job, Phases

_MOST = 8  # side by side, unless more are asked for: each takes gigabytes of the host and of the device
_CORES_EACH = 2
_ROOMIER = 3  # times fewer side by side, where several found no room
_THREADS, _CACHE = "TORCHINDUCTOR_COMPILE_THREADS", "TORCHINDUCTOR_CACHE_DIR"
_ADDED = "PYTEST_ADDOPTS"
_TUNED = "*/*.best_config"  # which of its variants a kernel is, as torch's autotuner found it
_SHOWN_LINES = 8
_ENDS = {
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
    from pytest_accel.commands.phases import InterruptedPhaseError, Phases, signals_noted
    from pytest_accel.report.console import Console

    if {"--co", "--collect-only"} & {*args.for_pytest}:
        raise ValueError("--collect-only after -- would build nothing. Leave it out.")
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
            cache=_cache_folder(environ),
        )
        try:
            return course.run(args.for_pytest)
        except InterruptedPhaseError:
            console.say(
                f"interrupted after {course.done} of {counted(course.total, 'benchmark')}. What was compiled stays."
            )
            return INTERRUPTED


def _environment(cores: int, jobs: int) -> dict[str, str]:
    """Each job has its share of the cores: torch would start a compiling process for every core in every job."""
    environ = environment_of_phases()
    environ.setdefault(_THREADS, str(max(1, cores // jobs)))
    return environ


def _cache_folder(environ: Mapping[str, str]) -> Path:
    """As torch names it, which would take seconds to import here."""
    user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    return Path(environ.get(_CACHE) or Path(tempfile.gettempdir(), f"torchinductor_{user}"))


@dataclass(slots=True, kw_only=True)
class _Course:
    """List them, compile them, and again what found no room beside the others: beside those that come last, beside fewer, alone."""

    folder: Path
    phases: Phases
    jobs: int
    timeout_s: float
    cache: Path
    begun_at: float = field(default_factory=time.time)
    ends: dict[str, str] = field(default_factory=dict)  # by node id
    numbers: Iterator[int] = field(default_factory=itertools.count)  # of logs
    total: int = 0
    tuned_beside_others: bool = False

    @property
    def done(self) -> int:
        """Those that need no further turn."""
        return sum(end != "no room" for end in self.ends.values())

    def run(self, for_pytest: Sequence[str]) -> int:
        from pytest_accel.commands.phases import InterruptedPhaseError

        begun_s = self.phases.clock()
        alone, others, arguments = self._listed(for_pytest)
        self.total = len(alone) + len(others)
        try:
            for at_once in (self.jobs, self.jobs // _ROOMIER):
                if min(at_once, len(others)) > 1:
                    self._compile(others, arguments, at_once=at_once)
                    others = [name for name in others if self.ends[name] == "no room"]
            self._compile([*others, *alone], arguments, at_once=1)
        finally:
            self._forget_wrong_tuning()
        if self.phases.signals.count:
            raise InterruptedPhaseError
        self._tell(self.phases.clock() - begun_s)
        return 1 if "failed" in self.ends.values() else 0

    def _listed(self, for_pytest: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
        """Gangs, the other benchmarks, and the arguments that pytest needs for one of them."""
        from pytest_accel.commands.compile_worker import told_by, words_for_list
        from pytest_accel.distributed.arguments import rank_arguments

        log = self.folder / "list.log"
        # A list must not be taken for results: nothing that writes files.
        added = rank_arguments(shlex.split(self.phases.environ.get(_ADDED, "")))
        phases = replace(self.phases, environ={**self.phases.environ, _ADDED: shlex.join(added)})
        words = ["-m", "pytest", *words_for_list(_answer(log)), *rank_arguments(for_pytest)]
        status = phases.run(
            [sys.executable, *words], log, title="collecting", timeout_s=self.timeout_s, log_stays=False
        )
        told = told_by(_answer(log))
        listed = told.get("benchmarks", [])
        if status not in (0, 5) or not listed:
            sys.stderr.write(log.read_text(encoding="utf-8", errors="replace"))
            raise ValueError(
                "no benchmark was found that this machine can run. Name what to compile after --: bench_suites -m h200."
                if status in (0, 5)
                else "pytest could not collect; see above."
            )
        gangs = [each["node_id"] for each in listed if each["gang"]]
        others = [each["node_id"] for each in listed if not each["gang"]]
        return gangs, others, told["arguments"]

    def _compile(self, node_ids: Sequence[str], arguments: Sequence[str], *, at_once: int) -> None:
        if not node_ids:
            return
        title = f"compiling, {at_once} side by side" if at_once > 1 else "compiling, one after the other"
        # What is in the variable is among the arguments.
        environ = {name: value for name, value in self.phases.environ.items() if name != _ADDED}
        phases = replace(self.phases, environ=environ)
        waiting = deque(self._jobs(node_ids, arguments))
        again = set[str]()
        with closing(
            phases.run_side_by_side(waiting, at_once=at_once, timeout_s=self.timeout_s, title=title)
        ) as ended:
            for job, status, took_s in ended:
                self._take(job, status, took_s, alone=at_once == 1)
                self._forget_wrong_tuning()  # and not only at the end, which a time limit may forbid
                # What takes the most room comes first by custom: beside the last ones there is some.
                if self.ends[job.name] == "no room" and waiting and job.name not in again:
                    again.add(job.name)
                    waiting.extend(self._jobs([job.name], arguments))

    def _jobs(self, node_ids: Sequence[str], arguments: Sequence[str]) -> Iterator[Job]:
        from pytest_accel.commands.compile_worker import words_for_one
        from pytest_accel.commands.phases import Job

        for node_id in node_ids:
            log = self.folder / f"{next(self.numbers)}.log"
            words = ["-m", "pytest", *words_for_one(node_id, _answer(log)), *arguments]
            yield Job(name=node_id, command=(sys.executable, *words), log=log)

    def _take(self, job: Job, status: int | None, took_s: float, *, alone: bool) -> None:
        from pytest_accel.commands.compile_worker import told_by

        told = {} if status is None else told_by(_answer(job.log))
        self.tuned_beside_others |= told.get("tuned_beside_others", False)
        how, text = self._end_of(job, status, told)
        if how == "no room" and alone:
            how = "failed"
        elif how == "unfit" and not alone:
            how = "no room"
        self.ends[job.name] = how
        say = self.phases.console.say
        say(f"[{self.done}/{self.total}] {job.name}: {_ENDS[how]}, {seconds(took_s)}")
        if how == "failed":
            for line in text.strip().splitlines()[:_SHOWN_LINES]:
                say(f"    {line}")

    def _end_of(self, job: Job, status: int | None, told: Mapping[str, Any]) -> tuple[str, str]:
        """How a job ended, as a word of `_ENDS`, and why if it failed; by what it told itself, if it came to that."""
        from pytest_accel.distributed.processes import ended_words, exit_words

        if status is None:
            return "failed", f"it took longer than {seconds(self.timeout_s)} and was ended (--timeout)"
        if "end" not in told:
            lines = job.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            words = "\n".join([f"it {ended_words(exit_words(status))}", *lines[1 - _SHOWN_LINES :]])
            killed = status < 0  # as the kernel does where the host's memory ran out
            return ("no room" if killed else "failed"), words
        how, text = told["end"]["outcome"], told["end"]["text"]
        if how == "passed":
            how = next((word for word in ("compiled", "found", "unkept") if told[word]), how)
        return (how if how in _ENDS else "failed"), text

    def _forget_wrong_tuning(self) -> None:
        """Kernels are tuned by one process at a time; where torch's tuner does not wait, the session that measures tunes again."""
        if not self.tuned_beside_others:
            return
        for chosen in self.cache.glob(_TUNED):
            with suppress(OSError):  # another one cleans up, too
                if chosen.stat().st_mtime >= self.begun_at:
                    chosen.unlink()

    def _tell(self, took_s: float) -> None:
        counts = Counter(self.ends.values())
        parts = [f"{counts[end]} {words}" for end, words in _ENDS.items() if counts[end]]
        say = self.phases.console.say
        say(f"{counted(self.total, 'benchmark')}: {', '.join(parts)}; {seconds(took_s)}")
        if counts["compiled"] or counts["found"]:
            hint = "" if self.phases.environ.get(_CACHE) else f"; {_CACHE} names a folder that outlives a job"
            say(f"kept in {self.cache}{hint}")
        if failed := next((name for name, end in self.ends.items() if end == "failed"), None):
            say(f"by hand: pytest {shlex.quote(failed)} --benchmark-disable")


def _answer(log: Path) -> Path:
    """Where a process says what came of it, beside what it printed."""
    return log.with_suffix(".json")
