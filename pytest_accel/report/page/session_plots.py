"""Plots of the session as a whole, each only where there is something to compare: batch sizes, devices, energy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pytest_accel.platforms import names as grammar
from pytest_accel.report.page.plots import drawn
from pytest_accel.report.page.rows import units_per_wh
from pytest_accel.stats.quantities import percent, si
from pytest_accel.stats.results import Result
from pytest_accel.stats.run import Scalar
from pytest_accel.stats.verdict import THROUGHPUT
from pytest_accel.storage.reference_values import Figure

BATCH_SIZE = "batch_size"
# What may differ along a sweep besides the batch itself, because it follows from it.
_FOLLOWS = frozenset({BATCH_SIZE, "distinct_batches", "epoch_size", "lr"})
MOST_SWEEPS = 12  # a page of plots that nobody scrolls through helps nobody; the table has every figure


def session_plots(results: Sequence[Result], published: Iterable[Figure]) -> list[dict[str, object]]:
    return [*sweeps(results, tuple(published)), *scalings(results), *energies(results)]


# --- throughput over batch size ---------------------------------------------------------------------------


def sweeps(results: Sequence[Result], published: Sequence[Figure]) -> list[dict[str, object]]:
    """One plot a workload: a line a platform and configuration, the published curves behind them."""
    lines: dict[tuple[str, str], dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        if result.runs and _batch(result.configuration) is not None:
            lines[_workload(result), result.unit][_line(result)].append(result)
    plots = []
    for (workload, unit), of_workload in lines.items():
        swept = {name: members for name, members in of_workload.items() if _sizes(members) > 1}
        if swept:
            plots.append(_sweep(workload, unit, swept, published))
    return plots[:MOST_SWEEPS]


def _sweep(
    workload: str, unit: str, lines: Mapping[str, Sequence[Result]], published: Sequence[Figure]
) -> dict[str, object]:
    members = [result for line in lines.values() for result in line]
    return {
        "kind": "sweep",
        "title": f"Throughput over batch size: {workload}",
        "unit": f"{unit}/s",
        "lines": [
            {
                "name": name,
                "points": sorted(
                    (_batch(result.configuration) or 0, drawn(result.throughput or 0), _said(result))
                    for result in line
                ),
            }
            for name, line in _told_apart(lines).items()
        ],
        "published": [*_curves(members, f"{unit}/s", published)],
    }


def _curves(members: Sequence[Result], unit: str, published: Sequence[Figure]) -> Iterable[dict[str, object]]:
    """Figures that stand beside a member, and the rest of the curves that those, or its model, belong to."""
    beside: dict[tuple[str, str], dict[int, tuple[float, str]]] = defaultdict(dict)
    for result in members:
        for figure in result.references:
            size = _batch(result.configuration)
            if figure.metric == THROUGHPUT and figure.unit == unit and size is not None:
                beside[figure.source, figure.platform].setdefault(
                    size, (figure.value, ", ".join(figure.flags))
                )
    linked = {figure.id for result in members for figure in result.references}
    models = {result.configuration.get("model") for result in members if _trains(result)} - {None}
    whole: dict[tuple[str, str], list[Figure]] = defaultdict(list)
    for each in published:
        if each.metric == THROUGHPUT and each.unit == unit and each.is_absolute:
            whole[f"{each.id.partition('/')[0]}, {each.workload}", each.platform].append(each)
    for (source, platform), figures in whole.items():
        is_linked = any(figure.id in linked for figure in figures)
        is_same = any(f.configuration.get("model") in models and "training" in f.workload for f in figures)
        points = {
            size: (figure.value, ", ".join(figure.flags))
            for figure in reversed(figures)  # the first of two at one size stays
            if (size := _batch(figure.configuration)) is not None
        }
        if len(points) > 1 and (is_linked or is_same):
            _without(beside, platform, points)
            beside[source, platform] = points
    for (source, platform), points in beside.items():
        yield {
            "name": f"{platform} ({source})",
            "points": [(size, drawn(value), flags) for size, (value, flags) in sorted(points.items())],
        }


def _without(
    beside: dict[tuple[str, str], dict[int, tuple[float, str]]], platform: str, points: Mapping[int, object]
) -> None:
    """A figure is drawn once: the whole curve stands for the parts of it that stood beside a benchmark."""
    for key in [key for key in beside if key[1] == platform]:
        if all(points.get(size) == figure for size, figure in beside[key].items()):
            del beside[key]


def _batch(configuration: Mapping[str, Scalar]) -> int | None:
    size = configuration.get(BATCH_SIZE)
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None


def _sizes(members: Sequence[Result]) -> int:
    return len({_batch(result.configuration) for result in members})


def _trains(result: Result) -> bool:
    return result.configuration.get("task", "train") == "train"


def _workload(result: Result) -> str:
    parts = (result.configuration.get("model"), result.configuration.get("task"))
    return " ".join(str(part) for part in parts if part) or result.name.partition("[")[0]


def _line(result: Result) -> str:
    """What the members of one line share: all but the batch size."""
    shared = {name: value for name, value in result.configuration.items() if name not in _FOLLOWS}
    return "\0".join(
        [result.platform, result.name.partition("[")[0], *(f"{k}={v}" for k, v in sorted(shared.items()))]
    )


def _told_apart(lines: Mapping[str, Sequence[Result]]) -> dict[str, Sequence[Result]]:
    """Each line by its platform and by what its configuration has that another's has not."""
    keys = {name: name.split("\0") for name in lines}
    common = set.intersection(*(set(parts) for parts in keys.values())) if len(lines) > 1 else set()
    names: dict[str, Sequence[Result]] = {}
    for name, parts in keys.items():
        own = [part for part in parts[1:] if part not in common] if len(lines) > 1 else []
        names[", ".join([parts[0], *own])] = lines[name]
    return names


