"""What commands share that measure in two environments: how those are named and looked into, and what pytest may be told."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_accel.commands.registry import Argument, argument

if TYPE_CHECKING:
    from pytest_accel.commands.phases import Phases
    from pytest_accel.commands.probing import Place
    from pytest_accel.commands.upgrade_folder import Folder, Plan

INTERRUPTED = 2  # pytest's own
_BROKEN = 3  # an internal error, as pytest has it
_OF_PYTEST = range(2, 6)  # interrupted, internal error, wrong use, nothing collected
_PROBE_S = 600.0  # an image may have to be fetched first
_OURS = frozenset(
    {
        *("--accel-record", "--accel-update", "--accel-reason", "--accel-baselines", "--accel-json"),
        "--accel-history",
    }
)
_OVERWRITTEN = frozenset(
    {
        *("--accel-report", "--benchmark-json", "--junitxml"),
        "--junit-xml",
    }
)
OLD_AND_NEW: tuple[Argument, Argument] = (
    argument(
        "--old",
        required=True,
        metavar="CMD",
        help="what leads into the old environment; it is put before `python3 -m pytest`, or is the path of a python",
    ),
    argument("--new", required=True, metavar="CMD", help="the same for the new one"),
)


class UnfinishedError(Exception):
    """A phase that did not come to its end, with pytest's status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


def unfinished(place: Place, status: int, log: Path, shown: Path, nothing: str) -> UnfinishedError:
    """Pytest's last words; `nothing` is what was not done where it ended as if all were well."""
    from pytest_accel.commands.probing import last_lines
    from pytest_accel.distributed.processes import ended_words, exit_words

    said = "\n".join(f"    {line}" for line in last_lines(log))
    what = (
        f"nothing was {nothing} there"
        if status in (0, 1)
        else f"pytest {ended_words(exit_words(status))} there"
    )
    code = 1 if status in (0, 1) else status if status in _OF_PYTEST else _BROKEN
    return UnfinishedError(f"{place.option}: {what}. {shown} ends with:\n{said}", code)


def _look_into(
    places: Sequence[Place], phases: Phases, folder: Folder, plan: Plan
) -> Mapping[str, Mapping[str, str]]:
    """What is in both environments, and that they can be compared at all."""
    from pytest_accel.commands.probing import probe, refuse_another, refuse_two_versions

    found = {}
    for place in places:

        def run(words: Sequence[str], log: Path, side: str = place.side) -> int:
            quiet = replace(phases, verbose=False)
            return quiet.run(words, log, title=f"looking into the {side} one", timeout_s=_PROBE_S)

        facts = probe(place, run, folder.log(f"{place.side}-probe"), folder.root)
        refuse_another(place, plan.found.get(place.side, {}), facts, folder.shown)
        found[place.side] = facts
        told = ", ".join(f"{name} {facts[name]}" for name in ("torch", "python", "pytest") if facts[name])
        phases.console.say(f"{place.side}: {told}, pytest-accel {facts['pytest_accel']}")
    refuse_two_versions(found["old"], found["new"])
    return found


@contextmanager
def phases_of(folder: Folder, *, verbose: bool) -> Iterator[Phases]:
    """What runs commands, with progress, while nobody else may write into the folder."""
    from pytest_accel.commands.phases import Phases, signals_noted
    from pytest_accel.report.console import Console

    with folder.held() as lock, signals_noted() as signals:
        yield Phases(
            signals=signals,
            console=Console(sys.stderr),
            verbose=verbose,
            held=(lock,),
            environ=environment_of_phases(),
        )


def begin(places: Sequence[Place], phases: Phases, folder: Folder, plan: Plan) -> None:
    """Hold the plan against what is in the folder, and leave it there with what was found in both environments."""
    plan = folder.take(plan)
    folder.write(plan)
    folder.write(replace(plan, found=_look_into(places, phases, folder, plan)))


def run_pytest(
    place: Place, phases: Phases, ours: Sequence[str], arguments: Sequence[str], log: Path, *, title: str
) -> int:
    """Its exit status there; an interruption that it took for its own is one of ours."""
    from pytest_accel.commands.phases import InterruptedPhaseError

    # Ours before the user's own: those may end in paths after `--`.
    status = phases.run(place.python("-m", "pytest", *ours, *arguments), log, title=title)
    if phases.signals.count:
        raise InterruptedPhaseError
    return status


def again(args: argparse.Namespace, folder: Folder, *options: str) -> str:
    """The same command, with this folder."""
    old, new = (safe(shlex.split(each)) for each in (args.old, args.new))  # this goes to CI's log
    words = ["pytest-accel", folder.what, "--old", old, "--new", new, "--keep", str(folder.shown), *options]
    return shlex.join([*words, "--", *args.for_pytest])


def refuse_arguments(arguments: Sequence[str]) -> None:
    """What these commands say themselves, or what several sessions would write over each other."""
    for word in arguments:
        option = word.partition("=")[0]
        if option in _OURS:
            raise ValueError(
                f"{option} after -- is for this command to say: it records into a folder of its own."
            )
        if option in _OVERWRITTEN:
            raise ValueError(
                f"{option} after -- would be written by each phase over the last. Leave it out: the folder has the "
                "results of all, and `pytest-accel report` makes the page of any of them."
            )
        if option == "--accel-slowdown":
            raise ValueError(
                "--accel-slowdown after -- would slow both. For a drill give it to the new one alone: "
                "--new 'env PYTEST_ADDOPTS=--accel-slowdown=10% CMD'."
            )


def plan_of(places: Sequence[Place], runs: int, arguments: Sequence[str]) -> Plan:
    """What is compared, in words that may be handed round."""
    from pytest_accel.commands.upgrade_folder import Plan
    from pytest_accel.stats.environment import fingerprint

    old, new = (safe(place.words) for place in places)
    marks = {place.side: fingerprint(place.words) for place in places} | {"arguments": fingerprint(arguments)}
    return Plan(old=old, new=new, runs=runs, arguments=safe_words(arguments), marks=marks)


def environment_of_phases() -> dict[str, str]:
    """Ours, less where GitHub takes a step's summary from: these commands write one, of the whole, or none."""
    from pytest_accel.report.summary_file import STEP_SUMMARY

    return {name: value for name, value in os.environ.items() if name != STEP_SUMMARY}


def safe(words: Sequence[str]) -> str:
    return shlex.join(safe_words(words))


def safe_words(words: Sequence[str]) -> tuple[str, ...]:
    """For files that are handed round: `podman run --env TOKEN=...` stays here."""
    from pytest_accel.stats.environment import safe_arguments

    return safe_arguments(words)
