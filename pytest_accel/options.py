"""Options, environment variables, ini values and markers, resolved into one frozen `Settings`.

Marker > command line > environment > ini > default; every value remembers where it came from, so
that an error can say it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_accel.core.quantities import parse_fraction, parse_seconds
from pytest_accel.core.runs import MAX_RUNS, RECORD_RUNS

if TYPE_CHECKING:
    from collections.abc import Iterable

Consequence = Literal["warn", "fail"]

# Either is set where a launcher started this pytest, once for every rank: by torchrun, or by a step of Slurm's.
LAUNCHER_VARIABLES = frozenset({"RANK", "SLURM_STEP_NUM_TASKS"})

# Set by a session for the ranks that it starts; never by users.
GANG_VARIABLE = "PYTEST_ACCEL_GANG"  # what a rank is told; taken out of the environment when it is read
GANG_ID_VARIABLE = "PYTEST_ACCEL_GANG_ID"  # stays, so that everything a rank starts can be found and ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user asked for."""

    tolerance: float | None = None  # None: the baseline's own, else the gate's default
    budget_s: float = 5.0
    warmup_s: float = 30.0
    looks: int = 5
    threads: int = 1
    timeout_s: float = 600.0
    rendezvous_s: float = 120.0
    bind: Literal["auto", "none"] = "auto"
    data: str | None = None  # the root of real data sets
    data_required: bool = False
    compile: str = "auto"
    columns: tuple[str, ...] = ()  # of the table; none: all that have something in them
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
    def recording(self) -> bool:
        return self.record > 0


SETTINGS = pytest.StashKey[Settings]()


def _count(low: int, high: int, remedy: str = "") -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.strip().isdecimal() and low <= int(text) <= high):
            raise ValueError(f"is not a whole number from {low} to {high}. {remedy}".rstrip())
        return int(text)

    return parse


