"""`pytest-accel upgrade`: an old and a new environment on one node, and whether anything got slower."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_accel.commands.registry import argument, command, count
from pytest_accel.core.quantities import counted, seconds
from pytest_accel.core.runs import MAX_RUNS, RECORD_RUNS

if TYPE_CHECKING:
    from pytest_accel.core.results import SessionResults
    from pytest_accel.session.phases import Phases
    from pytest_accel.session.probing import Place
    from pytest_accel.session.upgrade_folder import Folder, PhaseName, Plan

_INTERRUPTED = 2  # pytest's own
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
        *("--accel-report", "--accel-summary", "--accel-metrics", "--benchmark-json", "--junitxml"),
        "--junit-xml",
    }
)


@command(
    argument(
        "--old",
        required=True,
        metavar="CMD",
        help="what leads into the old environment; it is put before `python3 -m pytest`, or is the path of a python",
    ),
    argument("--new", required=True, metavar="CMD", help="the same for the new one"),
    argument(
        "--keep",
        metavar="DIR",
        help="where all of it is kept (accel-upgrade/TIME-ID); named again, it goes on where it was interrupted",
    ),
    argument(
        "--runs",
        type=count,
        default=RECORD_RUNS,
        metavar="N",
        help=f"runs of each benchmark in the old environment, in fresh processes ({RECORD_RUNS})",
    ),
    argument(
        "--no-bracket",
        dest="bracket",
        action="store_false",
        help="do not measure the old environment once more at the end, which tells a machine that drifted from an upgrade",
    ),
    argument(
        "--only-old",
        action="store_true",
        help="record the old one and stop, to go on with the same --keep after the driver, say, was upgraded",
    ),
    argument("-v", "--verbose", action="store_true", help="show what pytest prints, too"),
    runs_pytest=True,
)
def upgrade(args: argparse.Namespace) -> int:
    """Measure an old environment and a new one on this node; 1 where something got slower or is lost."""
    from pytest_accel.core.environment import fingerprint
    from pytest_accel.session.phases import InterruptedPhaseError, Phases, signals_noted
    from pytest_accel.session.probing import place_of
    from pytest_accel.session.upgrade_folder import Plan, prepared
    from pytest_accel.slurm.launch import Console

    _refuse_arguments(args.for_pytest)
    if args.runs > MAX_RUNS:
        raise ValueError(f"--runs {args.runs}: a baseline has at most {MAX_RUNS} runs. Name 1 to {MAX_RUNS}.")
    places = (place_of("old", args.old), place_of("new", args.new))
    folder = prepared(args.keep, Path.cwd())
    old, new = (_safe(place.words) for place in places)
    plan = Plan(
        old=old,
        new=new,
        runs=args.runs,
        arguments=_safe_words(args.for_pytest),
        marks={place.side: fingerprint(place.words) for place in places}
        | {"arguments": fingerprint(args.for_pytest)},
    )
    console = Console(sys.stderr)
    with folder.held() as lock, signals_noted() as signals:
        phases = Phases(
            signals=signals,
            console=console,
            verbose=args.verbose,
            held=(lock,),
            environ=_environment(os.environ),
        )
        course = _Course(
            places=places,
            folder=folder,
            plan=plan,
            arguments=tuple(args.for_pytest),
            phases=phases,
            bracket=args.bracket,
        )
        try:
            if args.only_old:
                course.record()
                console.say(f"recorded. Upgrade, and go on with:\n    {_again(args, folder)}")
                return 0
            return course.run()
        except InterruptedPhaseError:
            text, status = f"interrupted. What is complete is kept in {folder.shown}.", _INTERRUPTED
        except UnfinishedError as error:
            text, status = f"{error}\nMend it.", error.status
    console.say(f"{text} Go on with:\n    {_again(args, folder)}")
    return status


class UnfinishedError(Exception):
    """A phase that did not come to its end, with pytest's status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """Look at both, record in the old one, judge the new one, look at the old one again."""

    places: tuple[Place, Place]
    folder: Folder
    plan: Plan
    arguments: tuple[str, ...]  # pytest's
    phases: Phases
    bracket: bool

    @property
    def _phases(self) -> int:
        return 3 if self.bracket else 2

    def record(self) -> SessionResults:
        """Look into both, and record in the old one."""
        plan = self.folder.take(self.plan)
        self.folder.write(plan)
        self.folder.write(replace(plan, found=self._found(plan)))
        title = f"1/{self._phases} old: recording {counted(self.plan.runs, 'run')} of each"
        return self._phase("old", self.places[0], title, f"--accel-record={self.plan.runs}")

    def run(self) -> int:
        old_place, new_place = self.places
        old, total = self.record(), self._phases
        # What cannot be imported there is lost; what can is judged all the same.
        on = "--continue-on-collection-errors"
        new = self._phase("new", new_place, f"2/{total} new: judging it by the old", on)
        again = None
        if self.bracket:
            again = self._phase("old-again", old_place, f"3/{total} old again: did the machine drift?", on)
        return self._tell(old, new, again)

    def _found(self, plan: Plan) -> Mapping[str, Mapping[str, str]]:
        """What is in both environments, and that they can be compared at all."""
        from pytest_accel.session.probing import probe, refuse_another, refuse_two_versions

        found = {}
        for place in self.places:

            def run(words: Sequence[str], log: Path, side: str = place.side) -> int:
                quiet = replace(self.phases, verbose=False)
                return quiet.run(words, log, title=f"looking into the {side} one", timeout_s=_PROBE_S)

            facts = probe(place, run, self.folder.log(f"{place.side}-probe"), self.folder.root)
            refuse_another(place, plan.found.get(place.side, {}), facts, self.folder.shown)
            found[place.side] = facts
            told = ", ".join(f"{name} {facts[name]}" for name in ("torch", "python", "pytest") if facts[name])
            self._say(f"{place.side}: {told}, pytest-accel {facts['pytest_accel']}")
        refuse_two_versions(found["old"], found["new"])
        return found

    def _phase(self, name: PhaseName, place: Place, title: str, *options: str) -> SessionResults:
        if (done := self.folder.complete(name)) is not None:
            self._say(f"{title}: complete already, session {done.session}")
            return done
        self.folder.forget(name)
        if name == "old" and (aside := self.folder.set_aside()):
            self._say(f"what an unfinished recording left is now {self.folder.shown / aside.name}")
        ours = [
            *options,
            f"--accel-baselines={self.folder.baselines}",
            f"--accel-json={self.folder.results(name)}",
            f"--accel-history={self.folder.history}",
        ]
        log = self.folder.log(name)
        # Before the user's own: those may end in paths after `--`.
        status = self.phases.run(place.python("-m", "pytest", *ours, *self.arguments), log, title=title)
        if self.phases.signals.count:
            from pytest_accel.session.phases import InterruptedPhaseError

            raise InterruptedPhaseError
        done = self.folder.complete(name)
        if done is None:
            raise self._unfinished(name, place, status)
        measured = sum(result.was_measured for result in done.results)
        self._say(f"{title}: {counted(measured, 'benchmark')} in {seconds(done.duration_s)}")
        return done

    def _unfinished(self, name: PhaseName, place: Place, status: int) -> UnfinishedError:
        from pytest_accel.session.probing import last_lines
        from pytest_accel.spmd.processes import ended_words, exit_words

        said = "\n".join(f"    {line}" for line in last_lines(self.folder.log(name)))
        what = (
            f"nothing was {'recorded' if name == 'old' else 'measured'} there"
            if status in (0, 1)
            else f"pytest {ended_words(exit_words(status))} there"
        )
        code = 1 if status in (0, 1) else status if status in _OF_PYTEST else _BROKEN
        return UnfinishedError(
            f"{place.option}: {what}. {self.folder.shown / f'{name}.log'} ends with:\n{said}", code
        )

    def _tell(self, old: SessionResults, new: SessionResults, again: SessionResults | None) -> int:
        from pytest_accel.core.upgrade import assess
        from pytest_accel.report.summary_file import append_step_summary
        from pytest_accel.report.upgrade import Told, as_json, markdown, screen
        from pytest_accel.store.whole import write_whole

        found = assess(old, new, again)
        old_place, new_place = self.places
        told = Told(
            old=_safe(old_place.words),
            new=_safe(new_place.words),
            new_pytest=shlex.join(_safe_words(new_place.python("-m", "pytest"))),
            folder=str(self.folder.shown),
            sessions={"old": old, "new": new} | ({"old-again": again} if again else {}),
        )
        page = markdown(found, told)
        write_whole(self.folder.root / "upgrade.json", as_json(found, told))
        write_whole(self.folder.root / "upgrade.md", page)
        if problem := append_step_summary(os.environ, page):
            self._say(problem)
        print("\n".join(screen(found, told)))
        return found.status

    def _say(self, line: str) -> None:
        self.phases.console.say(line)


def _refuse_arguments(arguments: Sequence[str]) -> None:
    """What this command says itself, or what three sessions would write over each other."""
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


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Ours, less where GitHub takes a step's summary from: this command writes one, of the whole."""
    from pytest_accel.report.summary_file import STEP_SUMMARY

    return {name: value for name, value in environ.items() if name != STEP_SUMMARY}


def _safe(words: Sequence[str]) -> str:
    return shlex.join(_safe_words(words))


def _safe_words(words: Sequence[str]) -> tuple[str, ...]:
    """For files that are handed round: `podman run --env TOKEN=...` stays here."""
    from pytest_accel.core.environment import safe_arguments

    return safe_arguments(words)


def _again(args: argparse.Namespace, folder: Folder) -> str:
    """The same command, with this folder."""
    old, new = (_safe(shlex.split(command)) for command in (args.old, args.new))  # this goes to CI's log
    words = ["pytest-accel", "upgrade", "--old", old, "--new", new, "--keep", str(folder.shown)]
    words += [f"--runs={args.runs}"] if args.runs != RECORD_RUNS else []
    words += [] if args.bracket else ["--no-bracket"]
    return shlex.join([*words, "--", *args.for_pytest])
