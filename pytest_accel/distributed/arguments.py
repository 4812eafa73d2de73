"""Which of a session's arguments a rank must not have: those that write files, or change the course of a session."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

# Options of this session that must not act in a rank, and whether they take a value; an
# optional value is, as argparse has it, the next word where that is no option.
Takes = Literal["none", "one", "optional"]
_DROPPED: Mapping[str, Takes] = {
    "--accel-record": "optional",
    "--accel-update": "none",
    "--accel-history": "one",
    "--accel-json": "one",
    "--accel-reason": "one",
    "--accel-report": "one",
    "--accel-in-process": "none",
    "--basetemp": "one",  # a process empties it when it starts
    "--benchmark-autosave": "none",
    "--benchmark-compare": "optional",
    "--benchmark-compare-fail": "one",
    "--benchmark-cprofile": "one",
    "--benchmark-cprofile-dump": "optional",
    "--benchmark-csv": "optional",
    "--benchmark-histogram": "optional",
    "--benchmark-json": "one",
    "--benchmark-save": "one",
    "--benchmark-save-data": "none",
    "--cov": "optional",
    "--cov-append": "none",
    "--cov-branch": "none",
    "--cov-config": "one",
    "--cov-context": "one",
    "--cov-fail-under": "one",
    "--cov-report": "one",
    "--exitfirst": "none",
    "--failed-first": "none",
    "--ff": "none",
    "--html": "one",
    "--junit-prefix": "one",
    "--junit-xml": "one",
    "--junitprefix": "one",
    "--junitxml": "one",
    "--last-failed": "none",
    "--lf": "none",
    "--log-file": "one",
    "--maxfail": "one",
    "--new-first": "none",
    "--nf": "none",
    "--pastebin": "one",
    "--pdb": "none",
    "--report-log": "one",
    "--stepwise": "none",
    "--stepwise-reset": "none",
    "--stepwise-skip": "none",
    "--sw": "none",
    "--sw-reset": "none",
    "--sw-skip": "none",
    "--trace": "none",
    "-x": "none",
}


def rank_arguments(arguments: Iterable[str]) -> list[str]:
    """The arguments of a session without those that write files or stop early."""
    return without_options(map(_without_x, arguments), _DROPPED)


def without_options(arguments: Iterable[str], dropped: Mapping[str, Takes]) -> list[str]:
    """Arguments less some options and the values that these take."""
    kept: list[str] = []
    value: Takes = "none"  # what the option just dropped still takes
    for argument in arguments:
        taken = value == "one" or (value == "optional" and not argument.startswith("-"))
        value = "none"
        if taken:
            continue
        name, assigned, _ = argument.partition("=")
        if name not in dropped:
            kept.append(argument)
        elif not assigned:
            value = dropped[name]
    return kept


def _without_x(argument: str) -> str:
    """`-xq` is `-x -q`."""
    if not re.fullmatch("-[lqsvx]+", argument):
        return argument
    others = argument.replace("x", "")
    return "-x" if others == "-" else others
