"""The project that a command was called in, as pytest itself finds it: its root directory and its settings of ours."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

PREFIX = "accel_"
_ADDOPTS = "PYTEST_ADDOPTS"
_NO_FILE = "the ini file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What a session of pytest that is called in the same folder would begin with."""

    root: Path  # node ids, baselines and the history are relative to it
    ini: Mapping[str, str] = field(default_factory=dict)  # accel_* alone
    options: Mapping[str, str] = field(default_factory=dict)  # of addopts and PYTEST_ADDOPTS, by the ini key
    file: str = _NO_FILE  # its name, for errors


def find_project(start: Path, environ: Mapping[str, str] = os.environ) -> Project:
    """The root directory and the accel_* values that pytest finds when it is called in `start`.

    ValueError where pytest could not read the project either.
    """
    words = _split(environ.get(_ADDOPTS, ""), _ADDOPTS)
    called = _parsed(words, _ADDOPTS)
    root, path, found = _setup(start, called)
    where = path.name if path else _NO_FILE
    ini = {key: _text(key, value, where) for key, value in found.items() if key.startswith(PREFIX)}
    addopts = _value(found.get("addopts", ""))
    if not isinstance(addopts, list):
        addopts = _split(str(addopts), f"addopts of {where}")
    options = vars(_parsed([*map(str, addopts), *words], f"addopts of {where}"))
    return Project(
        root=root,
        ini=ini | dict(each.split("=", 1) for each in called.override_ini if each.startswith(PREFIX)),
        options={
            key: value for key, value in options.items() if key.startswith(PREFIX) and value is not None
        },
        file=where,
    )


def _setup(start: Path, called: argparse.Namespace) -> tuple[Path, Path | None, dict[str, Any]]:
    """pytest's own search, which no public name offers; a copy of it would be wrong with the next release."""
    from inspect import signature

    import pytest
    from _pytest.config.findpaths import determine_setup

    named: dict[str, object] = {
        "inifile": str(start / called.inifile) if called.inifile else None,
        "override_ini": None,  # since pytest 9
        "args": [],
        "rootdir_cmd_arg": str(start / os.path.expandvars(called.rootdir)) if called.rootdir else None,
        "invocation_dir": start,
    }
    known = signature(determine_setup).parameters
    search: Any = determine_setup
    try:
        root, path, found, *_ = search(**{name: value for name, value in named.items() if name in known})
    except (
        *(pytest.UsageError, pytest.fail.Exception),  # what pytest says itself
        *(OSError, ValueError, TypeError, AttributeError),  # what it breaks of: [tool] pytest = 3
    ) as error:
        raise ValueError(
            f"{start}: pytest's configuration cannot be read: {error}. Mend it, or name what the project says "
            "(--baselines, --history)."
        ) from None
    return root, path, found


def _text(key: str, found: object, where: str) -> str:
    """A value as text; what a session would refuse in TOML's own types is refused here."""
    from pytest_accel.options import OPTIONS

    value = _value(found)
    is_flag = any(option.key == key and option.kind == "flag" for option in OPTIONS)
    if not isinstance(value, str) and not (is_flag and isinstance(value, bool)):
        raise ValueError(f"{key} (from {where}) is {value!r}, which is no text. Write it in quotation marks.")
    return str(value)


def _value(found: object) -> object:
    return getattr(found, "value", found)  # since pytest 9 it stands in a ConfigValue


# --- what pytest is always called with ----------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _parsed(words: Sequence[str], where: str) -> argparse.Namespace:
    """Those options that say where things are; all others are passed over."""
    from pytest_accel.options import OPTIONS

    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("-c", "--config-file", dest="inifile")
    parser.add_argument("--rootdir")
    parser.add_argument("-o", "--override-ini", action="append", default=[])
    for option in OPTIONS:
        if option.kind == "value":
            parser.add_argument(option.flag, dest=option.key)
    try:
        return parser.parse_known_args(list(words))[0]
    except ValueError as error:
        raise ValueError(f"{where}: {error}. Write it as pytest's command line.") from None


def _split(text: str, where: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{where}: {text!r} has {str(error).lower()}. Write it as a shell would.") from None