def _choice(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(f"is not one of: {', '.join(values)}.")
        return text

    return parse


def _names(*known: str) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            raise ValueError(f"is not a list of columns. Valid, separated by commas: {', '.join(known)}.")
        return names

    return parse


def _truth(text: str) -> bool:
    match text.strip().lower():
        case "1" | "true" | "yes" | "on":
            return True
        case "0" | "false" | "no" | "off" | "":
            return False
    raise ValueError("is not true or false.")


def _tolerance(text: str) -> float:
    value = parse_fraction(text)
    if not value:
        raise ValueError("leaves no room for noise. Write 0.05 or 5%.")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
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


_CONSEQUENCE = _choice("warn", "fail")
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
    "energy",
    "scaling",
)
COMPILE_MODES = (
    "default",
    "reduce-overhead",
    "max-autotune",
    "max-autotune-no-cudagraphs",
)  # of torch.compile
_OPTIONS = (
    _Option(
        target="record",
        name="record",
        kind="optional",
        const=str(RECORD_RUNS),
        metavar="RUNS",
        parse=_count(1, MAX_RUNS, "Write --accel-record=5, or put paths before it."),
        in_ini=False,
        help=f"measure each selected benchmark in RUNS fresh processes (default {RECORD_RUNS}) and append them to its baseline",
    ),
    _Option(
        target="update",
        name="update",
        kind="flag",
        parse=_truth,
        in_ini=False,
        help="like --accel-record, but replace the baseline; needs --accel-reason",
    ),
    _Option(
        target="reason",
        name="reason",
        metavar="TEXT",
        parse=str,
        in_ini=False,
        help="why the baseline moves; goes into its ledger",
    ),
    _Option(
        target="require",
        name="require",
        kind="flag",
        parse=_truth,
        help="missing hardware, and a session that measured nothing, are failures (for CI runners)",
    ),
    _Option(
        target="tolerance",
        name="tolerance",
        metavar="FRACTION",
        parse=_tolerance,
        help="throughput loss that is tolerated, such as 5%% (default: the baseline's own, else 5%%)",
    ),
    _Option(
        target="inconclusive",
        name="inconclusive",
        metavar="warn|fail",
        parse=_CONSEQUENCE,
        help="what a benchmark costs that stays undecided after all re-measurements (default warn)",
    ),
    _Option(
        target="missing_baseline",
        name="missing-baseline",
        metavar="warn|fail",
        parse=_CONSEQUENCE,
        help="what a benchmark without a baseline costs (default warn)",
    ),
    _Option(
        target="stale_baseline",
        name="stale-baseline",
        metavar="warn|fail",
        parse=_CONSEQUENCE,
        help="what a baseline of another configuration of the benchmark costs (default fail)",
    ),
    _Option(
        target="vanished",
        name="vanished",
        metavar="warn|fail",
        parse=_CONSEQUENCE,
        help="what a benchmark costs that stands in the baseline and was not found (default warn)",
    ),
    _Option(
        target="baselines",
        name="baselines",
        metavar="DIR",
        parse=str,
        help="where baselines are, relative to the root directory (default baselines)",
    ),
    _Option(
        target="budget_s",
        name="budget",
        metavar="SECONDS",
        parse=parse_seconds,
        help="time for the measured rounds of one benchmark (default 5 s; never fewer than 6 rounds)",
    ),
    _Option(
        target="warmup_s",
        name="warmup",
        metavar="SECONDS",
        parse=parse_seconds,
        help="longest time to wait for steady steps (default 30 s)",
    ),
    _Option(
        target="looks",
        name="looks",
        metavar="N",
        parse=_count(1, 5),
        help="runs the gate may take for one verdict, the first included (default 5)",
    ),
    _Option(
        target="threads",
        name="threads",
        metavar="N",
        parse=_count(1, 4096),
        help="threads of a benchmark on the CPU (default 1: more are bimodal on shared machines)",
    ),
    _Option(
        target="timeout_s",
        name="timeout",
        metavar="SECONDS",
        parse=parse_seconds,
        help="longest time for one benchmark in a gang or in a fresh process (default 10 min)",
    ),
    _Option(
        target="rendezvous_s",
        name="rendezvous",
        metavar="SECONDS",
        parse=parse_seconds,
        help="longest time until all ranks of a gang have come together (default 2 min)",
    ),
    _Option(
        target="bind",
        name="bind",
        metavar="auto|none",
        parse=_choice("auto", "none"),
        help="bind each rank to the CPUs and the memory nearest to its device (default auto)",
    ),
    _Option(
        target="data",
        name="data",
        metavar="DIR",
        parse=str,
        help="where real data sets lie, in their published layouts (default: none, data is synthetic)",
    ),
    _Option(
        target="data_required",
        name="data-required",
        kind="flag",
        parse=_truth,
        help="a benchmark whose real data is not there fails, and is not run on synthetic data",
    ),
    _Option(
        target="compile",
        name="compile",
        metavar="auto|off|MODE",
        parse=_choice("auto", "off", *COMPILE_MODES),
        help="how train and infer compile a model that does not say it itself (default auto: on accelerators)",
    ),
    _Option(
        target="columns",
        name="columns",
        metavar="NAMES",
        parse=_names(*COLUMN_NAMES),
        help="columns of the table, in this order, such as throughput,step,mfu (default: all that have something in them)",
    ),
    _Option(
        target="gang",
        name="gang",
        kind="flag",
        parse=_truth,
        in_ini=False,
        help="measure benchmarks of one device too in a process group, of one rank",
    ),
    _Option(
        target="slowdown",
        name="slowdown",
        metavar="FRACTION",
        parse=parse_fraction,
        in_ini=False,
        help="really delay every step until throughput is lower by FRACTION: a way to see the gate work",
    ),
)
_MARKER_KEYS = ("tolerance", "budget", "warmup", "timeout", "bind", "compile", "gang")


def add_options(parser: pytest.Parser) -> None:
    """Declare every setting as an option and, where it makes sense, as an ini value."""
    group = parser.getgroup("accel", "accelerator benchmarks (pytest-accel)")
    for option in _OPTIONS:
        match option.kind:
            case "flag":
                group.addoption(
                    option.flag, action="store_const", const="true", default=None, help=option.help
                )
            case "optional":
                group.addoption(
                    option.flag,
                    nargs="?",
                    const=option.const,
                    default=None,
                    metavar=option.metavar,
                    help=option.help,
                )
            case "value":
                group.addoption(option.flag, default=None, metavar=option.metavar, help=option.help)
        if option.in_ini:
            kind: Literal["bool", "string"] = "bool" if option.kind == "flag" else "string"
            parser.addini(option.key, option.help.replace("%%", "%"), type=kind, default=None)


