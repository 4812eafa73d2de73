"""Results of a session: benchmarks, scaling, numerics, cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from pytest_accel.stats.baseline_quality import NO_GATE
from pytest_accel.stats.causes import Cause, cause_lines, cause_text, lost
from pytest_accel.stats.environment import Change, Environment
from pytest_accel.stats.gate import LOSSES, THROUGHPUT, Outcome, Policy, StepTime, Verdict, interval
from pytest_accel.stats.kernels import KernelDifference, compare
from pytest_accel.stats.metric_gates import ANCHOR, ANCHOR_SHARE, shown_name, worst
from pytest_accel.stats.run import Run, Scalar, short_name


class Ending(Enum):
    """Status of a benchmark without a verdict, or whose verdict decides nothing."""

    FAILED = "failed"  # it measured nothing, a check of its own failed, or it misses a gated reference
    SKIPPED = "skipped"  # this machine cannot run it, or it skipped itself
    RECORDED = "recorded"  # its runs went into the baseline, and nothing was judged
    NOT_MEASURED = "not-measured"  # the session ended before, or measuring was switched off
    NOT_GATED = "not-gated"  # its tolerance is no gate, and no loss beyond it was shown


Status = Outcome | Ending
_WITHIN = frozenset({Outcome.OK, Outcome.IMPROVED, Outcome.INCONCLUSIVE})


def status_of(verdict: Verdict) -> Status:
    """Return the status that a verdict is shown as: below a loss beyond it, a tolerance that is no gate says nothing."""
    limit = NO_GATE * (ANCHOR_SHARE if verdict.of == ANCHOR else 1)
    ungated = verdict.outcome in _WITHIN and verdict.tolerance > limit
    return Ending.NOT_GATED if ungated else verdict.outcome


def worst_status(throughput: Verdict, metrics: Sequence[Verdict]) -> Status:
    """Return the status of a benchmark: the worst outcome of what is gated; not gated where that is fine and some is not."""
    verdicts = (throughput, *metrics)
    gated = [each for each in verdicts if status_of(each) is each.outcome]
    found = worst(throughput if throughput in gated else replace(throughput, outcome=Outcome.OK), gated)
    fine = found in (Outcome.OK, Outcome.IMPROVED)
    return Ending.NOT_GATED if fine and len(gated) < len(verdicts) else found


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLine:
    """A sentence about a result: of a verdict or a reference that is missed, or a note, which changes no outcome."""

    text: str
    status: Status | None = None  # None: a note
    of: str = THROUGHPUT  # the metric of a verdict

    @property
    def named(self) -> str:
        """With the name of its metric."""
        return self.text if self.of == THROUGHPUT else f"{shown_name(self.of)}: {self.text}"


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
class ScalingFigure:
    """Throughput per device against that of a smaller platform."""

    against: str  # the smaller platform
    speedup: float
    efficiency: float  # 1 where nothing was lost
    kind: str  # weak: each device keeps its work; strong: they share the same work
    superlinear: bool = False  # by more than the noise of both sides explains: an alarm, not a feat


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One benchmark as a session left it. Nothing here is rounded."""

    benchmark: str  # its node id
    suite: str = ""
    platform: str = ""
    # The folder of its baselines; another than the platform's where a device has variants.
    disk_name: str = ""
    status: Status
    failed: bool = False  # whether it fails the session
    lines: tuple[ReportLine, ...] = ()  # what there is to say: what decided first, notes last
    traceback: tuple[str, ...] = ()  # the end of what pytest shows of a failure that is no verdict
    key: str = ""  # under which its baseline is stored; the node id, unless real data fed it
    file: str = ""  # relative to the root directory
    line: int = 0  # from 1; 0 is not known
    duration_s: float = 0.0
    unit: str = ""  # of its work: images, tokens
    work_per_step: float = 0.0
    noise: float | None = None  # the x of "± x %", as a fraction; None: derived from the runs
    steady: bool = True
    tolerance: float | None = None
    configuration: Mapping[str, Scalar] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()  # of this session
    baseline: tuple[Run, ...] = ()  # the stored runs that they were judged against
    verdicts: tuple[Verdict, ...] = ()  # of its throughput first, then of the metrics it gates
    environment: str = ""  # the key of the one it was measured in
    changes: tuple[Change, ...] = ()  # since the baseline, most likely causes first
    causes: tuple[Cause, ...] = ()  # of its loss, those that explain most first
    scaling: ScalingFigure | None = None
    references: tuple[ReferenceFigure, ...] = ()

    @property
    def name(self) -> str:
        """Without the path of its file."""
        return short_name(self.benchmark)

    @property
    def stored_as(self) -> str:
        """The key of its baseline and of its series in the history."""
        return self.key or self.benchmark

    @property
    def label(self) -> str:
        return f"{self.name} ({self.platform})" if self.platform and not self.is_platform else self.benchmark

    @property
    def text(self) -> str:
        """What decided: by how much and how surely, or why not."""
        return self.lines[0].named if self.lines else ""

    @property
    def notes(self) -> list[str]:
        return [line.text for line in self.lines if line.status is None]

    @property
    def is_platform(self) -> bool:
        """Whether it is the slowdown that all benchmarks of a platform share, and no benchmark."""
        return self.benchmark == self.disk_name

    @property
    def misses_reference(self) -> bool:
        """Whether it failed by nothing but a gated reference: its runs are valid, and its text is a sentence."""
        shortfalls = {each.shortfall for each in self.references}
        return self.status is Ending.FAILED and bool(self.text) and self.text in shortfalls

    @property
    def measured_as(self) -> Status:
        """Its status without references: whether its runs may be compared and stored does not depend on them."""
        if not self.misses_reference:
            return self.status
        return status_of(self.verdict) if self.verdict else Outcome.NO_BASELINE

    @property
    def verdict(self) -> Verdict | None:
        """Of its throughput."""
        return self.verdicts[0] if self.verdicts else None

    @property
    def cause_texts(self) -> list[str]:
        """Its causes, each with the share of the loss that it explains."""
        return [cause_text(each, lost(self.verdict)) for each in self.causes]

    @property
    def cause_lines(self) -> list[tuple[str, str, str]]:
        """What is printed of its causes: heading, sentence with its share, remedy."""
        return cause_lines(self.causes, lost(self.verdict))

    @property
    def step(self) -> StepTime:
        """The step time of all runs of this session, as the gate sees them."""
        return interval(self.runs, Policy())

    @property
    def throughput(self) -> float | None:
        """Work a second; None where nothing was measured."""
        return self.work_per_step / self.step.point_s if self.runs else None

    @property
    def baseline_throughput(self) -> float | None:
        return self.work_per_step / interval(self.baseline, Policy()).point_s if self.baseline else None

    @property
    def has_lost(self) -> bool:
        """Whether its throughput was judged, and is lost."""
        found = self.verdict
        return found is not None and found.slowdown is not None and found.outcome in LOSSES

    @property
    def kernels(self) -> KernelDifference | None:
        """What changed between the kernel tables of its baseline and of this session; None without both."""
        return kernel_difference(self.baseline, self.runs)

    @property
    def plus_minus(self) -> float:
        return self.step.relative_high if self.noise is None else self.noise

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint:
    devices: int
    work_per_step: float  # of all devices together
    step: StepTime


