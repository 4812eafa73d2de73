"""`pytest-accel duet`: an old and a new environment in turn in one session, judged by pairs."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
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
    unfinished,
)
from pytest_accel.commands.registry import argument, command, count
from pytest_accel.stats.duet import FEWEST_GROUPS, MOST_GROUPS, RUNS_PER_GROUP
from pytest_accel.stats.quantities import counted, seconds

if TYPE_CHECKING:
    from pytest_accel.commands.duet_folder import DuetFolder
    from pytest_accel.commands.phases import Phases
    from pytest_accel.commands.probing import Place
    from pytest_accel.commands.upgrade_folder import Plan
    from pytest_accel.stats.duet_course import Part, Played, Turn

_WRONG_USE = (4, 5)  # of pytest: it would say the same again
_NO_BASELINE = "--accel-missing-baseline"


@command(
    *OLD_AND_NEW,
    argument(
        "--groups",
        type=count,
        default=MOST_GROUPS,
        metavar="N",
        help=f"at most so many groups of four processes (old new new old, then new old old new) for one verdict ({MOST_GROUPS})",
    ),
    argument(
        "--keep",
        metavar="DIR",
        help="where all of it is kept (accel-duet/TIME-ID); named again, it goes on after the last whole group",
    ),
    argument("--json", metavar="FILE", help="write the comparison there, too"),
    argument("-v", "--verbose", action="store_true", help="show what pytest prints, too"),
    runs_pytest=True,
)
def duet(args: argparse.Namespace) -> int:
    """Measure an old environment and a new one in turn, and judge them by pairs; 1 where something got slower or is lost."""
    from pytest_accel.commands.duet_folder import DuetFolder
    from pytest_accel.commands.phases import InterruptedPhaseError
    from pytest_accel.commands.probing import place_of
    from pytest_accel.commands.upgrade_folder import prepared_as
    from pytest_accel.report.duet import MOST_GROUPS as MOST_SENSIBLE

    refuse_arguments(args.for_pytest)
    if any(word.partition("=")[0] == _NO_BASELINE for word in args.for_pytest):
        raise ValueError(f"{_NO_BASELINE} after --: a duet has no baseline. Leave it out.")
    if not FEWEST_GROUPS <= args.groups <= MOST_SENSIBLE:
        raise ValueError(
            f"--groups {args.groups}: one group alone fails nothing, and {MOST_SENSIBLE} are {RUNS_PER_GROUP * MOST_SENSIBLE} "
            f"processes. Name {FEWEST_GROUPS} to {MOST_SENSIBLE}."
        )
    places = {"old": place_of("old", args.old), "new": place_of("new", args.new)}
    folder = prepared_as(DuetFolder, args.keep, Path.cwd())
    with phases_of(folder, verbose=args.verbose) as phases:
        course = _Course(
            places=places,
            folder=folder,
            plan=plan_of(list(places.values()), args.groups, args.for_pytest),
            arguments=tuple(args.for_pytest),
            phases=phases,
            again=_again(args, folder),
            json=args.json,
            played=[],
        )
        try:
            course.play()
            return course.tell()
        except InterruptedPhaseError:
            text, status = f"interrupted. Whole groups are kept in {folder.shown}.", INTERRUPTED
        except UnfinishedError as error:
            text, status = f"{error}\nMend it.", error.status
        if course.knows_something:
            course.tell(status)
    phases.console.say(f"{text} Go on with:\n    {course.again}")
    return status


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """Look at both, then play groups until every benchmark is decided, or the groups are used up."""

    places: Mapping[str, Place]
    folder: DuetFolder
    plan: Plan
    arguments: tuple[str, ...]  # pytest's
    phases: Phases
    again: str
    json: str | None
    played: list[Played]

    @property
    def _most(self) -> int:
        return self.plan.runs

    @property
    def knows_something(self) -> bool:
        return any(part.verdict for part in self._parts().values())

    def play(self) -> None:
        """Every turn that is not played yet; what came to nothing is tried once more in the same place."""
        begin(list(self.places.values()), self.phases, self.folder, self.plan)
        self.played.extend(self.folder.played())
        whole = max((each.turn.group for each in self.played), default=0)
        if whole:
            self._say(f"{counted(whole, 'group')} complete already: {self._standing()}")
        if aside := self.folder.set_unfinished_aside(whole + 1):
            self._say(f"what an unfinished group left is now {self.folder.shown / aside.name}")
        for group in range(whole + 1, self._most + 1):
            if self.played and not self._open():
                return
            self._play_group(group)
            self._say(f"after group {group}: {self._standing()}")

    def _play_group(self, group: int) -> None:
        from pytest_accel.stats.duet_course import ATTEMPTS, Turn

        for place in range(1, RUNS_PER_GROUP + 1):
            for attempt in range(1, ATTEMPTS + 1):
                turn = Turn(group=group, place=place, attempt=attempt)
                parts = self._parts()
                wanted = [
                    part.benchmark
                    for part in parts.values()
                    if (part.wants_replacement if attempt > 1 else part.is_open)
                ]
                if wanted or not parts:
                    self._play_turn(turn, wanted, [name for name in parts if name not in wanted])

    def _play_turn(self, turn: Turn, wanted: Sequence[str], left_out: Sequence[str]) -> None:
        from pytest_accel.commands.narrowing import OPTION, PLUGIN
        from pytest_accel.stats.duet_course import Played

        ours = [
            "--continue-on-collection-errors",  # what cannot be imported there is lost; the rest is judged
            f"--accel-baselines={self.folder.baselines}",  # none: whatever is measured is measured once
            f"{_NO_BASELINE}=warn",
            f"--accel-json={self.folder.left_by(turn)}",
            f"--accel-history={self.folder.history}",
        ]
        if left_out:
            ours += ["-p", PLUGIN, f"{OPTION}={self.folder.leave_out(turn, left_out)}"]
        title = f"group {turn.group} of {self._most}, {turn.place}/{RUNS_PER_GROUP} {turn.side}"
        title += ", once more" if turn.attempt > 1 else ""
        title += f": {counted(len(wanted), 'benchmark')}" if wanted else ""
        place, log = self.places[turn.side], self.folder.log(self.folder.name(turn))
        for is_last in (False, True):
            status = run_pytest(place, self.phases, ours, self.arguments, log, title=title)
            session = self.folder.session(turn)
            if session is not None:
                self.played.append(Played(turn=turn, session=session))
                return
            if is_last or status in _WRONG_USE:
                raise unfinished(place, status, log, self.folder.shown / log.name, "measured")
            self._say(f"{title}: it broke off ({self.folder.shown / log.name}), and is played once more")

    # --- what is known --------------------------------------------------------------------------

    def _parts(self) -> dict[str, Part]:
        from pytest_accel.stats.duet_course import follow

        return follow(self.played, self._most)

    def _open(self) -> list[Part]:
        return [part for part in self._parts().values() if part.is_open]

    def _standing(self) -> str:
        from pytest_accel.report.upgrade import effect_word

        parts = [part for part in self._parts().values() if not part.is_elsewhere]
        counts = Counter(effect_word(part.effect) if part.effect else "open" for part in parts)
        lasted_s = sum(each.session.duration_s for each in self.played)
        told = ", ".join(f"{number} {word}" for word, number in counts.items()) or "no benchmark"
        return f"{told} ({seconds(lasted_s)})"

    def tell(self, status: int | None = None) -> int:
        """Print and write it down; the exit status."""
        from pytest_accel.report.duet import Told, as_json, screen
        from pytest_accel.report.remedies import with_values
        from pytest_accel.stats.duet_course import assess
        from pytest_accel.stats.upgrade import Effect
        from pytest_accel.storage.whole import write_whole

        found = assess(self.played, self._most)
        strict = ("--accel-inconclusive", "fail") in with_values(self.arguments)
        code = int(found.status or (strict and bool(found.of(Effect.INCONCLUSIVE))))
        told = Told(
            old=self.plan.old,
            new=self.plan.new,
            folder=str(self.folder.shown),
            most_groups=self._most,
            processes=len(self.played),
            lasted_s=sum(each.session.duration_s for each in self.played),
            again=self.again,
            status=code if status is None else status,
        )
        text = as_json(found, told)
        write_whole(self.folder.root / "duet.json", text)
        if self.json:
            write_whole(Path(self.json).absolute(), text)
        print("\n".join(screen(found, told)))
        return told.status

    def _say(self, line: str) -> None:
        self.phases.console.say(line)


def _again(args: argparse.Namespace, folder: DuetFolder) -> str:
    groups = [f"--groups={args.groups}"] if args.groups != MOST_GROUPS else []
    return again(args, folder, *groups, *([f"--json={args.json}"] if args.json else []))
