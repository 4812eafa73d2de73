"""What several commands are told alike: the folder of baselines, and which benchmarks by name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from pytest_accel.commands.registry import Argument, argument

BASELINES: Argument = argument(
    "--baselines", metavar="DIR", help="the folder of baselines (accel_baselines, else ./baselines)"
)
KEYWORD: Argument = argument(
    "-k",
    dest="keyword",
    default="",
    metavar="EXPR",
    help="benchmarks by name, as pytest's -k: 'resnet50 and not fp32'",
)


def baselines_folder(args: argparse.Namespace) -> Path:
    """Where a session of pytest in this folder would look for them."""
    told = args.baselines or os.environ.get("PYTEST_ACCEL_BASELINES") or _from_project(Path("pyproject.toml"))
    return Path(told or "baselines").expanduser()


def _from_project(pyproject: Path) -> str:
    import tomllib

    if not pyproject.is_file():
        return ""
    try:
        content = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{pyproject} cannot be read: {error}. Mend it, or name --baselines DIR.") from None
    found = content.get("tool", {}).get("pytest", {}).get("ini_options", {}).get("accel_baselines", "")
    return found if isinstance(found, str) else ""


def by_keyword(expression: str) -> Callable[[str], bool]:
    """Whether a benchmark's name is one that `-k` wants; ValueError for what is no expression."""
    if not expression.strip():
        return lambda _name: True
    # pytest's own grammar, so that -k means what it means there.
    from _pytest.mark.expression import Expression

    try:
        compiled = Expression.compile(expression)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"-k {expression!r} is no expression: {error}. Write it as pytest's -k.") from None

    def wanted(name: str) -> bool:
        def is_in(word: str, /, **_: str | int | bool | None) -> bool:
            return word.lower() in name.lower()

        return compiled.evaluate(is_in)

    return wanted
