"""What several commands are told alike: baselines, the history, data sets, and which benchmarks by name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_accel.commands.project import find_project
from pytest_accel.commands.registry import Argument, argument

BASELINES: Argument = argument(
    "--baselines",
    metavar="DIR",
    help="the folder of baselines (default: as pytest called here would have it)",
)
HISTORY: Argument = argument(
    "--history", metavar="FILE", help="the history (default: as pytest called here would have it)"
)
KEYWORD: Argument = argument(
    "-k",
    dest="keyword",
    default="",
    metavar="EXPR",
    help="benchmarks by name, as pytest's -k: 'resnet50 and not fp32'",
)


def baselines_folder(args: argparse.Namespace) -> Path:
    """What `--baselines` names, else where a session of pytest that is called here has them."""
    if args.baselines:
        return Path(args.baselines).expanduser()
    found = _setting("baselines")
    return _from_here(found.root / Path(found.value).expanduser())


def history_file(args: argparse.Namespace) -> Path | None:
    """What `--history` names, else where a session of pytest that is called here keeps it; None where it keeps none."""
    found = _setting("history", args.history)
    return _from_here(found.root / Path(found.value).expanduser()) if found.value else None


def required_history(args: argparse.Namespace) -> Path:
    """The same, for a command that can do nothing without it."""
    path = history_file(args)
    if path is None:
        origin = _setting("history", args.history).origin
        raise ValueError(f"no history is kept here: {origin} says off. Name the file with --history.")
    return path


def data_folder(args: argparse.Namespace) -> Path | None:
    """What `--data` names, else where a session of pytest that is called here reads data sets; None: nowhere."""
    found = _setting("data", args.data)
    if found.value is None:
        return None
    # As in a session: a file means its own folder, and who calls the command where he stands.
    base = found.root if found.is_from_file else Path.cwd()
    return _from_here(base / Path(found.value).expanduser())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    value: Any
    origin: str
    root: Path  # what a relative path is relative to
    is_from_file: bool = False


def _setting(name: str, told: str | None = None) -> _Setting:
    """A setting by the rules of a session: option, variable, ini file, default."""
    import pytest

    from pytest_accel.options import OPTIONS, Settings

    option = next(each for each in OPTIONS if each.name == name)
    try:
        if told:
            return _Setting(value=option.read(told, f"--{name}"), origin=f"--{name}", root=Path.cwd())
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


def by_keyword(expression: str) -> Callable[[str], bool]:
    """Whether a benchmark's name is one that `-k` wants; ValueError for what is no expression."""
    if not expression.strip():
        return lambda _name: True
    # pytest's own grammar, so that -k means what it means there.
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


def _from_here(path: Path) -> Path:
    from pytest_accel.storage.whole import seen_from

    return seen_from(Path.cwd(), path)
