"""Settings of a session: one table of options, variables, ini keys and marker keys, read into `Settings`.

Marker > command line > environment > ini > default; every value keeps its origin for error messages.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_accel.stats import quantities
from pytest_accel.stats.run import MAX_RUNS, RECORD_RUNS

# One of them is set where a launcher started this pytest, once for every rank: by torchrun, or by a Slurm step.
LAUNCHER_VARIABLES = frozenset({"RANK", "SLURM_STEP_NUM_TASKS"})

# Set by a session for the ranks that it starts; never by users.
WORKER_VARIABLE = "PYTEST_ACCEL_WORKER"  # what a rank must know; removed from the environment when it is read
# Stays, so that all processes that a rank starts can be found and ended.
GROUP_ID_VARIABLE = "PYTEST_ACCEL_GROUP_ID"
SECRET_VARIABLE = "PYTEST_ACCEL_SECRET"  # noqa: S105 - a name; that launcher ranks share, where they share no folder
# The last is read by measure.locks.
_NO_SETTINGS = {WORKER_VARIABLE, GROUP_ID_VARIABLE, SECRET_VARIABLE, "PYTEST_ACCEL_LOCKS"}

# Of torch.compile
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
REPORT_FORMATS = {".html": "report", ".md": "summary"}  # by suffix


@dataclass(frozen=True, slots=True)
class Option:
    """How a setting is written: its flag is `--accel-NAME`, its variable PYTEST_ACCEL_NAME, its ini key accel_name."""

    parse: Callable[[str], Any]
    help: str
    metavar: str = ""
    name: str = ""
    field: str = ""  # of Settings
    kind: Literal["value", "flag", "optional", "list"] = "value"
    const: str = ""  # of an optional value that was not given
    on_command_line: bool = True
    in_ini: bool = True  # and in the environment
    in_marker: bool = False

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


def _option(default: object, parse: Callable[[str], Any], text: str, metavar: str = "", **how: Any) -> Any:  # noqa: ANN401
    option = Option(parse, text, metavar, **how)
    if default is dict:
        return dataclasses.field(default_factory=dict, metadata={"option": option})
    return dataclasses.field(default=default, metadata={"option": option})


_IN_MARKER_ONLY: dict[str, Any] = {"on_command_line": False, "in_ini": False, "in_marker": True}


def _flag(text: str, **how: Any) -> Any:  # noqa: ANN401
    return _option(default=False, parse=quantities.parse_truth, text=text, kind="flag", **how)


def _seconds(default: float | None, text: str, metavar: str = "SECONDS", **how: Any) -> Any:  # noqa: ANN401
    return _option(default, quantities.parse_seconds, text, metavar, **how)


def _choice(default: str, text: str, *values: str, **how: Any) -> Any:  # noqa: ANN401
    return _option(default, quantities.parse_choice(*values), text, "|".join(values), **how)


def _consequence(default: str, of: str) -> Any:  # noqa: ANN401
    return _choice(default, f"consequence of {of} (default {default})", "warn", "fail")


def _parse_references(text: str) -> float | Literal["show"]:
    if text == "show":
        return "show"
    try:
        return quantities.parse_fraction(text)
    except ValueError as error:
        raise ValueError(f"{error} Write --accel-reference=10%, or put paths before it.") from None


def _parse_reports(text: str) -> tuple[str, ...]:
    files = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    if not files or any(Path(file).suffix.lower() not in REPORT_FORMATS for file in files):
        raise ValueError(
            "is no file of a known format. Write a name that ends in .html (a page) or .md (a Markdown summary); "
            "several are separated by commas."
        )
    return files


def _parse_gates(text: str) -> dict[str, float | None]:
    from pytest_accel.stats.metric_gates import parse_gates  # the gate itself: not needed at every start

    return parse_gates(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Resolved settings of a session, or of one benchmark."""

    record: int = _option(  # runs to record; 0 measures and judges
        0,
        quantities.parse_count(1, MAX_RUNS, "Write --accel-record=5, or put paths before it."),
        f"measure each benchmark in RUNS fresh processes (default {RECORD_RUNS}) and append them to its baseline",
        "RUNS",
        kind="optional",
        const=str(RECORD_RUNS),
        in_ini=False,
    )
    update: bool = _flag("like --accel-record, but replace the baseline; needs --accel-reason", in_ini=False)
    reason: str = _option("", str, "why the baseline changes; stored in its ledger", "TEXT", in_ini=False)
    require: bool = _flag(
        "missing hardware, data that --accel-data does not hold, and a session that measured nothing are failures "
        "(for CI runners)"
    )
    # None: the baseline's own, else the gate's default; auto: the same, and a recording stores one that its runs resolve.
    tolerance: float | Literal["auto"] | None = _option(
        None,
        quantities.parse_tolerance,
        "tolerated loss of throughput, such as 5%% (default: the baseline's own, else 5%%); auto: what the "
        "recorded runs resolve, 3%% or more, stored in the baseline",
        "FRACTION|auto",
        in_marker=True,
    )
    # Metrics gated beside throughput, with the tolerance of each; None: the tolerance above, else 5 %.
    gate: Mapping[str, float | None] = _option(
        dict,
        _parse_gates,
        "metrics to gate, such as throughput,energy=8%% (default: throughput, which is always gated)",
        "METRICS",
        in_marker=True,
    )
    inconclusive: Literal["warn", "fail"] = _consequence(
        "warn", "a benchmark that stays undecided after all repeats, or whose tolerance is no gate"
    )
    missing_baseline: Literal["warn", "fail"] = _consequence("warn", "a benchmark without a baseline")
    stale_baseline: Literal["warn", "fail"] = _consequence(
        "fail", "a baseline of another configuration of the benchmark"
    )
    vanished: Literal["warn", "fail"] = _consequence(
        "warn", "a benchmark that has a baseline and was not collected"
    )
    baselines: str = _option(
        "baselines", str, "folder of baselines, relative to the root directory (default baselines)", "DIR"
    )
    budget_s: float = _seconds(
        5.0,
        "time for the measured rounds of one benchmark (default 5 s; never fewer than 6 rounds)",
        in_marker=True,
    )
    warmup_s: float = _seconds(
        30.0, "longest time to wait for steady steps (default 30 s)", on_command_line=False, in_marker=True
    )
    repeats: int = _option(
        5,
        quantities.parse_count(1, 5),
        "runs that the gate may take for one verdict, the first included (default 5)",
        "N",
    )
    within_s: float | None = _seconds(
        None,
        "begin no repeat that would end later than this in the session, such as 20min, and repeat first what lost "
        "most; every benchmark is measured once (default: no limit)",
        "TIME",
    )
    timeout_s: float = _seconds(
        600.0, "longest time for one run of a benchmark (default 10 min)", in_marker=True
    )
    rendezvous_s: float = _seconds(
        120.0,
        "longest time until all ranks of a process group are connected (default 2 min)",
        on_command_line=False,
    )
    threads: int = _option(
        1,
        quantities.parse_count(1, 4096),
        "threads of a benchmark on the CPU (default 1: more are bimodal on shared machines)",
        "N",
        on_command_line=False,
    )
    bind: Literal["auto", "none"] = _choice(
        "auto",
        "bind each rank to the CPUs nearest to its device (default auto)",
        *("auto", "none"),
        on_command_line=False,
        in_marker=True,
    )
    lock: Literal["wait", "fail", "off"] = _choice(
        "wait",
        "while another session measures on the same GPU: wait (default), fail, or measure beside it (off)",
        *("wait", "fail", "off"),
        on_command_line=False,
    )
    data: str | None = _option(
        None,
        str,
        "folder of real data sets, in their published layouts (default: none, data is synthetic)",
        "DIR",
    )
    compile: str = _option(
        "auto",
        quantities.parse_choice("auto", "off", *COMPILE_MODES),
        "how train and infer compile a model (default auto: on accelerators)",
        "auto|off|MODE",
        in_marker=True,
    )
    references: float | Literal["show"] | None = _option(  # a fraction also gates published throughputs
        None,
        _parse_references,
        "show published figures beside each result; with FRACTION, fail where throughput is lower by more than that "
        "than the one published for this platform",
        "FRACTION",
        name="reference",
        kind="optional",
        const="show",
    )
    reports: tuple[str, ...] = _option(  # files, by suffix, relative to where pytest was called
        (),
        _parse_reports,
        "write a report; its suffix is its format: .html (a page; needs jinja2 and plotly) or .md (Markdown). "
        "Repeatable",
        "FILE",
        name="report",
        kind="list",
    )
    json: str = _option(
        "",
        str,
        "write all results as JSON, for `pytest-accel compare` and `report`; updated after every run",
        "FILE",
    )
    history: str = _option(  # empty: none is kept
        ".accel/history.sqlite",
        lambda text: "" if text.strip().lower() in ("off", "none") else text,
        "database of all runs, relative to the root directory (default .accel/history.sqlite)",
        "FILE|off",
    )
    slowdown: float = _option(
        0.0,
        quantities.parse_fraction,
        "delay every step until throughput is lower by FRACTION, to see the gate fail",
        "FRACTION",
        in_ini=False,
    )
    in_process: bool = _flag(
        "measure benchmarks of one device in pytest's own process, for debugging; --pdb and --trace imply it",
        in_ini=False,
    )
    process_group: bool = _flag(
        "measure in a process group even on one device", name="process_group", **_IN_MARKER_ONLY
    )
    reference: str = _option("", str, "published figures of this benchmark", **_IN_MARKER_ONLY)
    origins: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def origin(self, name: str) -> str:
        return self.origins.get(name, "the default")

    @property
    def fixed_tolerance(self) -> float | None:
        return None if self.tolerance == "auto" else self.tolerance

    @property
    def gate_reference(self) -> float | None:
        """The tolerated shortfall against a published throughput of this platform, where one was given."""
        return None if self.references == "show" else self.references

    @property
    def output_files(self) -> tuple[tuple[str, str], ...]:
        json = (("json", self.json),) if self.json else ()
        return (*(("report", file) for file in self.reports), *json)


