"""The folder of one duet: what is compared, what each process left, and which groups are whole.

Runs of a group are compared because they stand side by side. So a group that was interrupted is played anew, and what it
left is set aside; whole ones are kept, whatever ended the duet.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from pytest_accel.commands.upgrade_folder import FINISHED, Folder
from pytest_accel.stats.duet import MOST_GROUPS, RUNS_PER_GROUP
from pytest_accel.stats.duet_course import ATTEMPTS, Played, Turn, follow
from pytest_accel.stats.results import SessionResults
from pytest_accel.storage.results import ResultsError, read_results
from pytest_accel.storage.whole import write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class DuetFolder(Folder):
    what: ClassVar[str] = "duet"
    a_what: ClassVar[str] = "a duet"
    runs_option: ClassVar[str] = "groups"

    def name(self, turn: Turn) -> str:
        """Files in the order of playing."""
        again = f"-again{turn.attempt - 1}" if turn.attempt > 1 else ""
        return f"{turn.group:02d}-{turn.place}-{turn.side}{again}"

    def left_by(self, turn: Turn) -> Path:
        return self.root / f"{self.name(turn)}.json"

    def session(self, turn: Turn) -> SessionResults | None:
        """What a turn that came to its end has found out."""
        path = self.left_by(turn)
        if not path.exists():
            return None
        try:
            session = read_results(path)
        except ResultsError as error:
            remedy = (
                f"Delete it to play that group again, or begin in another folder with --keep. {error.remedy}"
            )
            raise ResultsError(error.file, error.place, error.problem, remedy) from None
        return session if session.exit_status in FINISHED else None

    def played(self) -> list[Played]:
        """All turns of whole groups; what an unfinished one left makes room for the next."""
        found: list[Played] = []
        group = 1
        while (whole := self._group(group)) is not None:
            found += whole
            group += 1
        return found

    def _group(self, group: int) -> list[Played] | None:
        """None where it is not whole: a first attempt is missing, or another one that a benchmark needs."""
        found = []
        for turn in _turns_of(group):
            session = self.session(turn)
            if session is not None:
                found.append(Played(turn=turn, session=session))
            elif turn.attempt == 1:
                return None
        # Interrupted in a second attempt: nobody would play it any more, and its benchmark never get a verdict.
        if any(part.wants_replacement for part in follow(found, MOST_GROUPS).values()):
            return None
        return found

    def set_unfinished_aside(self, group: int) -> Path | None:
        """What a group left that is played anew; nothing that was measured is deleted."""
        left = [
            path
            for turn in _turns_of(group)
            if (path := self.left_by(turn)).exists() or self.log(self.name(turn)).exists()
        ]
        if not left:
            return None
        aside = self.root / f"unfinished-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
        aside.mkdir()
        for path in left:
            for each in (path, path.with_suffix(".log")):
                if each.exists():
                    each.rename(aside / each.name)
        return aside

    def bound(self) -> Mapping[str, bool]:
        begun = self._group(1) is not None
        return dict.fromkeys(("old", "new", "runs", "arguments"), begun)

    def leave_out(self, turn: Turn, benchmarks: Collection[str]) -> Path:
        """The list of them, for `session.narrowing`."""
        path = self.root / f"{self.name(turn)}.left-out"
        write_whole(path, json.dumps(sorted(benchmarks), indent=0) + "\n")
        return path


def _turns_of(group: int) -> Iterator[Turn]:
    for place in range(1, RUNS_PER_GROUP + 1):
        for attempt in range(1, ATTEMPTS + 1):
            yield Turn(group=group, place=place, attempt=attempt)