def kernel_difference(baseline: Sequence[Run], runs: Sequence[Run]) -> KernelDifference | None:
    """Compare the newest kernel tables of two groups of runs; None where a side has none."""
    sides = (baseline, runs)
    old, new = (next((run.kernels for run in reversed(side) if run.kernels), None) for side in sides)
    if old is None or new is None:
        return None
    before_s, after_s = (interval(side, Policy()).point_s for side in sides)
    return compare(old, new, before_s=before_s, after_s=after_s)


def scaling_figure(against: str, few: ScalingPoint, many: ScalingPoint) -> ScalingFigure:
    before, now = (each.work_per_step / each.step.point_s for each in (few, many))
    speedup = now / before
    efficiency = speedup * few.devices / many.devices
    return ScalingFigure(
        against=against,
        speedup=speedup,
        efficiency=efficiency,
        kind="strong" if many.work_per_step == few.work_per_step else "weak",
        superlinear=efficiency > (1 + few.step.relative_high) * (1 + many.step.relative_high),
    )


# Seeded steps repeat to the last bit on one machine on the CPU; GPU kernels that add atomically differ
# in the last digits of fp32 and the third of bf16.
LOSS_TOLERANCE = 0.01


def describe_loss_change(before: Sequence[float | None], after: float | None) -> str:
    """Describe how the loss changed; empty where it is unknown, or no further from earlier ones than they are from each other.

    Some benchmarks do not compute the same twice: where a device adds up in an order of its own, another box may match.
    """
    losses = [loss for loss in before if loss is not None]
    if after is None or not losses:
        return ""
    lowest, highest = min(losses), max(losses)
    largest = max(abs(lowest), abs(highest), abs(after))
    if max(lowest - after, after - highest) <= max(LOSS_TOLERANCE * largest, highest - lowest):
        return ""
    ends = dict.fromkeys(f"{loss:.6g}" for loss in (lowest, highest))
    return f"{' to '.join(ends)} -> {after:.6g}"