SETTINGS = pytest.StashKey[Settings]()
SESSION_START_S = pytest.StashKey[float]()  # time.monotonic()
_ALL: tuple[Option, ...] = tuple(
    replace(option, name=option.name or field.name.removesuffix("_s").replace("_", "-"), field=field.name)
    for field in fields(Settings)
    if (option := field.metadata.get("option"))
)
OPTIONS = tuple(option for option in _ALL if option.on_command_line or option.in_ini)
MARKER_OPTIONS = {option.name: option for option in _ALL if option.in_marker}
MARKER_KEYS = tuple(MARKER_OPTIONS)


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("accel", "accelerator benchmarks (pytest-accel)")
    for option in OPTIONS:
        if option.on_command_line:
            arguments: dict[str, Any] = {"metavar": option.metavar}
            match option.kind:
                case "flag":
                    arguments = {"action": "store_const", "const": "true"}
                case "optional":
                    arguments |= {"nargs": "?", "const": option.const}
                case "list":
                    arguments |= {"action": "append"}
            group.addoption(option.flag, default=None, help=option.help, **arguments)
        if option.in_ini:
            kind: Literal["bool", "string"] = "bool" if option.kind == "flag" else "string"
            parser.addini(option.key, option.help.replace("%%", "%"), type=kind, default=None)