def read_settings(config: pytest.Config, environ: Mapping[str, str] = os.environ) -> Settings:
    """Resolve all settings; a bad value is a usage error that names it, its origin and the remedy."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for option in _OPTIONS:
        found = _find(option, config, environ)
        if found is not None:
            text, origin = found
            values[option.target] = option.read(text, origin)
            origins[option.target] = origin
    return _complete(Settings(**values, origins=origins))


def _find(option: _Option, config: pytest.Config, environ: Mapping[str, str]) -> tuple[str, str] | None:
    on_command_line = config.getoption(option.flag, None)
    if on_command_line is not None:
        return str(on_command_line), option.flag
    if option.in_ini and option.variable in environ:
        return environ[option.variable], option.variable
    if option.in_ini:
        where = config.inipath.name if config.inipath else "the ini file"
        try:
            in_ini = config.getini(option.key)
        except (TypeError, ValueError) as error:  # pytest's own words, when TOML holds another type
            raise pytest.UsageError(f"{option.key} (from {where}): {error}") from None
        if in_ini not in (None, ""):
            return str(in_ini), where
    return None


def _complete(settings: Settings) -> Settings:
    if settings.update:
        if not settings.reason.strip():
            raise pytest.UsageError(
                "--accel-update replaces a baseline and needs a reason for its ledger: "
                '--accel-reason "cuDNN 9.19 is faster"'
            )
        settings = replace(settings, record=settings.record or RECORD_RUNS)
    if settings.reason and not settings.recording:
        raise pytest.UsageError("--accel-reason goes with --accel-record or --accel-update.")
    if settings.recording and settings.slowdown:
        raise pytest.UsageError(
            "--accel-slowdown would be recorded into the baseline. Record without it, then run with it."
        )
    return settings


def for_item(settings: Settings, markers: Iterable[pytest.Mark], node_id: str = "a test") -> Settings:
    """The settings of one benchmark: its `@pytest.mark.accel(...)` goes before everything else."""
    origin = f"@pytest.mark.accel of {node_id}"
    options = {option.name: option for option in _OPTIONS}
    values: dict[str, Any] = {}
    for mark in markers:  # closest first
        if mark.args:
            raise pytest.UsageError(f"{origin} takes keywords only: {', '.join(_MARKER_KEYS)}.")
        for key, value in mark.kwargs.items():
            if key not in _MARKER_KEYS:
                raise pytest.UsageError(
                    f"{origin}: {key}=... is unknown. It takes: {', '.join(_MARKER_KEYS)}."
                )
            option = options[key]
            values.setdefault(option.target, option.read(str(value), origin))
    origins = {**settings.origins, **dict.fromkeys(values, origin)}
    return replace(settings, **values, origins=origins)


def settings_of(item: pytest.Item) -> Settings:
    """The settings of an item: the session's, and what its own mark says."""
    return for_item(item.config.stash[SETTINGS], item.iter_markers("accel"), item.nodeid)


def data_root(settings: Settings, config: pytest.Config) -> Path | None:
    """The directory of real data sets, which exists; relative to where pytest was called, or to the ini file."""
    if settings.data is None:
        return None
    from_ini = config.inipath is not None and settings.origin("data") == config.inipath.name
    base = config.rootpath if from_ini else config.invocation_params.dir
    root = (base / Path(settings.data).expanduser()).resolve()
    if not root.is_dir():
        raise pytest.UsageError(
            f"accel_data: {root} (from {settings.origin('data')}) is not a folder. "
            "Name the one that holds the data sets, or leave it out to measure on synthetic data."
        )
    return root


def baselines_root(settings: Settings, rootpath: Path) -> Path:
    """The directory of baselines."""
    return (rootpath / Path(settings.baselines).expanduser()).resolve()
