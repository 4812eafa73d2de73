"""Settings of the project that a command is called in: root directory, ini values, shared arguments.

They are found as a session of pytest started in the same folder finds them: option, addopts, variable, ini file, default.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from pytest_accel.commands.registry import Argument, argument

BASELINES: Argument = argument(
    "--baselines", metavar="DIR", help="the folder of baselines (as pytest finds it)"
)
HISTORY: Argument = argument("--history", metavar="FILE", help="the history (as pytest finds it)")
KEYWORD: Argument = argument(
    "-k",
    dest="keyword",
    default="",
    metavar="EXPR",
    help="benchmarks by name, as pytest's -k: 'resnet50 and not fp32'",
)
_PREFIX = "accel_"
_ADDOPTS = "PYTEST_ADDOPTS"
_NO_FILE = "the ini file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What a session of pytest started in the same folder would begin with."""

    root: Path  # node ids, baselines and the history are relative to it
    ini: Mapping[str, str] = field(default_factory=dict)  # accel_* alone
    options: Mapping[str, str] = field(default_factory=dict)  # of addopts and PYTEST_ADDOPTS, by ini key
    file: str = _NO_FILE  # its name, for errors


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    value: Any
    origin: str
    root: Path  # what a relative path is relative to
    is_from_file: bool = False


def baselines_folder(args: argparse.Namespace) -> Path:
    """Return the folder that `--baselines` names, else the one of a session started here."""
    if args.baselines:
        return Path(args.baselines).expanduser()
    found = _setting("baselines")
    return _from_here(found.root / Path(found.value).expanduser())


def history_file(args: argparse.Namespace) -> Path | None:
    """Return the file that `--history` names, else the one of a session started here; None where none is kept."""
    found = _setting("history", args.history)
    return _from_here(found.root / Path(found.value).expanduser()) if found.value else None


def required_history(args: argparse.Namespace) -> Path:
    """Return the history file, or raise ValueError where none is kept."""
    path = history_file(args)
    if path is None:
        origin = _setting("history", args.history).origin
        raise ValueError(f"no history is kept here: {origin} says off. Name the file with --history.")
    return path


def data_folder(args: argparse.Namespace) -> Path | None:
    """Return the folder that `--data` names, else that of a session started here; None where there is none."""
    found = _setting("data", args.data)
    if found.value is None:
        return None
    # As in a session: a file's value is relative to its folder, an option's to the current one.
    base = found.root if found.is_from_file else Path.cwd()
    return _from_here(base / Path(found.value).expanduser())


def by_keyword(expression: str) -> Callable[[str], bool]:
    """Return whether `-k` selects a name, as a function; ValueError for what is no expression."""
    if not expression.strip():
        return lambda _name: True
    # pytest's own grammar, so that -k means the same.
    from _pytest.mark import expression as grammar

    refusal = getattr(grammar, "ParseError", SyntaxError)  # a class of its own in pytest 8
    try:
        compiled = grammar.Expression.compile(expression)
    except (refusal, SyntaxError, ValueError) as error:
        raise ValueError(f"-k {expression!r} is no expression: {error}. Write it as pytest's -k.") from None

    def wanted(name: str) -> bool:
        def is_in(word: str, /, **_: str | int | bool | None) -> bool:
            return word.lower() in name.lower()

        return compiled.evaluate(is_in)

    return wanted


def _setting(name: str, given: str | None = None) -> _Setting:
    import pytest

    from pytest_accel.options import OPTIONS, Settings

    option = next(each for each in OPTIONS if each.name == name)
    try:
        if given:
            return _Setting(value=option.read(given, f"--{name}"), origin=f"--{name}", root=Path.cwd())
        project = find_project(Path.cwd())
        for text, origin in (
            (project.options.get(option.key), "addopts"),
            (os.environ.get(option.variable), option.variable),
            (project.ini.get(option.key) or None, project.file),
        ):
            if text is not None:
                return _Setting(
                    value=option.read(text, origin),
                    origin=origin,
                    root=project.root,
                    is_from_file=origin == project.file,
                )
    except pytest.UsageError as error:
        raise ValueError(str(error)) from None
    return _Setting(value=getattr(Settings(), option.field), origin="the default", root=project.root)


def _from_here(path: Path) -> Path:
    from pytest_accel.storage.files import relative_path

    return relative_path(Path.cwd(), path)


# --- pytest's configuration -------------------------------------------------------------------------


def find_project(start: Path, environ: Mapping[str, str] = os.environ) -> Project:
    """Return the root directory and the accel_* values that pytest finds when it is started in `start`.

    ValueError where pytest could not read the project either.
    """
    words = _split(environ.get(_ADDOPTS, ""), _ADDOPTS)
    called = _parse(words, _ADDOPTS)
    root, path, found = _determine_setup(start, called)
    where = path.name if path else _NO_FILE
    ini = {key: _text(key, value, where) for key, value in found.items() if key.startswith(_PREFIX)}
    addopts = _value(found.get("addopts", ""))
    if not isinstance(addopts, list):
        addopts = _split(str(addopts), f"addopts of {where}")
    options = vars(_parse([*map(str, addopts), *words], f"addopts of {where}"))
    return Project(
        root=root,
        ini=ini | dict(each.split("=", 1) for each in called.override_ini if each.startswith(_PREFIX)),
        options={
            name: value for name, value in options.items() if name.startswith(_PREFIX) and value is not None
        },
        file=where,
    )


def _determine_setup(start: Path, called: argparse.Namespace) -> tuple[Path, Path | None, dict[str, Any]]:
    """Call pytest's own search, which has no public name."""
    from inspect import signature

    import pytest
    from _pytest.config.findpaths import determine_setup

    arguments: dict[str, object] = {
        "inifile": str(start / called.inifile) if called.inifile else None,
        "override_ini": None,  # since pytest 9
        "args": [],
        "rootdir_cmd_arg": str(start / os.path.expandvars(called.rootdir)) if called.rootdir else None,
        "invocation_dir": start,
    }
    known = signature(determine_setup).parameters
    search: Any = determine_setup
    try:
        root, path, found, *_ = search(**{name: value for name, value in arguments.items() if name in known})
    except (
        *(pytest.UsageError, pytest.fail.Exception),  # what pytest reports itself
        *(OSError, ValueError, TypeError, AttributeError),  # what it stumbles over: [tool] pytest = 3
    ) as error:
        raise ValueError(
            f"{start}: pytest's configuration cannot be read: {error}. Correct it, or name what the project says "
            "(--baselines, --history)."
        ) from None
    return root, path, found


def _text(key: str, found: object, where: str) -> str:
    """Return a value as text; refuse the types that a session would refuse."""
    from pytest_accel.options import OPTIONS

    value = _value(found)
    is_flag = any(option.key == key and option.kind == "flag" for option in OPTIONS)
    if not isinstance(value, str) and not (is_flag and isinstance(value, bool)):
        raise ValueError(f"{key} (from {where}) is {value!r}, which is no text. Write it in quotation marks.")
    return str(value)


def _value(found: object) -> object:
    return getattr(found, "value", found)  # a ConfigValue since pytest 9


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _parse(words: Sequence[str], where: str) -> argparse.Namespace:
    """Return the options that say where things are; all others are ignored."""
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
