"""Comparison of sets of figures: their sources by name, matching rows, ratios, and the gate's verdicts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_accel.stats.comparison import Judgement, Value, configuration_changes, figures, judged
from pytest_accel.stats.environment import Environment
from pytest_accel.stats.gate import THROUGHPUT, Outcome
from pytest_accel.stats.metric_gates import DESCRIPTIVE, less_is_better
from pytest_accel.stats.quantities import counted, did_you_mean
from pytest_accel.stats.results import Ending, Result
from pytest_accel.stats.run import short_name
from pytest_accel.storage import baselines
from pytest_accel.storage.baselines import BaselineError, BaselineStore
from pytest_accel.storage.files import read_text
from pytest_accel.storage.results import read_results

# What `--metric` may say, and the metrics that it means.
CHOICES: Mapping[str, tuple[str, ...]] = {
    "throughput": (THROUGHPUT,),
    "energy": ("work_per_energy", "energy"),
    "power": ("power_mean_w", "power_peak_w", "tdp_share"),
    "clocks": ("sm_clock_mhz", "memory_clock_mhz", "temperature_c"),
    "scaling": ("scaling_efficiency",),
    "mfu": ("mfu",),
    "memory": ("peak_memory",),
    "time": ("step_time", "epoch_time"),
    "first-step": ("first_step_time",),
    "accuracy": ("accuracy",),
}
DEFAULT = ("throughput", "energy", "scaling", "mfu")  # where no metric is named
_LESS = frozenset({"step_time", "first_step_time", "epoch_time", "energy", "peak_memory", "warmup_time"})

Values = Mapping[str, Mapping[str, Value]]  # of one side: by key, then by metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One column: what one set says of one platform."""

    label: str
    group: str  # the set that it belongs to
    platform: str
    about: str = ""  # where it comes from, in words
    results: Mapping[str, Result] = field(default_factory=dict)  # by key
    environments: Mapping[str, Environment] = field(default_factory=dict)  # of their runs, by key


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
    side: Side
    baseline: Side
    judgement: Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    sides: tuple[Side, ...]
    held_to: tuple[int, ...]  # for each side: the position of that which its ratios are to
    rows: tuple[Row, ...]
    judged: tuple[Judged, ...]


def compare(
    sides: Sequence[Side],
    *,
    metrics: Sequence[str] = (),
    tolerance: float | None = None,
    wanted: Callable[[str], bool] = lambda _name: True,
) -> Comparison:
    """Match the rows of all sides, compute ratios to the first, and judge comparable runs."""
    held_to = tuple(_counterpart(side, sides) or 0 for side in sides)
    keys = [key for key in dict.fromkeys(key for side in sides for key in side.results) if wanted(key)]
    values: list[Values] = [
        {
            key: figures(each.runs, each.work_per_step, each.unit)
            for key, each in side.results.items()
            if each.runs
        }
        for side in sides
    ]
    present = {metric for of_side in values for key in keys for metric in of_side.get(key, ())}
    shown = _metrics(metrics, present) if keys else []
    rows = [row for metric in shown for key in keys for row in _rows(key, metric, sides, values, held_to)]
    return Comparison(
        sides=tuple(sides), held_to=held_to, rows=tuple(rows), judged=tuple(_judged(keys, sides, tolerance))
    )


# --- ratios -----------------------------------------------------------------------------------------


def _counterpart(side: Side, sides: Sequence[Side]) -> int | None:
    """Return the position of the same platform in the first set; None where it has none, or is this set."""
    first = [index for index, each in enumerate(sides) if each.group == sides[0].group]
    if side.group == sides[0].group:
        return None
    return next((index for index in first if sides[index].platform == side.platform), None)


def _metrics(wanted: Sequence[str], present: Collection[str]) -> list[str]:
    """Return the metrics that are asked for, or the default, and that anything has."""
    meant = (metric for name in wanted or DEFAULT for metric in CHOICES.get(name, (name,)))
    found = [metric for metric in meant if metric in present]
    if wanted and not found:
        names = {metric: name for name, metrics in CHOICES.items() for metric in metrics}
        known = ", ".join(sorted({names.get(metric, metric) for metric in present}))
        raise ValueError(f"--metric {' '.join(wanted)}: nothing here has it. There are: {known}.")
    return found


def _rows(
    key: str, metric: str, sides: Sequence[Side], values: Sequence[Values], held_to: Sequence[int]
) -> Iterator[Row]:
    """Yield a row for each unit that the sides have the metric in."""
    found = [of_side.get(key, {}).get(metric) for of_side in values]
    for unit in dict.fromkeys(each.unit for each in found if each):
        shown = [each if each and each.unit == unit else None for each in found]
        cells = []
        for index, at in enumerate(held_to):
            mine, theirs = shown[index], shown[at]
            if mine is None or theirs is None or at == index:
                cells.append(Cell(value=mine))
            else:
                changes = configuration_changes(sides[at].results[key], sides[index].results[key])
                ratio = _ratio(mine.value, theirs.value, metric)
                cells.append(Cell(value=mine, ratio=ratio, differs=", ".join(changes)))
        yield Row(key=key, name=short_name(key), metric=metric, unit=unit, cells=tuple(cells))


