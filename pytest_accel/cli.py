"""The program `pytest-accel`: commands for the machine, baselines, history and upgrades."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pytest_accel import __version__
from pytest_accel.commands import (  # noqa: F401 - each registers itself
    baseline,
    compile,  # noqa: A004 - the name of the command
    demo,
    doctor,
    history,
    results,
    upgrade,
)
from pytest_accel.commands.registry import PARSER

PARSER.add_argument("--version", action="version", version=f"pytest-accel {__version__}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command: 0 all is well, 1 it found what it looks for, 2 wrong usage or a wrong file."""
    own, for_pytest = _divide(sys.argv[1:] if argv is None else argv)
    args, unknown = PARSER.parse_known_args(own)
    if unknown:  # with the usage of the command
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if "called" not in args:  # no command: what there is
        args.parser.print_help()
        return 2
    called = " ".join(args.called)
    if for_pytest and not args.runs_pytest:
        args.parser.error(f"{called} runs no pytest: nothing may follow --")
    args.for_pytest = for_pytest
    try:
        return int(args.run(args))
    except BrokenPipeError:  # `| head` has read enough
        sys.stderr.close()  # or the interpreter complains of it once more at its end
        return 0
    except ValueError as error:  # every part's errors name place and remedy
        problem = str(error)
    except KeyboardInterrupt:
        problem = "interrupted"
    except OSError as error:  # a full disk, a folder that is not ours
        place = f"{error.filename}: " if error.filename else ""
        problem = f"{place}{error.strerror or error}"
    print(f"pytest-accel {called}: {problem}", file=sys.stderr)
    return 2  # after Ctrl-C too, as pytest


def _divide(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words at the first `--`: ours, and pytest's."""
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]
