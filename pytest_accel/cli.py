"""The program `pytest-accel`: commands for the machine, baselines, history and upgrades."""

from __future__ import annotations

import argparse
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
from pytest_accel.commands.registry import COMMANDS, GROUPS
from pytest_accel.stats.quantities import did_you_mean

_OF_PYTEST = {"record": "pytest --accel-record", **dict.fromkeys(("check", "judge", "run", "test"), "pytest")}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command: 0 all is well, 1 it found what it looks for, 2 wrong usage or a wrong file."""
    own, for_pytest = _divide(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    _refuse_unknown_command(parser, own)
    args, unknown = parser.parse_known_args(own)
    if "called" not in args and not unknown:  # no command: what there is
        args.parser.print_help()
        return 2
    runs_pytest = "called" in args and COMMANDS[args.called].runs_pytest
    if unknown:
        hint = ": what is pytest's goes after --" if runs_pytest and not for_pytest else ""
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    called = " ".join(args.called)
    if for_pytest and not runs_pytest:
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


def _refuse_unknown_command(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Refuse a misspelt command, and name the nearest."""
    known, named = {" ".join(name) for name in COMMANDS}, ""
    for word in words[:2]:
        named = f"{named} {word}".strip()
        if word.startswith("-") or named in known:
            return
        if not any(each.startswith(f"{named} ") for each in known):
            does = did_you_mean(named, known)
            if named in _OF_PYTEST:
                does = f" pytest does it: `{_OF_PYTEST[named]}`."
            parser.error(f"there is no command {named!r}.{does} `pytest-accel` lists them.")


def _divide(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words at the first `--`: ours, and pytest's."""
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pytest-accel",
        description="Accelerator benchmarks as tests.",
        epilog="pytest itself measures: `pytest --accel-record` stores a baseline, `pytest` judges against it. "
        "`pytest-accel COMMAND --help` ends with an example.",
    )
    parser.set_defaults(parser=parser)
    parser.add_argument("--version", action="version", version=f"pytest-accel {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    groups = {}
    for name, about in GROUPS.items():
        of_group = commands.add_parser(name, help=about, description=about)
        of_group.set_defaults(parser=of_group)
        groups[name] = of_group.add_subparsers(metavar="COMMAND")
    for each in sorted(COMMANDS.values(), key=lambda command: command.name):
        *group, name = each.name
        sub = (groups[group[0]] if group else commands).add_parser(
            name,
            help=each.help,
            description=each.run.__doc__,
            epilog=f"example: pytest-accel {each.example}",
            allow_abbrev=False,  # as pytest's own options: `--isolat` is a mistake
        )
        for names, options in each.arguments:
            sub.add_argument(*names, **options)
        if each.runs_pytest:
            sub.usage = f"{sub.format_usage().removeprefix('usage: ').rstrip()} -- PYTEST_ARGS"
        sub.set_defaults(run=each.run, called=each.name, parser=sub)
    return parser
