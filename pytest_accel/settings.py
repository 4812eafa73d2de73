"""Every setting of a session: its option, variable, ini key and mark, what it takes, and what it means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from pytest_accel.stats import parsing
from pytest_accel.stats.quantities import parse_fraction, parse_seconds
from pytest_accel.stats.runs import MAX_RUNS, RECORD_RUNS

Consequence = Literal["warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user asked for."""

    # None: the baseline's own, else the gate's default; auto: the same, and a recording freezes one that its runs resolve.
    tolerance: float | Literal["auto"] | None = None
    budget_s: float = 5.0
    warmup_s: float = 30.0
    looks: int = 5
    within_s: float | None = None  # of the session: no further look is begun that would end later
    threads: int = 1
    timeout_s: float = 600.0
    rendezvous_s: float = 120.0
    bind: Literal["auto", "none"] = "auto"
    lock: Literal["wait", "fail", "off"] = "wait"  # where another session measures on the same device
    data: str | None = None  # the root of real data sets
    data_required: bool = False
    compile: str = "auto"
    # Metrics gated beside throughput, and what is tolerated of each; None: the tolerance above, else 5 %.
    gate: Mapping[str, float | None] = field(default_factory=dict)
    columns: tuple[str, ...] = ()  # of the table; none: all that have something in them
    reference: str = ""  # from a benchmark's mark: the published figures that stand beside it
    references: bool = False  # shown beside every result
    gate_reference: float | None = None  # how far below a published throughput of this platform may be
    report: str = ""  # files that a session leaves, relative to where pytest was called
    json: str = ""
    summary: str = ""
    metrics: str = ""
    history: str = ".accel/history.sqlite"  # relative to the root directory; empty: none is kept
    gang: bool = False  # from a benchmark's mark: a process group even on one device
    slowdown: float = 0.0
    baselines: str = "baselines"
    require: bool = False
    inconclusive: Consequence = "warn"
    missing_baseline: Consequence = "warn"
    stale_baseline: Consequence = "fail"
    vanished: Consequence = "warn"
    record: int = 0  # runs to record; 0 measures and judges
    update: bool = False
    reason: str = ""
    origins: Mapping[str, str] = field(default_factory=dict)

    def origin(self, name: str) -> str:
        return self.origins.get(name, "the default")

    @property
    def fixed_tolerance(self) -> float | None:
        """The tolerance, where it is a number."""
        return None if self.tolerance == "auto" else self.tolerance

    @property
    def leaves(self) -> tuple[str, ...]:
        """The files that were asked for, by their options."""
        return tuple(name for name in ("report", "json", "summary", "metrics") if getattr(self, name))

    @property
    def recording(self) -> bool:
        return self.record > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting: its flag is `--accel-NAME`, its variable PYTEST_ACCEL_NAME, its ini key accel_name."""

    target: str  # the field of Settings
    name: str
    parse: Callable[[str], Any]
    help: str
    metavar: str = ""
    kind: Literal["value", "flag", "optional"] = "value"
    const: str = ""  # of an optional value that was not given
    in_ini: bool = True

    @property
    def flag(self) -> str:
        return f"--accel-{self.name}"

    @property
    def key(self) -> str:
        return f"accel_{self.name.replace('-', '_')}"

    @property
    def variable(self) -> str:
        return f"PYTEST_{self.key.upper()}"

    def read(self, text: str, origin: str) -> Any:  # noqa: ANN401 - as many types as settings
        try:
            return self.parse(text)
        except ValueError as error:
            raise pytest.UsageError(f"{self.key}: {text!r} (from {origin}) {error}") from None


_CONSEQUENCE = parsing.choice("warn", "fail")
COLUMN_NAMES = (
    "data",
    "throughput",
    "noise",
    "step",
    "latency",
    "first-step",
    "warm-up",
    "loading",
    "epochs",
    "accuracy",
    "memory",
    "mfu",
    "roofline",
    "energy",
    "power",
    "clocks",
    "scaling",
)
COMPILE_MODES = (
    "default",
    "reduce-overhead",
    "max-autotune",
    "max-autotune-no-cudagraphs",
)  # of torch.compile
OPTIONS = (
    Option(
        target="record",
        name="record",
        kind="optional",
        const=str(RECORD_RUNS),
        metavar="RUNS",
        parse=parsing.count(1, MAX_RUNS, "Write --accel-record=5, or put paths before it."),
        in_ini=False,
        help=f"measure each selected benchmark in RUNS fresh processes (default {RECORD_RUNS}) and append them to its baseline",
    ),
    Option(
        target="update",
        name="update",
        kind="flag",
        parse=parsing.truth,
        in_ini=False,
        help="like --accel-record, but replace the baseline; needs --accel-reason",
    ),
    Option(
        target="reason",
        name="reason",
        metavar="TEXT",
        parse=str,
        in_ini=False,
        help="why the baseline moves; goes into its ledger",
    ),
    Option(
        target="require",
        name="require",
        kind="flag",
        parse=parsing.truth,
        help="missing hardware, and a session that measured nothing, are failures (for CI runners)",
    ),
    Option(
        target="tolerance",
        name="tolerance",
        metavar="FRACTION|auto",
        parse=parsing.tolerance,
        help="throughput loss that is tolerated, such as 5%% (default: the baseline's own, else 5%%); auto: what the "
        "recorded runs resolve, 3%% or more, frozen in the baseline",
    ),
    Option(
        target="gate",
        name="gate",
        metavar="METRICS",
        parse=parsing.gates,
        help="what is gated, such as throughput,energy or throughput,energy=8%%: a step that uses more energy at the same "
        "speed is a regression then (default: throughput alone, which is gated always)",
    ),
    Option(
        target="inconclusive",
        name="inconclusive",
        metavar="warn|fail",
        parse=_CONSEQUENCE,
        help="what a benchmark costs that stays undecided after all re-measurements (default warn)",
    ),
    Option(
        target="missing_baseline",
        name="missing-baseline",
        metavar="warn|fail",
        parse=_CONSEQUENCE,
        help="what a benchmark without a baseline costs (default warn)",
    ),
    Option(
        target="stale_baseline",
        name="stale-baseline",
        metavar="warn|fail",
        parse=_CONSEQUENCE,
        help="what a baseline of another configuration of the benchmark costs (default fail)",
    ),
    Option(
        target="vanished",
        name="vanished",
        metavar="warn|fail",
        parse=_CONSEQUENCE,
        help="what a benchmark costs that is stored in the baseline and was not found (default warn)",
    ),
    Option(
        target="baselines",
        name="baselines",
        metavar="DIR",
        parse=str,
        help="where baselines are, relative to the root directory (default baselines)",
    ),
    Option(
        target="budget_s",
        name="budget",
        metavar="SECONDS",
        parse=parse_seconds,
        help="time for the measured rounds of one benchmark (default 5 s; never fewer than 6 rounds)",
    ),
    Option(
        target="warmup_s",
        name="warmup",
        metavar="SECONDS",
        parse=parse_seconds,
        help="longest time to wait for steady steps (default 30 s)",
    ),
    Option(
        target="looks",
        name="looks",
        metavar="N",
        parse=parsing.count(1, 5),
        help="runs the gate may take for one verdict, the first included (default 5)",
    ),
    Option(
        target="within_s",
        name="within",
        metavar="TIME",
        parse=parse_seconds,
        help="measure again only while another look, as long as the longest so far, will be done within this time of the session, "
        "such as 20min, and first what lost most. All are measured once, however long that takes (default: no limit)",
    ),
    Option(
        target="threads",
        name="threads",
        metavar="N",
        parse=parsing.count(1, 4096),
        help="threads of a benchmark on the CPU (default 1: more are bimodal on shared machines)",
    ),
    Option(
        target="timeout_s",
        name="timeout",
        metavar="SECONDS",
        parse=parse_seconds,
        help="longest time for one benchmark in a gang or in a fresh process (default 10 min)",
    ),
    Option(
        target="rendezvous_s",
        name="rendezvous",
        metavar="SECONDS",
        parse=parse_seconds,
        help="longest time until all ranks of a gang have come together (default 2 min)",
    ),
    Option(
        target="bind",
        name="bind",
        metavar="auto|none",
        parse=parsing.choice("auto", "none"),
        help="bind each rank to the CPUs and the memory nearest to its device (default auto)",
    ),
    Option(
        target="lock",
        name="lock",
        metavar="wait|fail|off",
        parse=parsing.choice("wait", "fail", "off"),
        help="what to do while another session measures on the same device (default wait; off: measure beside it)",
    ),
    Option(
        target="data",
        name="data",
        metavar="DIR",
        parse=str,
        help="where real data sets lie, in their published layouts (default: none, data is synthetic)",
    ),
    Option(
        target="data_required",
        name="data-required",
        kind="flag",
        parse=parsing.truth,
        help="a benchmark whose real data is not there fails, and is not run on synthetic data",
    ),
    Option(
        target="compile",
        name="compile",
        metavar="auto|off|MODE",
        parse=parsing.choice("auto", "off", *COMPILE_MODES),
        help="how train and infer compile a model that does not say it itself (default auto: on accelerators)",
    ),
    Option(
        target="columns",
        name="columns",
        metavar="NAMES",
        parse=parsing.columns(*COLUMN_NAMES),
        help="columns of the table, in this order, such as throughput,step,mfu (default: all that have something in them, "
        "less power, clocks and roofline)",
    ),
    Option(
        target="references",
        name="reference",
        kind="flag",
        parse=parsing.truth,
        help="show what the studies published beside each result",
    ),
    Option(
        target="gate_reference",
        name="gate-reference",
        metavar="FRACTION",
        parse=parse_fraction,
        help="fail where throughput is lower by more than FRACTION than what was published for this platform",
    ),
    Option(
        target="report",
        name="report",
        metavar="FILE",
        parse=str,
        help="write an HTML page that explains this session, whole in one file (needs pytest-accel[report])",
    ),
    Option(
        target="json",
        name="json",
        metavar="FILE",
        parse=str,
        help="write all results as JSON, for `pytest-accel compare`, `report` and `baseline accept`; kept up to date after every run",
    ),
    Option(
        target="summary",
        name="summary",
        metavar="FILE",
        parse=str,
        help="write a Markdown summary (one goes to GITHUB_STEP_SUMMARY by itself where that is set)",
    ),
    Option(
        target="metrics",
        name="metrics",
        metavar="FILE",
        parse=str,
        help="write OpenMetrics text, for GitLab's metrics report",
    ),
    Option(
        target="history",
        name="history",
        metavar="FILE|off",
        parse=parsing.history,
        help="where every run is kept, relative to the root directory (default .accel/history.sqlite)",
    ),
    Option(
        target="gang",
        name="gang",
        kind="flag",
        parse=parsing.truth,
        in_ini=False,
        help="measure benchmarks of one device too in a process group, of one rank",
    ),
    Option(
        target="slowdown",
        name="slowdown",
        metavar="FRACTION",
        parse=parse_fraction,
        in_ini=False,
        help="really delay every step until throughput is lower by FRACTION: a way to see the gate work",
    ),
)
# What only a mark can say.
REFERENCE = Option(
    target="reference", name="reference", parse=str, in_ini=False, help="published figures beside a benchmark"
)
MARKER_KEYS = ("tolerance", "gate", "budget", "warmup", "timeout", "bind", "compile", "gang", "reference")
