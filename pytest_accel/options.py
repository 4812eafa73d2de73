"""Options, environment variables, ini values and markers, resolved into one frozen `Settings`.

Marker > command line > environment > ini > default; every value remembers where it came from, so
that an error can say it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_accel.settings import MARKER_KEYS, OPTIONS, REFERENCE, Option, Settings
from pytest_accel.stats.runs import RECORD_RUNS

if TYPE_CHECKING:
    from collections.abc import Iterable

# Either is set where a launcher started this pytest, once for every rank: by torchrun, or by a step of Slurm's.
LAUNCHER_VARIABLES = frozenset({"RANK", "SLURM_STEP_NUM_TASKS"})

# Set by a session for the ranks that it starts; never by users.
GANG_VARIABLE = "PYTEST_ACCEL_GANG"  # what a rank is told; taken out of the environment when it is read
GANG_ID_VARIABLE = "PYTEST_ACCEL_GANG_ID"  # stays, so that everything a rank starts can be found and ended

SETTINGS = pytest.StashKey[Settings]()
BEGUN_S = pytest.StashKey[float]()  # when the session began, by the clock that only goes on


def add_options(parser: pytest.Parser) -> None:
    """Declare every setting as an option and, where it makes sense, as an ini value."""
    group = parser.getgroup("accel", "accelerator benchmarks (pytest-accel)")
    for option in OPTIONS:
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
    for option in OPTIONS:
        found = _find(option, config, environ)
        if found is not None:
            text, origin = found
            values[option.target] = option.read(text, origin)
            origins[option.target] = origin
    return _complete(Settings(**values, origins=origins))


def _find(option: Option, config: pytest.Config, environ: Mapping[str, str]) -> tuple[str, str] | None:
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
    options = {option.name: option for option in (*OPTIONS, REFERENCE)}
    values: dict[str, Any] = {}
    for mark in markers:  # closest first
        if mark.args:
            raise pytest.UsageError(f"{origin} takes keywords only: {', '.join(MARKER_KEYS)}.")
        for key, value in mark.kwargs.items():
            if key not in MARKER_KEYS:
                raise pytest.UsageError(
                    f"{origin}: {key}=... is unknown. It takes: {', '.join(MARKER_KEYS)}."
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


def file_to_write(named: str, config: pytest.Config) -> Path:
    """A file that the session is to leave, relative to where pytest was called."""
    return (config.invocation_params.dir / Path(named).expanduser()).absolute()


def history_file(settings: Settings, rootpath: Path) -> Path | None:
    """Where runs are kept; None where they are not to be."""
    return (rootpath / Path(settings.history).expanduser()).absolute() if settings.history else None


def baselines_root(settings: Settings, rootpath: Path) -> Path:
    """The directory of baselines."""
    return (rootpath / Path(settings.baselines).expanduser()).resolve()