def read_settings(config: pytest.Config, environ: Mapping[str, str] = os.environ) -> Settings:
    """Resolve all settings; a bad value is a usage error that names it, its origin and the remedy."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for option in OPTIONS:
        found = _find(option, config, environ)
        if found is not None:
            text, origin = found
            values[option.field] = option.read(text, origin)
            origins[option.field] = origin
    _refuse_unknown_names(config, environ)
    settings = Settings(**values, origins=origins)
    if settings.update:
        settings = replace(settings, record=settings.record or RECORD_RUNS)
    _refuse_contradictions(settings)
    asked = settings.require or any(origins.get(name, "").startswith("--") for name in ("json", "reports"))
    if asked and config.getoption("dist", "no") != "no":  # of xdist
        raise pytest.UsageError(
            "--accel-require, --accel-json and --accel-report are of benchmarks, which do not run under xdist: add -n 0."
        )
    return settings


def _find(option: Option, config: pytest.Config, environ: Mapping[str, str]) -> tuple[str, str] | None:
    given = config.getoption(option.flag, None) if option.on_command_line else None
    if given is not None:
        return ",".join(given) if isinstance(given, list) else str(given), option.flag
    if not option.in_ini:
        return None
    if option.variable in environ:
        return environ[option.variable], option.variable
    where = config.inipath.name if config.inipath else "the ini file"
    try:
        in_ini = config.getini(option.key)
    except (TypeError, ValueError) as error:  # TOML holds another type
        raise pytest.UsageError(f"{option.key} (from {where}): {error}") from None
    return None if in_ini in (None, "") else (str(in_ini), where)


def _refuse_unknown_names(config: pytest.Config, environ: Mapping[str, str]) -> None:
    """Refuse variables and ini keys of our prefix that would set nothing: a gate would be another than the one asked for."""
    settable = [option for option in OPTIONS if option.in_ini]
    variables = {name for name in environ if name.startswith("PYTEST_ACCEL_")} - _NO_SETTINGS
    # pytest 9 warns of whoever reads `inicfg`, and has nothing else that lists the keys.
    written: Iterable[str] = config._inicfg if hasattr(config, "_inicfg") else config.inicfg  # noqa: SLF001
    keys = {name for name in written if name.startswith("accel_")}
    known = {name for option in settable for name in (option.variable, option.key)}
    for name in sorted((variables | keys) - known):
        if unsettable := next((each for each in OPTIONS if name in (each.variable, each.key)), None):
            raise pytest.UsageError(f"{name}: it is no setting. Write {unsettable.flag} on the command line.")
        if name in keys and _is_declared(config, name):  # another plugin's
            continue
        plain = name.lower().removeprefix("pytest_").removeprefix("accel_")
        hint = quantities.did_you_mean(plain, [option.key.removeprefix("accel_") for option in settable])
        raise pytest.UsageError(
            f"{name}: there is no such setting.{hint} Take it out: then `pytest --help` lists all."
        )


def _is_declared(config: pytest.Config, key: str) -> bool:
    with suppress(ValueError):
        config.getini(key)
        return True
    return False


def _refuse_contradictions(settings: Settings) -> None:
    if settings.update and not settings.reason.strip():
        raise pytest.UsageError(
            "--accel-update replaces a baseline and needs a reason for its ledger: "
            '--accel-reason "cuDNN 9.19 is faster"'
        )
    if settings.reason and not settings.record:
        raise pytest.UsageError("--accel-reason goes with --accel-record or --accel-update.")
    if settings.slowdown and settings.record:
        raise pytest.UsageError(
            "--accel-slowdown would be recorded into the baseline. Record without it, then run with it."
        )


def for_item(settings: Settings, markers: Iterable[pytest.Mark], node_id: str = "a test") -> Settings:
    """Return the settings of one benchmark: its `@pytest.mark.accel(...)` goes before everything else."""
    origin = f"@pytest.mark.accel of {node_id}"
    values: dict[str, Any] = {}
    for mark in markers:  # closest first
        if mark.args:
            raise pytest.UsageError(f"{origin} takes keywords only: {', '.join(MARKER_KEYS)}.")
        for key, value in mark.kwargs.items():
            if key not in MARKER_KEYS:
                raise pytest.UsageError(
                    f"{origin}: {key}=... is unknown. It takes: {', '.join(MARKER_KEYS)}."
                )
            option = MARKER_OPTIONS[key]
            values.setdefault(option.field, option.read(str(value), origin))
    origins = {**settings.origins, **dict.fromkeys(values, origin)}
    return replace(settings, **values, origins=origins)


def settings_of(item: pytest.Item) -> Settings:
    return for_item(item.config.stash[SETTINGS], item.iter_markers("accel"), item.nodeid)


def data_root(settings: Settings, config: pytest.Config) -> Path | None:
    """Return the existing folder of real data sets; relative to where pytest was called, or to the ini file."""
    if settings.data is None:
        return None
    from_ini = config.inipath is not None and settings.origin("data") == config.inipath.name
    base = config.rootpath if from_ini else config.invocation_params.dir
    root = (base / Path(settings.data).expanduser()).resolve()
    if not os.path.isdir(root):  # noqa: PTH112 - Path.is_dir() raises where a name is too long
        raise pytest.UsageError(
            f"accel_data: {root} (from {settings.origin('data')}) is not a folder. "
            "Name the one that holds the data sets, or leave it out to measure on synthetic data."
        )
    return root


def ignore_values_in_root(config: pytest.Config) -> None:
    """Keep the values of our options out of pytest's search for the root directory.

    Without an ini file that is the common folder of all words which exist as paths, of `--accel-json ../out/a.json` from the
    second session on, since pytest searches before it knows the options of plugins. Node ids, and so baselines, would change.
    """
    known = config.known_args_namespace
    ours = any(getattr(known, option.key, None) for option in OPTIONS if option.on_command_line)
    if not ours or config.inipath is not None or known.rootdir:
        return
    called = config.invocation_params.dir
    paths = [path for each in known.file_or_dir if (path := called / each.partition("::")[0]).exists()]
    folders = [path if path.is_dir() else path.parent for path in paths] or [called]
    tests = Path(os.path.commonpath([os.path.normpath(folder) for folder in folders]))
    common = Path(os.path.commonpath([called, tests]))
    set_up = (folder for folder in (tests, *tests.parents) if (folder / "setup.py").is_file())
    root = next(set_up, tests if common == Path(common.anchor) else common)
    config._rootpath = root  # noqa: SLF001 - nothing public sets it


def file_to_write(named: str, config: pytest.Config) -> Path:
    return (config.invocation_params.dir / Path(named).expanduser()).absolute()


def history_file(settings: Settings, rootpath: Path) -> Path | None:
    return (rootpath / Path(settings.history).expanduser()).absolute() if settings.history else None


def baselines_root(settings: Settings, rootpath: Path) -> Path:
    return (rootpath / Path(settings.baselines).expanduser()).resolve()
