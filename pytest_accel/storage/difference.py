"""Two baselines, an older and a newer: what came, what went, what was recorded again, and by how much figures moved."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pytest_accel.stats.comparison import Entry, Value, configuration_changes, is_stored
from pytest_accel.stats.environment import Change, diff, diff_identity
from pytest_accel.stats.verdict import THROUGHPUT
from pytest_accel.storage.comparison import Side
from pytest_accel.storage.gathering import Gathered
from pytest_accel.storage.schema import BaselineFile, LedgerEntry, Removal


class Kind(Enum):
    ADDED = "added"
    REMOVED = "removed"
    RENAMED = "renamed"  # the same runs under another key
    RECORDED_ANEW = "re-recorded"  # none of its old runs is left
    CHANGED = "changed"  # some runs came or went
    LEDGER = "ledger only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One benchmark that is not as it was."""

    kind: Kind
    platform: str = ""
    key: str = ""
    was: str = ""  # its key before it was renamed
    old: Value | None = None  # of its throughput
    new: Value | None = None
    came: int = 0  # runs
    went: int = 0
    configuration: tuple[str, ...] = ()  # name old -> new
    ledger: tuple[LedgerEntry, ...] = ()  # lines that are new
    removal: Removal | None = None
    environment: tuple[Change, ...] = ()  # of the newest runs: other machine first

    @property
    def by(self) -> float | None:
        """How much the throughput moved: -0.05 is 5 % slower; None where two different things were measured."""
        if self.old is None or self.new is None or self.old.unit != self.new.unit or self.configuration:
            return None
        return self.new.value / self.old.value - 1


def difference(old: Gathered, new: Gathered, platforms: Collection[str] = ()) -> list[Moved]:
    """What moved from one set of baselines to another, by platform and key; of these platforms, or of all."""
    before, after = _entries(old.sides, platforms), _entries(new.sides, platforms)
    ledgers_before, ledgers_after = _ledgers(old.files), _ledgers(new.files)
    removals = {(f.platform, each.benchmark): each for f in new.files for each in f.removed}
    found = []
    for at in sorted(before.keys() | after.keys()):
        platform, key = at
        lines = ledgers_after.get(at, ())
        added = tuple(line for line in lines if line not in ledgers_before.get(at, ()))
        moved = _moved(before.get(at), after.get(at), ledger_grew=bool(added))
        if moved is not None:
            removal = removals.get(at) if at not in after else None
            found.append(replace(moved, platform=platform, key=key, ledger=added, removal=removal))
    return _with_renames(found, before, after)


def _with_renames(
    moved: Sequence[Moved],
    before: Mapping[tuple[str, str], Entry],
    after: Mapping[tuple[str, str], Entry],
) -> list[Moved]:
    """What went and came with the same runs did neither: only its name changed."""
    gone = [each for each in moved if each.kind is Kind.REMOVED]
    renamed: dict[tuple[str, str], str] = {}
    for each in moved:
        runs = after[each.platform, each.key].runs if each.kind is Kind.ADDED else ()
        for old in gone:
            same = len(runs) == old.went and all(
                is_stored(run, before[old.platform, old.key].runs) for run in runs
            )
            if runs and same and old.platform == each.platform and old.key not in renamed.values():
                renamed[each.platform, each.key] = old.key
                break
    vanished = {(platform, was) for (platform, _), was in renamed.items()}
    return [
        replace(each, kind=Kind.RENAMED, was=renamed[at], ledger=()) if at in renamed else each
        for each in moved
        if (at := (each.platform, each.key)) not in vanished
    ]


def _moved(old: Entry | None, new: Entry | None, *, ledger_grew: bool) -> Moved | None:
    """What became of its runs; whose they are, and what was said of it, is the caller's to add."""
    if old is None or new is None:
        return Moved(
            kind=Kind.REMOVED if new is None else Kind.ADDED,
            old=old.values[THROUGHPUT] if old else None,
            new=new.values[THROUGHPUT] if new else None,
            came=len(new.runs) if new else 0,
            went=len(old.runs) if old else 0,
        )
    came = [run for run in new.runs if not is_stored(run, old.runs)]
    went = [run for run in old.runs if not is_stored(run, new.runs)]
    if not (came or went or ledger_grew):
        return None
    then, now = old.environment_of(old.runs[-1]), new.environment_of(new.runs[-1])
    anew = len(went) == len(old.runs)
    return Moved(
        kind=Kind.RECORDED_ANEW if anew else Kind.CHANGED if came or went else Kind.LEDGER,
        old=old.values[THROUGHPUT],
        new=new.values[THROUGHPUT],
        came=len(came),
        went=len(went),
        configuration=tuple(configuration_changes(old, new)),
        environment=(*diff_identity(then, now), *diff(then, now)),
    )


def _entries(sides: Sequence[Side], platforms: Collection[str]) -> Mapping[tuple[str, str], Entry]:
    return {
        (side.platform, key): entry
        for side in sides
        if not platforms or side.platform in platforms
        for key, entry in side.entries.items()
    }


def _ledgers(files: Sequence[BaselineFile]) -> Mapping[tuple[str, str], tuple[LedgerEntry, ...]]:
    return {(file.platform, key): entry.ledger for file in files for key, entry in file.benchmarks.items()}
