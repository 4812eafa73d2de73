"""A stream on disk: the runs of one benchmark in the order in which they were measured, one JSON line each.

The first line is the head: what was measured, where and how. Lines are appended as runs end, so that an interrupted
gathering loses one run at most: a line counts when its end is there.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal

from pytest_accel.stats.run import Run

KIND = "pytest-accel noise stream"
SCHEMA_VERSION = 1
PAUSE_S = 1800.0  # without a run: what follows is of another occasion
DIGITS = 5  # significant ones of a round time, which err by up to 5 x 10^-5 of it: far below any noise here


class StreamError(ValueError):
    """A file that is no stream, or not the one that is to be continued; the text says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How many runs there are to be: without a slowdown, and with each injected one."""

    runs: int
    slowdowns: tuple[float, ...] = ()
    slow_runs: int = 0

    @property
    def wanted(self) -> dict[float, int]:
        return {0.0: self.runs, **dict.fromkeys(self.slowdowns, self.slow_runs)}

    def order(self) -> list[float]:
        """The slowdown of each place: every kind spread evenly from first to last, so that a drift hits all alike."""
        places = [
            ((number + 0.5) / count, kind, slowdown)
            for kind, (slowdown, count) in enumerate(self.wanted.items())
            for number in range(count)
        ]
        return [slowdown for _, _, slowdown in sorted(places)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What all runs of a stream share."""

    name: str
    benchmark: str  # its node id
    platform: str
    device: str  # what the platform's baselines are stored under
    unit: str
    work_per_step: float
    configuration: Mapping[str, Any]
    identity: Mapping[str, str]  # of the environment: what makes another machine
    context: Mapping[str, str]  # torch, driver, kernel
    version: str  # of pytest-accel
    revision: str
    command: tuple[str, ...]  # pytest's arguments
    plan: Plan
    ahead: int = 0  # processes that were built before they measured one after another; 0: one at a time
    trial: bool = False  # a proof that gathering works, on a machine that did other work: no evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRun:
    """One fresh process."""

    place: int  # in the order of measuring, from 0; those that gave nothing are counted too
    at: str  # when it ended: ISO 8601, UTC
    took_s: float  # the whole process; where several were built ahead, since the one before ended
    slowdown: float = 0.0  # that was injected, a loss of throughput
    steps_per_round: int = 0
    rounds_s: tuple[float, ...] = ()  # none: it was disturbed, and is not judged
    steady: bool = True
    invalid: str = ""  # why it has no rounds
    notes: tuple[str, ...] = ()  # what the plugin noted of the run
    problems: tuple[str, ...] = ()  # what `doctor` had to say of the machine then
    metrics: Mapping[str, float] = field(default_factory=dict)  # clocks, heat, power, times of the start

    @property
    def is_valid(self) -> bool:
        return bool(self.rounds_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    head: Head
    runs: tuple[StreamRun, ...]

    def of(self, slowdown: float) -> list[Run]:
        """Valid runs with that slowdown, for the gate: those of one occasion are of one session."""
        return [
            Run(
                session=f"{self.head.name}-{occasion}",
                rounds_s=run.rounds_s,
                steps_per_round=run.steps_per_round,
            )
            for occasion, run in zip(self.occasions, self.runs, strict=True)
            if run.is_valid and run.slowdown == slowdown
        ]

    @property
    def occasions(self) -> list[int]:
        """Of each run, from 0."""
        ends_at = [datetime.fromisoformat(run.at) for run in self.runs]
        pauses = [(later - earlier).total_seconds() > PAUSE_S for earlier, later in pairwise(ends_at)]
        return list(accumulate(pauses, initial=0)) if ends_at else []

    @property
    def injected(self) -> tuple[float, ...]:
        """Slowdowns that were really injected, the smallest first."""
        return tuple(sorted({run.slowdown for run in self.runs if run.is_valid and run.slowdown}))

    @property
    def remaining(self) -> list[float]:
        """Slowdowns of the runs that are still to be measured, in the order of the plan."""
        done = Counter(run.slowdown for run in self.runs if run.is_valid)
        left = []
        for slowdown in self.head.plan.order():
            if done[slowdown]:
                done[slowdown] -= 1
            else:
                left.append(slowdown)
        return left


def significant(value: float, digits: int = DIGITS) -> float:
    return value if value == 0 or not math.isfinite(value) else float(f"{value:.{digits}g}")


def joined(streams: Sequence[Stream]) -> Stream:
    """The runs of several occasions as one stream: of one benchmark, measured in one way on machines of one kind."""
    streams = sorted(streams, key=lambda stream: stream.runs[0].at if stream.runs else "")
    first = streams[0].head
    kind = _kind(first)
    for stream in streams:
        for what, found in _kind(stream.head).items():
            if found != kind[what]:
                raise StreamError(
                    f"{stream.head.name} and {first.name} are not of one kind: {what} is {found!r}, and was {kind[what]!r}."
                )
    runs = [run for stream in streams for run in stream.runs]
    if any(later.at <= earlier.at for earlier, later in pairwise(runs)):
        raise StreamError(
            "these streams have runs of one time. Name each once, and none that is a part of another."
        )
    done = Counter(run.slowdown for run in runs if run.is_valid)
    head = dataclasses.replace(
        first,
        revision=", ".join(dict.fromkeys(stream.head.revision for stream in streams)),
        plan=Plan(
            runs=done[0.0],
            slowdowns=first.plan.slowdowns,
            slow_runs=min((done[slowdown] for slowdown in first.plan.slowdowns), default=0),
        ),
    )
    return Stream(
        head=head, runs=tuple(dataclasses.replace(run, place=place) for place, run in enumerate(runs))
    )


def _kind(head: Head) -> dict[str, Any]:
    """What all streams that may be joined have in common."""
    shared = {each.name: getattr(head, each.name) for each in dataclasses.fields(head)}
    return {name: shared[name] for name in shared if name not in ("name", "revision", "plan")} | {
        "slowdowns": head.plan.slowdowns
    }


# --- writing ----------------------------------------------------------------------------------------


def write(path: Path, stream: Stream) -> None:
    """A whole stream, into a new file."""
    try:
        begin(path, stream.head)
    except FileExistsError:
        raise StreamError(f"{path} is there already. Name another --out.") from None
    for run in stream.runs:
        append(path, run)


def begin(path: Path, head: Head) -> None:
    """A new file with its head; one that is there is somebody's, and stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"kind": KIND, "schema_version": SCHEMA_VERSION, **dataclasses.asdict(head)}
    _write_line(path, "xb", content)


def append(path: Path, run: StreamRun) -> None:
    """What is as usual is left out."""
    told = dataclasses.asdict(run)
    usual = {each.name: each.default for each in dataclasses.fields(run)} | {"metrics": {}}
    content = {name: value for name, value in told.items() if name == "slowdown" or value != usual[name]}
    _write_line(path, "ab", content)


def _write_line(path: Path, mode: Literal["xb", "ab"], content: Mapping[str, Any]) -> None:
    """In one piece, and on the disk when this returns."""
    line = (json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n").encode()
    with path.open(mode, buffering=0) as file:
        written = file.write(line)
        if written != len(line):  # a full disk takes what it can
            raise StreamError(
                f"{path}: only {written} of {len(line)} bytes of a run were written. Make room on the disk, and go on with --resume."
            )
        os.fsync(file.fileno())


def cut_off(path: Path, count: int) -> None:
    """The file without so many bytes at its end."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - count)
        os.fsync(file.fileno())


# --- reading ----------------------------------------------------------------------------------------


def read(path: Path) -> Stream:
    """A stream of which nothing was cut off."""
    stream, cut_bytes = read_interrupted(path)
    if cut_bytes:
        raise StreamError(
            f"{path}: its last line was cut off. Gather with --resume, which measures that run again; or restore it from git."
        )
    return stream


def read_interrupted(path: Path) -> tuple[Stream, int]:
    """A stream of the lines that have their end, and how many bytes follow them: of a line that was cut off."""
    try:
        content = path.read_bytes()
        whole, end, rest = content.rpartition(b"\n")
        lines = whole.decode("utf-8").split("\n")  # texts may hold other ends of lines
    except (OSError, UnicodeDecodeError) as error:
        raise StreamError(
            f"{path}: cannot be read: {error}. Name a file that `gather` wrote with --out."
        ) from None
    if not end:
        raise StreamError(
            f"{path}: this is no stream of runs, or its first line was cut off. Name a file that `gather` wrote with --out; "
            "where it is one, it holds no run yet: remove it."
        )
    return parse(lines, str(path)), len(rest)


def parse(lines: Sequence[str], where: str) -> Stream:
    contents = [_content(line, f"{where}, line {number}") for number, line in enumerate(lines, start=1)]
    if not contents or contents[0].get("kind") != KIND:
        raise StreamError(f"{where}: this is no stream of runs. Name a file that `gather` wrote with --out.")
    version = contents[0].get("schema_version")
    if version != SCHEMA_VERSION:
        raise StreamError(
            f"{where}: schema_version {version!r} is not the one that is read here ({SCHEMA_VERSION}). Gather it anew."
        )
    head = {name: value for name, value in contents[0].items() if name not in ("kind", "schema_version")}
    try:
        return Stream(head=_head(head), runs=tuple(map(_run, contents[1:])))
    except (KeyError, TypeError, ValueError) as error:
        raise StreamError(f"{where}: {error}. Restore it from git, or gather it anew.") from None


def _content(line: str, where: str) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise StreamError(
            f"{where}: this is no JSON object. Remove the line and go on with --resume, or restore the file from git."
        )
    return content


def _head(content: Mapping[str, Any]) -> Head:
    plan = content["plan"]
    return Head(
        **{
            **content,
            "command": tuple(content["command"]),
            "plan": Plan(**{**plan, "slowdowns": tuple(plan["slowdowns"])}),
        }
    )


def _run(content: Mapping[str, Any]) -> StreamRun:
    several = {name: tuple(content[name]) for name in ("rounds_s", "notes", "problems") if name in content}
    run = StreamRun(**{**content, **several})
    if any(not (isinstance(each, float) and each > 0 and math.isfinite(each)) for each in run.rounds_s):
        raise ValueError(f"the run at place {run.place} has a round that is no positive time")
    return run