def _said(result: Result) -> str:
    return f"{si(result.throughput or 0)} {result.unit}/s"


# --- devices ----------------------------------------------------------------------------------------------


def scalings(results: Sequence[Result]) -> list[dict[str, object]]:
    """Efficiency over devices, a line a benchmark, from the smaller platform where it is 1."""
    lines: dict[str, dict[int, tuple[float, str]]] = defaultdict(dict)
    for result in results:
        figure = result.scaling
        if figure is None or not (figure.efficiency > 0 and figure.speedup > 0):
            continue
        few = _devices(figure.against)
        many = round(few * figure.speedup / figure.efficiency)
        lines[result.name].setdefault(few, (1.0, f"{figure.against}: 100.0 %"))
        text = f"{result.platform}: {percent(figure.efficiency)}, {figure.speedup:.2f} x {figure.against} ({figure.kind})"
        lines[result.name][many] = (drawn(figure.efficiency), text)
    if not lines:
        return []
    return [
        {
            "kind": "scaling",
            "title": "Scaling efficiency",
            "lines": [
                {"name": name, "points": [(x, y, text) for x, (y, text) in sorted(points.items())]}
                for name, points in lines.items()
            ],
        }
    ]


def _devices(platform: str) -> int:
    try:
        return grammar.parse(platform).devices
    except grammar.PlatformNameError:
        return 1


# --- energy -----------------------------------------------------------------------------------------------


def energies(results: Sequence[Result]) -> list[dict[str, object]]:
    """What a watt-hour buys against how quickly, one plot a unit of work, where two or more can be compared."""
    by_unit: dict[str, list[tuple[float, float, str, str, str]]] = defaultdict(list)
    for result in results:
        per_wh = units_per_wh(result)
        if per_wh is not None and result.throughput is not None:
            text = f"{si(result.throughput)} {result.unit}/s, {si(per_wh)} {result.unit}/Wh"
            by_unit[result.unit].append(
                (drawn(result.throughput), drawn(per_wh), result.name, text, result.platform)
            )
    return [
        {"kind": "energy", "title": f"Energy against throughput: {unit}", "unit": unit, "points": points}
        for unit, points in by_unit.items()
        if len(points) > 1
    ]
