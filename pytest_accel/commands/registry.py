"""Commands: registration, shared arguments, and the settings of the project that they are called in.

Settings are found as a session of pytest started in the same folder finds them: option, variable, ini file, default. Options
in `addopts` are not read.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
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

PARSER = argparse.ArgumentParser(
    prog="pytest-accel",
    description="Accelerator benchmarks as tests.",
    epilog="pytest itself measures: `pytest --accel-record` stores a baseline, `pytest` judges against it. "
    "`pytest-accel COMMAND --help` ends with an example.",
)
PARSER.set_defaults(parser=PARSER)
COMMANDS: dict[tuple[str, ...], argparse.ArgumentParser] = {}  # `baseline show` has two words
_SUBPARSERS = {"": PARSER.add_subparsers(metavar="COMMAND")}  # by the first of two words


def add_group(name: str, about: str) -> None:
    parser = _SUBPARSERS[""].add_parser(name, help=about, description=about)
    parser.set_defaults(parser=parser)
    _SUBPARSERS[name] = parser.add_subparsers(metavar="COMMAND")


def command(
    *arguments: Argument, example: str, group: str = "", name: str = "", runs_pytest: bool = False
) -> Callable[[CommandFunction], CommandFunction]:
    """Register a function as the command of its name, or as the second word of a group."""

    def register(run: CommandFunction) -> CommandFunction:
        text = run.__doc__ or ""
        parser = _SUBPARSERS[group].add_parser(
            name or run.__name__,
            help=text.splitlines()[0],
            description=text,
            epilog=f"example: pytest-accel {example}",
            allow_abbrev=False,  # as pytest's own options: `--isolat` is a mistake
        )
        for names, options in arguments:
            parser.add_argument(*names, **options)
        called = tuple(filter(None, (group, name or run.__name__)))
        parser.set_defaults(run=run, called=called, parser=parser, runs_pytest=runs_pytest)
        COMMANDS[called] = parser
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


def baselines_folder(args: argparse.Namespace) -> Path:
    """Return the folder that `--baselines` names, else the one of a session started here."""
    return located("baselines", args.baselines) or Path()


def required_history(args: argparse.Namespace) -> Path:
    """Return the history file; ValueError where none is kept."""
    if path := located("history", args.history):
        return path
    raise ValueError("no history is kept here: accel_history is off. Name the file with --history.")


def located(name: str, given: str | None) -> Path | None:
    """Return the path that an option names, else that of a session started here; None where it is off."""
    here = Path.cwd()
    if given:
        return relative_path(here, Path(given).expanduser())
    option, (root, ini) = next(each for each in OPTIONS if each.name == name), find_project(here)
    text = ini.get(option.key) or getattr(Settings(), option.field) or ""
    value = option.parse(os.environ.get(option.variable, text))
    # A variable names data from where pytest is called, as in a session.
    base = here if name == "data" and option.variable in os.environ else root
    return relative_path(here, base / Path(value).expanduser()) if value else None


def by_keyword(expression: str) -> Callable[[str], bool]:
    """Return whether `-k` selects a name, as a function; ValueError for what is no expression."""
    if not expression.strip():
        return lambda _name: True
    refusal = getattr(grammar, "ParseError", SyntaxError)  # a class of its own in pytest 8
    try:
        compiled = grammar.Expression.compile(expression)
    except (refusal, SyntaxError, ValueError) as error:
        raise ValueError(f"-k {expression!r} is no expression: {error}. Write it as pytest's -k.") from None
    return lambda name: compiled.evaluate(lambda word, /, **_: word.lower() in name.lower())


def project_catalogue() -> Catalogue:
    """Return the catalogue with the platforms of the project."""
    return load_catalogue(project_table(find_project(Path.cwd())[0] / "pyproject.toml"))


def find_project(start: Path) -> tuple[Path, Mapping[str, str]]:
    """Return the root directory and the accel_* values that pytest finds when it is started in `start`."""
    search: Any = determine_setup
    since_9 = {"override_ini": None} if pytest.version_tuple >= (9,) else {}
    try:
        root, _, found, *_ = search(
            inifile=None, args=[], rootdir_cmd_arg=None, invocation_dir=start, **since_9
        )
    except (
        *(pytest.UsageError, pytest.fail.Exception),  # what pytest reports itself
        # What it stumbles over: [tool] pytest = 3, or 3,000 brackets.
        *(OSError, ValueError, TypeError, AttributeError, RecursionError),
    ) as error:
        raise ValueError(
            f"{start}: pytest's configuration cannot be read: {error}. Correct it, or name what the project says "
            "(--baselines, --history)."
        ) from None
    # A value is a ConfigValue since pytest 9.
    ini = {key: str(getattr(each, "value", each)) for key, each in found.items() if key.startswith("accel_")}
    return root, ini
