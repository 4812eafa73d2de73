"""Commands: registration, shared arguments, and the settings of the project that they are called in.

Settings are found as a session of pytest started in the same folder finds them: option, variable, ini file, default. Options
in `addopts` are not read.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from _pytest.config.findpaths import determine_setup  # pytest's own search, which has no public name
from _pytest.mark import expression as grammar  # pytest's own, so that -k means the same

from pytest_accel.options import OPTIONS, Settings
from pytest_accel.platforms.catalogue import Catalogue, load_catalogue, project_table
from pytest_accel.storage.files import relative_path

CommandFunction = Callable[[argparse.Namespace], int]
Argument = tuple[tuple[str, ...], dict[str, Any]]  # of argparse's `add_argument`


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    name: tuple[str, ...]  # `baseline show` has two words
    run: CommandFunction
    arguments: tuple[Argument, ...]
    example: str  # what follows `pytest-accel`
    runs_pytest: bool = False  # what follows `--` goes to pytest

    @property
    def help(self) -> str:
        """The first line of the docstring, which fits a line of the list of commands."""
        return (self.run.__doc__ or "").splitlines()[0]


COMMANDS: dict[tuple[str, ...], Command] = {}
GROUPS: dict[str, str] = {}  # help of the first of two words


def command(
    *arguments: Argument, example: str, group: str = "", name: str = "", runs_pytest: bool = False
) -> Callable[[CommandFunction], CommandFunction]:
    """Register a function as the command of its name, or as the second word of a group."""

    def register(run: CommandFunction) -> CommandFunction:
        words = tuple(filter(None, (group, name or run.__name__)))
        COMMANDS[words] = Command(
            name=words, run=run, arguments=arguments, example=example, runs_pytest=runs_pytest
        )
        return run

    return register


def argument(*names: str, **options: Any) -> Argument:  # noqa: ANN401 -- argparse's own keywords
    return names, options


def parsed(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return the parser of a setting as argparse's `type=`."""

    def read(text: str) -> Any:  # noqa: ANN401 - as many types as settings
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} {error}") from None

    return read


# --- shared arguments and the project ---------------------------------------------------------------

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What a session of pytest started in the same folder would begin with."""

    root: Path  # node ids, baselines and the history are relative to it
    ini: Mapping[str, str]  # accel_* alone
    file: str  # its name, for errors


def baselines_folder(args: argparse.Namespace) -> Path:
    """Return the folder that `--baselines` names, else the one of a session started here."""
    path, origin = _locate("baselines", args.baselines)
    if path is None:
        raise ValueError(f"{origin} names no folder of baselines. Name one with --baselines.")
    return path


def history_file(args: argparse.Namespace) -> Path | None:
    """Return the file that `--history` names, else the one of a session started here; None where none is kept."""
    return _locate("history", args.history)[0]


def required_history(args: argparse.Namespace) -> Path:
    """Return the history file, or raise ValueError where none is kept."""
    path, origin = _locate("history", args.history)
    if path is None:
        raise ValueError(f"no history is kept here: {origin} says off. Name the file with --history.")
    return path


def data_folder(args: argparse.Namespace) -> Path | None:
    """Return the folder that `--data` names, else that of a session started here; None where there is none."""
    return _locate("data", args.data)[0]


def by_keyword(expression: str) -> Callable[[str], bool]:
    """Return whether `-k` selects a name, as a function; ValueError for what is no expression."""
    if not expression.strip():
        return lambda _name: True
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


def _locate(name: str, given: str | None) -> tuple[Path | None, str]:
    """Return the path of a setting, None where it is off, and who says so."""
    option = next(each for each in OPTIONS if each.name == name)
    here = base = Path.cwd()
    try:
        if given:
            value, origin = option.read(given, f"--{name}"), f"--{name}"
        else:
            project = find_project(here)
            base = project.root
            if option.variable in os.environ:
                value, origin = option.read(os.environ[option.variable], option.variable), option.variable
                base = here if name == "data" else base  # as in a session
            elif text := project.ini.get(option.key):
                value, origin = option.read(text, project.file), project.file
            else:
                value, origin = getattr(Settings(), option.field), "the default"
    except pytest.UsageError as error:
        raise ValueError(str(error)) from None
    return (relative_path(here, base / Path(value).expanduser()) if value else None), origin


def project_catalogue() -> Catalogue:
    """Return the catalogue with the platforms of the project."""
    return load_catalogue(project_table(find_project(Path.cwd()).root / "pyproject.toml"))


def find_project(start: Path) -> Project:
    """Return the root directory and the accel_* values that pytest finds when it is started in `start`."""
    arguments: dict[str, object] = {
        "inifile": None,
        "override_ini": None,  # since pytest 9
        "args": [],
        "rootdir_cmd_arg": None,
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
    # A value is a ConfigValue since pytest 9.
    ini = {key: str(getattr(each, "value", each)) for key, each in found.items() if key.startswith("accel_")}
    return Project(root=root, ini=ini, file=path.name if path else "the ini file")
