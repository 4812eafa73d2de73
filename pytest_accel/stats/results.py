"""What a session found out about its benchmarks: the value that reports, summaries, history and comparisons are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from pytest_accel.stats.environment import Change, Environment
from pytest_accel.stats.gate import interval
from pytest_accel.stats.keys import Scalar
from pytest_accel.stats.runs import Run
from pytest_accel.stats.verdict import Outcome, Policy, Verdict


class Ending(Enum):
    """Status of a benchmark without a verdict."""

    FAILED = "failed"  # it measured nothing, a check of its own failed, or it misses a gated reference
    SKIPPED = "skipped"  # this machine cannot run it, or it skipped itself
    RECORDED = "recorded"  # its runs went into the baseline, and nothing was judged
    NOT_MEASURED = "not-measured"  # the session ended before, or measuring was switched off


Status = Outcome | Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFigure:
    """Throughput per device against that of a smaller platform."""

    against: str  # the smaller platform
    speedup: float
    efficiency: float
    kind: str  # weak or strong


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceFigure:
    """A published figure, or what a site expects, beside what was measured."""

    id: str
    source: str  # who says it, for people: "Olivia, Test 1"
    platform: str
    metric: str
    unit: str
    value: float
    ratio: float | None = None  # this machine over that figure, above 1 is better; None: not comparable
    flags: tuple[str, ...] = ()
    differs: str = ""  # what of its configuration is another one here
    expected: bool = False  # by the site itself; else published
    gated: bool = False
    shortfall: str = ""  # why the gate on it fails; empty where it holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One benchmark as a session left it. Nothing here is rounded."""

    benchmark: str  # its node id
    suite: str
    platform: str
    disk_name: str  # the folder of its baselines; another than the platform's where a device has variants
    status: Status
    failed: bool = False  # whether it fails the session
    text: str = ""  # in words, without its name: by how much and how surely, or why not
    details: tuple[str, ...] = ()  # further lines that belong to it: remarks, a traceback's end
    key: str = ""  # under which its baseline is stored; the node id, unless real data fed it
    file: str = ""  # relative to the root directory
    line: int = 0  # from 1; 0 is not known
    duration_s: float = 0.0
    unit: str = ""  # of its work: images, tokens
    work_per_step: float = 0.0
    steady: bool = True
    tolerance: float | None = None
    configuration: Mapping[str, Scalar] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()  # of this session
    baseline: tuple[Run, ...] = ()  # the stored runs that they were judged against
    verdicts: tuple[Verdict, ...] = ()  # of its throughput first, then of the metrics it gates
    environment: str = ""  # the key of the one it was measured in
    changes: tuple[Change, ...] = ()  # since the baseline, the most telling first
    numerics: str = ""  # news of the loss
    scaling: ScalingFigure | None = None
    references: tuple[ReferenceFigure, ...] = ()

    @property
    def name(self) -> str:
        """Without the path of its file."""
        return self.benchmark.partition("::")[2] or self.benchmark

    @property
    def is_platform(self) -> bool:
        """Whether it is the slowdown that all benchmarks of a platform share, and no benchmark."""
        return self.benchmark == self.disk_name

    @property
    def was_measured(self) -> bool:
        return bool(self.runs)

    @property
    def verdict(self) -> Verdict | None:
        """Of its throughput."""
        return self.verdicts[0] if self.verdicts else None

    @property
    def step_time_s(self) -> float:
        """The centre of all runs of this session, as the gate sees them."""
        return interval(self.runs, Policy()).point_s

    @property
    def throughput(self) -> float | None:
        """Work a second; None where nothing was measured."""
        return self.work_per_step / self.step_time_s if self.runs else None

    @property
    def baseline_throughput(self) -> float | None:
        if not self.baseline:
            return None
        return self.work_per_step / interval(self.baseline, Policy()).point_s

    @property
    def metrics(self) -> Mapping[str, float]:
        """Of the newest run."""
        return self.runs[-1].metrics if self.runs else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionResults:
    """All that one invocation of pytest found out."""

    session: str
    at: str  # its beginning: ISO 8601, UTC
    duration_s: float
    exit_status: int
    version: str  # of pytest-accel
    host: str = ""
    revision: str = ""  # of the project's code, where it is known
    command: tuple[str, ...] = ()  # pytest's arguments
    environments: Mapping[str, Environment] = field(default_factory=dict)  # of all runs here, by key
    results: tuple[Result, ...] = ()
    findings: tuple[Mapping[str, Scalar], ...] = ()  # of `pytest-accel doctor`, plain
    remarks: tuple[str, ...] = ()  # of the session as a whole: stragglers, a slowdown on purpose

    @property
    def failures(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.failed)
