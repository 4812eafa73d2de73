"""`pytest-accel upgrade`: an old and a new environment on one node, and whether anything got slower."""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_accel.commands.environments import (
    INTERRUPTED,
    OLD_AND_NEW,
    UnfinishedError,
    again,
    begin,
    phases_of,
    plan_of,
    refuse_arguments,
    run_pytest,
    safe,
    safe_words,
    unfinished,
)
from pytest_accel.commands.registry import argument, command, count
from pytest_accel.stats.quantities import counted, seconds
from pytest_accel.stats.run import MAX_RUNS, RECORD_RUNS

if TYPE_CHECKING:
    from pytest_accel.commands.phases import Phases
    from pytest_accel.commands.probing import Place
    from pytest_accel.commands.upgrade_folder import Folder, PhaseName, Plan
    from pytest_accel.stats.results import SessionResults


@command(
    *OLD_AND_NEW,
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
    from pytest_accel.commands.phases import InterruptedPhaseError
    from pytest_accel.commands.probing import place_of
    from pytest_accel.commands.upgrade_folder import prepared

    refuse_arguments(args.for_pytest)
    if args.runs > MAX_RUNS:
        raise ValueError(f"--runs {args.runs}: a baseline has at most {MAX_RUNS} runs. Name 1 to {MAX_RUNS}.")
    places = (place_of("old", args.old), place_of("new", args.new))
    folder = prepared(args.keep, Path.cwd())
    plan = plan_of(places, args.runs, args.for_pytest)
    with phases_of(folder, verbose=args.verbose) as phases:
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
                phases.console.say(f"recorded. Upgrade, and go on with:\n    {_again(args, folder)}")
                return 0
            return course.run()
        except InterruptedPhaseError:
            text, status = f"interrupted. What is complete is kept in {folder.shown}.", INTERRUPTED
        except UnfinishedError as error:
            text, status = f"{error}\nMend it.", error.status
    phases.console.say(f"{text} Go on with:\n    {_again(args, folder)}")
    return status


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
        begin(self.places, self.phases, self.folder, self.plan)
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
        status = run_pytest(place, self.phases, ours, self.arguments, log, title=title)
        done = self.folder.complete(name)
        if done is None:
            shown, nothing = self.folder.shown / f"{name}.log", "recorded" if name == "old" else "measured"
            raise unfinished(place, status, log, shown, nothing)
        measured = sum(result.was_measured for result in done.results)
        self._say(f"{title}: {counted(measured, 'benchmark')} in {seconds(done.duration_s)}")
        return done

    def _tell(self, old: SessionResults, new: SessionResults, again: SessionResults | None) -> int:
        from pytest_accel.report.summary_file import append_step_summary
        from pytest_accel.report.upgrade import Told, as_json, markdown, screen
        from pytest_accel.stats.upgrade import assess
        from pytest_accel.storage.whole import write_whole

        found = assess(old, new, again)
        old_place, new_place = self.places
        told = Told(
            old=safe(old_place.words),
            new=safe(new_place.words),
            new_pytest=shlex.join(safe_words(new_place.python("-m", "pytest"))),
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


def _again(args: argparse.Namespace, folder: Folder) -> str:
    runs = [f"--runs={args.runs}"] if args.runs != RECORD_RUNS else []
    return again(args, folder, *runs, *([] if args.bracket else ["--no-bracket"]))
