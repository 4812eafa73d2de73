"""Registration of commands: a function with its docstring as help and its arguments beside it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CommandFunction = Callable[[argparse.Namespace], int]
Argument = tuple[tuple[str, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    name: tuple[str, ...]  # `baseline show` has two words
    run: CommandFunction
    arguments: tuple[Argument, ...]
    runs_pytest: bool = False  # what follows `--` goes to pytest

    @property
    def help(self) -> str:
        return (self.run.__doc__ or "").splitlines()[0]


COMMANDS: dict[tuple[str, ...], Command] = {}
GROUPS: dict[str, str] = {}  # help of the first of two words


def command(
    *arguments: Argument, group: str = "", name: str = "", runs_pytest: bool = False
) -> Callable[[CommandFunction], CommandFunction]:
    """Register a function as the command of its name, or as the second word of a group."""

    def register(run: CommandFunction) -> CommandFunction:
        words = tuple(filter(None, (group, name or run.__name__)))
        COMMANDS[words] = Command(name=words, run=run, arguments=arguments, runs_pytest=runs_pytest)
        return run

    return register


def argument(*names: str, **options: Any) -> Argument:  # noqa: ANN401 -- argparse's own keywords
    """Return one argument, as argparse's `add_argument` takes it."""
    return names, options


def count(text: str) -> int:
    """Parse a whole number of at least 1, for `type=`."""
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def duration(text: str) -> float:
    """Parse seconds, or 90s, 5min, 2h, for `type=`."""
    from pytest_accel.stats.quantities import parse_seconds

    try:
        return parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None
