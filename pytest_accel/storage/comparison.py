"""Comparison of sets of figures: matching rows, ratios, and the gate's verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_accel.stats.comparison import Entry, Judgement, Value, configuration_changes, judged
from pytest_accel.stats.metric_gates import DESCRIPTIVE, less_is_better
from pytest_accel.stats.verdict import THROUGHPUT, Outcome
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

Group = dict[int, Entry]  # entries of one workload, by the position of their side


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
    held_to: tuple[int, ...]  # for each side: the position of that which its ratios are to
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


def compare(
    sides: Sequence[Side],
    *,
    metrics: Sequence[str] = (),
    tolerance: float | None = None,
    wanted: Callable[[str], bool] = lambda _name: True,
) -> Comparison:
    """Match the rows of all sides, compute ratios to the first, and judge comparable runs."""
    held_to = tuple(_counterpart(side, sides) or 0 for side in sides)
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


def matched(sides: Sequence[Side]) -> list[Group]:
    """Return entries of one workload: by key, or by a link to a published figure."""
    groups: list[Group] = []
    by_key: dict[str, Group] = {}
    for index, side in enumerate(sides):
        for entry in sorted(side.entries.values(), key=lambda each: each.key not in by_key):
            group = by_key.get(entry.key)
            if group is None:
                free = (each for each in groups if index not in each)
                linked = (each for each in free if any(_are_linked(entry, one) for one in each.values()))
                group = next(linked, None)
            if group is None:
                groups.append(group := {})
            group[index] = entry
            by_key.setdefault(entry.key, group)
    return groups


def _are_linked(one: Entry, other: Entry) -> bool:
    """Return whether one is a benchmark that names the other, a published figure."""
    pairs = [(link, other.key) for link in one.links] + [(link, one.key) for link in other.links]
    return any(link == key or link.startswith(f"{key}/") for link, key in pairs)


# --- ratios -----------------------------------------------------------------------------------------


def _counterpart(side: Side, sides: Sequence[Side]) -> int | None:
    """Return the position of the same platform in the first set; None where it has none, or is this set."""
    first = [index for index, each in enumerate(sides) if each.group == sides[0].group]
    if side.group == sides[0].group:
        return None
    return next((index for index in first if sides[index].platform == side.platform), None)


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


def _rows(group: Group, metric: str, sides: Sequence[Side], held_to: Sequence[int]) -> Iterator[Row]:
    first = next((e for at, e in group.items() if not sides[at].published), next(iter(group.values())))
    for unit in dict.fromkeys(e.values[metric].unit for e in group.values() if metric in e.values):
        shown = {
            index: entry
            for index, entry in group.items()
            if metric in entry.values and entry.values[metric].unit == unit
        }
        cells = tuple(_cell(index, held_to[index], shown, metric, sides) for index in range(len(sides)))
        yield Row(key=first.key, name=first.name, metric=metric, unit=unit, cells=cells)


def _cell(index: int, at: int, shown: Group, metric: str, sides: Sequence[Side]) -> Cell:
    if index not in shown:
        return Cell()
    value = shown[index].values[metric]
    if at == index or at not in shown:
        return Cell(value=value)
    other = shown[at].values[metric]
    if sides[index].study != sides[at].study and RELATIVE_ONLY in (*value.flags, *other.flags):
        return Cell(value=value, differs="only ratios within that study can be compared")
    any_published = sides[index].published or sides[at].published
    differs = "" if any_published else ", ".join(configuration_changes(shown[at], shown[index]))
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
    for index, side in enumerate(sides):
        before = _counterpart(side, sides)
        if before is None or side.published or sides[before].published:
            continue
        for group in groups:
            if before in group and group[before].runs:
                old, new = group[before], group.get(index)
                judgement = (
                    judged(old, new, tolerance)
                    if new and new.key == old.key
                    else Judgement(why_not="it is missing there", missing=True)
                )
                yield Judged(
                    key=old.key, name=old.name, side=side, baseline=sides[before], judgement=judgement
                )