def _ratio(mine: float, theirs: float, metric: str) -> float | None:
    if metric in DESCRIPTIVE:  # it describes a platform, or how it was measured: no way is better
        return None
    is_better_less = metric in _LESS or less_is_better(metric)
    above, below = (theirs, mine) if is_better_less else (mine, theirs)
    return above / below if below > 0 and above > 0 else None


# --- the gate ---------------------------------------------------------------------------------------


def _judged(keys: Sequence[str], sides: Sequence[Side], tolerance: float | None) -> Iterator[Judged]:
    """Yield a judgement for each benchmark of the first set and each later set of the same platform."""
    for side in sides:
        at = _counterpart(side, sides)
        if at is None:
            continue
        before = sides[at]
        environments = {**before.environments, **side.environments}
        for key in keys:
            old, new = before.results.get(key), side.results.get(key)
            if old is None or not old.runs:
                continue
            missing = Judgement(why_not="it is missing there", status="missing")
            judgement = judged(old, new, environments, tolerance) if new else missing
            yield Judged(key=key, side=side, baseline=before, judgement=judgement)


# --- sources ----------------------------------------------------------------------------------------


def read_sources(names: Sequence[str], root: Path) -> list[Side]:
    """Return the sides of each name, in that order, with distinct labels."""
    if twice := [name for index, name in enumerate(names) if name in names[:index]]:
        raise ValueError(f"{twice[0]!r} is named twice: compared with itself it is the same.")
    titles = [Path(name).name or name for name in names]
    if len(set(titles)) < len(titles):
        titles = list(names)
    found = []
    for name, title in zip(names, titles, strict=True):
        sides = find_source(name, root)
        for side in sides:
            label = f"{title} {side.platform}" if len(sides) > 1 else title
            found.append(replace(side, label=label if len(names) > 1 else side.platform, group=title))
    return found


def find_source(name: str, root: Path) -> tuple[Side, ...]:
    """Return what a name means: a platform, else a path, which `./` says outright."""
    path = Path(name)
    platform = root / (name if path.exists() else BaselineStore(root).platform(name))
    if name and "/" not in name and name not in (baselines.PUBLISHED, ".", "..") and platform.is_dir():
        path = platform
    elif not name or not path.exists():
        known = BaselineStore(root).platforms()
        there = f"Platforms in {root}: {', '.join(known)}" if known else f"{root} holds no baselines"
        remedy = "Name a platform, a folder of baselines, or a file of --accel-json."
        raise ValueError(f"{name!r} is nothing to compare.{did_you_mean(name, known)} {there}. {remedy}")
    if path.is_dir():
        return _of_files(name, path)
    session = read_results(path)
    about = f"results of session {session.session}" + (f" of {session.at}" if session.at else "")
    return _sides(name, about, session.results, session.environments)


def _sides(
    name: str,
    about: str,
    results: Iterable[Result],
    environments: Mapping[str, Environment],
) -> tuple[Side, ...]:
    """Return the results of each platform, also those without runs: a comparison must show what failed."""
    platforms: dict[str, dict[str, Result]] = {}
    for result in results:
        if result.status is not Outcome.VANISHED and not result.is_platform:
            platforms.setdefault(result.disk_name, {})[result.stored_as] = result
    unplaced = platforms.pop("", {})  # failed before its platform was known: listed with every platform
    failed = {key: each for key, each in unplaced.items() if each.measured_as is Ending.FAILED}
    counts = {platform: sum(bool(each.runs) for each in of.values()) for platform, of in platforms.items()}
    if not any(counts.values()):
        raise ValueError(f"{name}: nothing was measured in it, so that there is nothing to compare.")
    return tuple(
        Side(
            label=name,
            group=name,
            platform=platform,
            about=f"{counted(count, 'benchmark')}, {about}",
            results={**failed, **platforms[platform]},
            environments=environments,
        )
        for platform, count in counts.items()
        if count
    )


# --- baselines --------------------------------------------------------------------------------------


def _of_files(name: str, folder: Path) -> tuple[Side, ...]:
    """Return the sides of the folder of one platform, or of a root of several, as results that were recorded."""
    paths = sorted(folder.glob("*.json"))
    paths = paths or [folder / name / f"{suite}.json" for name, suite in BaselineStore(folder).suites()]
    if not paths:
        raise ValueError(
            f"{folder} holds no baselines. A folder of baselines has one folder for each platform, "
            "and in it one JSON file for each suite: record some with --accel-record."
        )
    files = [
        baselines.parse(text, str(path))
        for path in paths
        if (text := read_text(path, BaselineError)) is not None
    ]
    results = [
        Result(
            benchmark=key,
            disk_name=file.platform,
            status=Ending.RECORDED,
            configuration=entry.configuration,
            work_per_step=entry.work_per_step,
            unit=entry.unit,
            tolerance=entry.tolerance,
            runs=entry.runs,
        )
        for file in files
        for key, entry in file.benchmarks.items()
    ]
    environments = {key: each for file in files for key, each in file.environments.items()}
    return _sides(name, f"baselines in {folder}", results, environments)
