"""Comparison of sets of figures: matching rows, ratios, the gate's verdicts, and changes between two baselines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from pytest_accel.stats.comparison import (
    Entry,
    Judgement,
    Value,
    configuration_changes,
    figures,
    is_stored,
    judged,
)
from pytest_accel.stats.environment import Change, Environment, diff, diff_identity
from pytest_accel.stats.metric_gates import DESCRIPTIVE, less_is_better
from pytest_accel.stats.verdict import THROUGHPUT, Outcome
from pytest_accel.storage.baselines import BaselineEntry, BaselineFile, LedgerEntry, Removal
from pytest_accel.storage.references import METRICS, RELATIVE_ONLY

# What `--metric` may say, and the metrics that it means: of ours, and of what studies publish.
CHOICES: Mapping[str, tuple[str, ...]] = {
    "throughput": (THROUGHPUT, "first_epoch_throughput"),
    "energy": ("work_per_energy", "energy"),
    "power": ("power_mean_w", "power_peak_w", "tdp_share"),
    "clocks": ("sm_clock_mhz", "memory_clock_mhz", "temperature_c"),
    "scaling": ("scaling_efficiency",),
    "mfu": ("mfu",),
    "memory": ("peak_memory",),
    "time": ("step_time", "epoch_time", "training_time"),
    "first-step": ("first_step_time",),
    "accuracy": ("accuracy",),
}
DEFAULT = ("throughput", "energy", "scaling", "mfu")  # where no metric is named
_LESS = frozenset({"step_time", "first_step_time", "peak_memory", "warmup_time"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One column: what one set says of one platform."""

    label: str
    group: str  # the set that it belongs to
    platform: str
    about: str = ""  # where it comes from, in words
    study: str = ""  # the source of published figures; empty where it was measured
    entries: Mapping[str, Entry] = field(default_factory=dict)  # by key

    @property
    def published(self) -> bool:
        return bool(self.study)

    @property
    def hardware(self) -> str:
        """The platform without its variant, which some files do not name."""
        return self.platform.partition("-")[0]

    @property
    def machines(self) -> set[frozenset[tuple[str, str]]]:
        """The identities of all its runs."""
        return {
            frozenset(entry.environment_of(run).identity.items())
            for entry in self.entries.values()
            for run in entry.runs
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A figure of one column, and its ratio to the reference column."""

    value: Value | None = None
    ratio: float | None = None  # above 1 is better, also where less of the metric is; None: not comparable
    differs: str = ""  # what is not alike between the two, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One workload, one metric in one unit, over all sides."""

    key: str
    name: str
    table: str
    metric: str
    unit: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A benchmark of a later set against the same of the first."""

    key: str
    name: str
    side: Side
    baseline: Side
    judgement: Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All columns, rows and verdicts of a comparison."""

    sides: tuple[Side, ...]
    held_to: tuple[Side | None, ...]  # for each side: that its ratios are to; None for that one itself
    rows: tuple[Row, ...]
    judged: tuple[Judged, ...]
    alone: Mapping[str, int]  # by label: rows that no other side has

    @property
    def regressions(self) -> tuple[Judged, ...]:
        return tuple(each for each in self.judged if each.judgement.outcome is Outcome.REGRESSED)

    @property
    def unjudged(self) -> tuple[Judged, ...]:
        return tuple(each for each in self.judged if not each.judgement.was_judged)

    @property
    def lost(self) -> tuple[Judged, ...]:
        """Benchmarks that failed in a later set or are missing from it: their speed there is unknown."""
        return tuple(each for each in self.judged if each.judgement.failed or each.judgement.missing)

    @property
    def is_of_one_study(self) -> bool:
        return len({side.study for side in self.sides}) == 1 and self.sides[0].published


def compare(
    sides: Sequence[Side],
    *,
    metrics: Sequence[str] = (),
    tolerance: float | None = None,
    wanted: Callable[[str], bool] = lambda _name: True,
) -> Comparison:
    """Match the rows of all sides, compute ratios to the first, and judge comparable runs."""
    held_to = tuple(_held_to(side, sides) for side in sides)
    groups = [group for group in matched(sides) if any(wanted(entry.key) for entry in group.values())]
    shown = _metrics(metrics, groups, sides)
    rows = [row for metric in shown for group in groups for row in _rows(group, metric, sides, held_to)]
    return Comparison(
        sides=tuple(sides),
        held_to=held_to,
        rows=tuple(rows),
        judged=tuple(_judged(groups, sides, tolerance)),
        alone={
            side.label: sum(1 for group in groups if {at for at in group if group[at].values} == {index})
            for index, side in enumerate(sides)
        },
    )


def is_better_less(metric: str) -> bool:
    """Return whether less of a published or measured metric is better."""
    known = METRICS.get(metric)
    return known == "less" if known else metric in _LESS or less_is_better(metric)


# --- which rows belong together ---------------------------------------------------------------------

Group = dict[int, Entry]  # by the position of the side


def matched(sides: Sequence[Side]) -> list[Group]:
    """Return entries of one workload: by key, between platforms by name, or by a link to a published figure."""
    groups: list[Group] = []
    known: dict[tuple[str, str], list[Group]] = {}  # by key, by name, and by the ids that links lead to
    for index, side in enumerate(sides):
        names = Counter(entry.name for entry in side.entries.values())
        rest = []
        for entry in side.entries.values():
            if found := known.get(("key", entry.key)):
                found[0][index] = entry
            else:
                rest.append(entry)
        for entry in rest:
            group = _linked(entry, side, index, known)
            if group is None and names[entry.name] == 1:
                group = _named(entry, side, index, known, sides)
            if group is None:
                group = {}
                groups.append(group)
            group[index] = entry
            for key in _match_keys(entry, side):
                ours = known.setdefault(key, [])
                if not any(each is group for each in ours):
                    ours.append(group)
    return groups


def _match_keys(entry: Entry, side: Side) -> Iterator[tuple[str, str]]:
    """Yield the keys under which other entries find this one."""
    yield "key", entry.key
    if side.published:
        yield "published", entry.key
        return
    yield "name", entry.name
    for link in entry.links:
        yield from (("links to", beginning) for beginning in _beginnings(link))


def _beginnings(link: str) -> Iterator[str]:
    segments = link.split("/")
    return ("/".join(segments[:count]) for count in range(1, len(segments) + 1))


def _named(
    entry: Entry,
    side: Side,
    index: int,
    known: Mapping[tuple[str, str], Sequence[Group]],
    sides: Sequence[Side],
) -> Group | None:
    if side.published:
        return None
    found = [
        group
        for group in known.get(("name", entry.name), ())
        if index not in group
        and all(other.name == entry.name for at, other in group.items() if not sides[at].published)
        and all(sides[at].hardware != side.hardware for at in group if not sides[at].published)
    ]
    return found[0] if len(found) == 1 else None


def _linked(
    entry: Entry, side: Side, index: int, known: Mapping[tuple[str, str], Sequence[Group]]
) -> Group | None:
    if side.published:
        found = list(known.get(("links to", entry.key), ()))
    else:
        beginnings = [beginning for link in entry.links for beginning in _beginnings(link)]
        found = [group for each in beginnings for group in known.get(("published", each), ())]
    return next((group for group in found if index not in group), None)


# --- ratios -----------------------------------------------------------------------------------------


def _held_to(side: Side, sides: Sequence[Side]) -> Side | None:
    """Return the same platform of the first set, or the first column where it has none."""
    reference = sides[0]
    if side is reference:
        return None
    if side.group == reference.group:
        return reference
    return counterpart(side, [each for each in sides if each.group == reference.group]) or reference


def counterpart(side: Side, others: Sequence[Side]) -> Side | None:
    """Return the same platform in another set: by its full name, or by the machine of its runs where a file has no variant."""
    for other in others:
        if other.platform == side.platform:
            return other
    alike = [
        other
        for other in others
        if other.hardware == side.hardware and side.hardware in (side.platform, other.platform)
    ]
    if len(alike) == 1:
        return alike[0]
    machines = side.machines
    return next((other for other in alike if machines & other.machines), None)


def _metrics(wanted: Sequence[str], groups: Sequence[Group], sides: Sequence[Side]) -> list[str]:
    present = list(dict.fromkeys(metric for group in groups for e in group.values() for metric in e.values))
    if wanted:
        chosen = [metric for name in wanted for metric in CHOICES.get(name, (name,))]
        found = [metric for metric in chosen if metric in present]
        if groups and not found:
            names = {metric: name for name, metrics in CHOICES.items() for metric in metrics}
            known = ", ".join(sorted({names.get(metric, metric) for metric in present}))
            raise ValueError(f"--metric {' '.join(wanted)}: nothing here has it. There are: {known}.")
        return found
    if all(side.published for side in sides):
        return present
    return [metric for name in DEFAULT for metric in CHOICES[name] if metric in present]


def _rows(group: Group, metric: str, sides: Sequence[Side], held_to: Sequence[Side | None]) -> Iterator[Row]:
    units = dict.fromkeys(entry.values[metric].unit for entry in group.values() if metric in entry.values)
    first = next((e for at, e in group.items() if not sides[at].published), next(iter(group.values())))
    name, table = _title(group, first, sides)
    for unit in units:
        shown = {
            index: entry
            for index, entry in group.items()
            if metric in entry.values and entry.values[metric].unit == unit
        }
        cells = tuple(_cell(index, shown, metric, sides, held_to) for index in range(len(sides)))
        yield Row(key=first.key, name=name, table=table, metric=metric, unit=unit, cells=cells)


def _title(group: Group, first: Entry, sides: Sequence[Side]) -> tuple[str, str]:
    """Return the name of a row, and the tables of a study that hold it.

    It is the row's name in the study, unless platforms have rows of different names there, or other sets are compared too.
    """
    tables = ", ".join(dict.fromkeys(entry.table for entry in group.values() if entry.table))
    one_study = len({side.study for side in sides}) == 1
    named_alike = len({entry.name for entry in group.values()}) == 1
    if all(sides[at].published for at in group) and not (one_study and named_alike):
        return first.key.partition("/")[2] if one_study else first.key, tables
    return first.name, tables


def _cell(
    index: int, shown: Group, metric: str, sides: Sequence[Side], held_to: Sequence[Side | None]
) -> Cell:
    if index not in shown:
        return Cell()
    entry, reference = shown[index], held_to[index]
    value = entry.values[metric]
    at = next((i for i, side in enumerate(sides) if side is reference), None)
    if at is None or at not in shown:
        return Cell(value=value)
    other = shown[at].values[metric]
    if sides[index].study != sides[at].study and RELATIVE_ONLY in (*value.flags, *other.flags):
        return Cell(value=value, differs="only ratios within that study can be compared")
    any_published = sides[index].published or sides[at].published
    differs = "" if any_published else ", ".join(configuration_changes(shown[at], entry))
    return Cell(value=value, ratio=_ratio(value.value, other.value, metric), differs=differs)


def _ratio(mine: float, theirs: float, metric: str) -> float | None:
    # It describes a platform, or how it was measured: no way is better.
    if METRICS.get(metric, "more") is None or metric in DESCRIPTIVE:
        return None
    above, below = (theirs, mine) if is_better_less(metric) else (mine, theirs)
    return above / below if below > 0 and above > 0 else None


# --- the gate ---------------------------------------------------------------------------------------


def _judged(groups: Sequence[Group], sides: Sequence[Side], tolerance: float | None) -> Iterator[Judged]:
    """Yield a judgement for each benchmark of the first set and each later set of the same platform."""
    first = [side for side in sides if side.group == sides[0].group and not side.published]
    for index, side in enumerate(sides):
        baseline = None if side.published or side.group == sides[0].group else counterpart(side, first)
        if baseline is None:
            continue
        before = next(at for at, each in enumerate(sides) if each is baseline)
        for group in groups:
            if before in group and group[before].runs:
                old, new = group[before], group.get(index)
                judgement = (
                    judged(old, new, tolerance)
                    if new and new.key == old.key
                    else Judgement(why_not="it is missing there", missing=True)
                )
                yield Judged(key=old.key, name=old.name, side=side, baseline=baseline, judgement=judgement)


# --- changes between two baselines ------------------------------------------------------------------


class ChangeKind(Enum):
    ADDED = "added"
    REMOVED = "removed"
    RENAMED = "renamed"  # the same runs under another key
    RECORDED_AGAIN = "re-recorded"  # none of its old runs is left
    CHANGED = "changed"  # some runs were added or removed
    LEDGER = "ledger only"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBenchmark:
    """One benchmark of a file of baselines."""

    file: BaselineFile
    key: str
    entry: BaselineEntry

    @property
    def throughput(self) -> Value:
        return figures(self.entry.runs, self.entry.work_per_step, self.entry.unit)[THROUGHPUT]

    @property
    def environment(self) -> Environment:
        """The environment of its newest run."""
        return self.file.environments[self.entry.runs[-1].environment]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineChange:
    """One benchmark that differs between two baselines."""

    kind: ChangeKind
    old: StoredBenchmark | None = None
    new: StoredBenchmark | None = None
    added_runs: int = 0
    removed_runs: int = 0
    ledger: tuple[LedgerEntry, ...] = ()  # lines that are new
    removal: Removal | None = None

    @property
    def stored(self) -> StoredBenchmark:
        found = self.new or self.old
        assert found is not None
        return found

    @property
    def configuration(self) -> list[str]:
        """Changes of the configuration, name old -> new."""
        return configuration_changes(self.old.entry, self.new.entry) if self.old and self.new else []

    @property
    def environment(self) -> tuple[Change, ...]:
        """Changes of the newest runs' environment, identity first."""
        if not (self.old and self.new):
            return ()
        then, now = self.old.environment, self.new.environment
        return (*diff_identity(then, now), *diff(then, now))

    @property
    def gain(self) -> float | None:
        """Change of throughput: -0.05 is 5 % slower; None where two different things were measured."""
        if not (self.old and self.new) or self.configuration:
            return None
        return self.new.throughput.value / self.old.throughput.value - 1


def baseline_changes(
    old: Sequence[BaselineFile], new: Sequence[BaselineFile], platforms: Collection[str] = ()
) -> list[BaselineChange]:
    """Return the changes from one set of baselines to another, by platform and key; of these platforms, or of all."""
    before, after = _stored(old, platforms), _stored(new, platforms)
    removals = {(file.platform, each.benchmark): each for file in new for each in file.removed}
    changes = []
    for place in sorted(before.keys() | after.keys()):
        change = _change(before.get(place), after.get(place))
        if change is not None:
            changes.append(replace(change, removal=removals.get(place) if place not in after else None))
    return _with_renames(changes)


def _stored(
    files: Sequence[BaselineFile], platforms: Collection[str]
) -> dict[tuple[str, str], StoredBenchmark]:
    return {
        (file.platform, key): StoredBenchmark(file=file, key=key, entry=entry)
        for file in files
        if not platforms or file.platform in platforms
        for key, entry in file.benchmarks.items()
    }


def _change(old: StoredBenchmark | None, new: StoredBenchmark | None) -> BaselineChange | None:
    was, now = (old.entry.runs if old else ()), (new.entry.runs if new else ())
    added = sum(not is_stored(run, was) for run in now)
    removed = sum(not is_stored(run, now) for run in was)
    past = old.entry.ledger if old else ()
    ledger = tuple(line for line in new.entry.ledger if line not in past) if new else ()
    if old is None:
        kind = ChangeKind.ADDED
    elif new is None:
        kind = ChangeKind.REMOVED
    elif removed == len(was):
        kind = ChangeKind.RECORDED_AGAIN
    elif added or removed:
        kind = ChangeKind.CHANGED
    elif ledger:
        kind = ChangeKind.LEDGER
    else:
        return None
    return BaselineChange(kind=kind, old=old, new=new, added_runs=added, removed_runs=removed, ledger=ledger)


def _with_renames(changes: Sequence[BaselineChange]) -> list[BaselineChange]:
    """Return the changes with a removed and an added benchmark of the same runs as one that was renamed."""
    gone = [each for each in changes if each.kind is ChangeKind.REMOVED]
    found: list[BaselineChange] = []
    for each in changes:
        old = next((other for other in gone if _is_renamed(other, each)), None)
        if old is not None:
            gone.remove(old)
            found.append(replace(each, kind=ChangeKind.RENAMED, old=old.old, ledger=()))
        else:
            found.append(each)
    return [each for each in found if each.kind is not ChangeKind.REMOVED or each in gone]


def _is_renamed(gone: BaselineChange, added: BaselineChange) -> bool:
    if added.kind is not ChangeKind.ADDED or gone.stored.file.platform != added.stored.file.platform:
        return False
    was, now = gone.stored.entry.runs, added.stored.entry.runs
    return len(was) == len(now) and all(is_stored(run, was) for run in now)
