"""Data of the plots: rounds and history of a benchmark; batch sizes across benchmarks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_accel.report.history import changes_of, unchanged
from pytest_accel.report.terminal import changed
from pytest_accel.stats.gate import THROUGHPUT, Policy, interval
from pytest_accel.stats.quantities import percent, si
from pytest_accel.stats.results import Result
from pytest_accel.stats.run import Run

if TYPE_CHECKING:  # SQLite is loaded only where it is needed
    from pytest_accel.storage.history import Point

_DIGITS = 6  # of what is only drawn: a pixel is a thousandth of a plot
_MOST_ROUNDS = 40  # of a run: 500 benchmarks of ten runs take a megabyte, which mail and CI artifacts allow
_MOST_SWEEPS = 12  # the table has every figure
_BATCH_SIZE = "batch_size"
_FOLLOWS = frozenset({_BATCH_SIZE, "distinct_batches", "epoch_size", "lr"})  # depend on the batch size
Nights = dict[tuple[str, str, str], int]  # time, session and revision, each once: benchmarks share them


def drawn(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


# --- one benchmark ----------------------------------------------------------------------------------


def rounds(result: Result) -> dict[str, object] | None:
    """Return the rounds of this session's runs and of the baseline's."""
    if not result.runs:
        return None
    work = result.work_per_step
    tolerance = result.verdict.tolerance if result.verdict else result.tolerance
    return {
        "unit": f"{result.unit}/s",
        "now": [_run(run, work) for run in result.runs],
        "then": [_run(run, work) for run in result.baseline],
        "now_interval": _interval(result.runs, work),
        "then_interval": _interval(result.baseline, work) if result.baseline else None,
        "tolerance": tolerance,
        "tolerance_text": percent(tolerance) if tolerance else "",
    }


def _run(run: Run, work: float) -> dict[str, object]:
    last = len(run.rounds_s) - 1
    count = min(last + 1, _MOST_ROUNDS)  # chosen evenly, the first and the last among them
    shown = [run.rounds_s[place * last // max(count - 1, 1)] for place in range(count)]
    return {
        "session": run.session,
        "throughput": drawn(run.throughput(work)),
        "rounds": [drawn(work / seconds) for seconds in shown],
    }


def _interval(runs: Sequence[Run], work: float) -> list[float]:
    found = interval(runs, Policy())
    return [drawn(work / seconds) for seconds in (found.high_s, found.point_s, found.low_s)]


def past(result: Result, points: Sequence[Point], nights: Nights) -> dict[str, object] | None:
    """Return the newest values of the history and where they changed; None for fewer than two."""
    if len(points) < 2:
        return None
    named = [(point.at, point.session, point.revision[:12]) for point in points]
    return {
        "unit": f"{result.unit}/s",
        "nights": [nights.setdefault(night, len(nights)) for night in named],
        "throughput": [drawn(point.throughput) for point in points],
        "changes": [
            {
                "index": found.index,
                "before": drawn(found.before),
                "after": drawn(found.after),
                "text": changed(-found.relative),
            }
            for found in changes_of(points)
        ],
        "unchanged": unchanged(points),
    }


# --- across benchmarks ------------------------------------------------------------------------------


def sweeps(results: Sequence[Result]) -> list[dict[str, object]]:
    """Return throughput over batch size, a plot a workload, a line a platform and configuration, each beside its baseline's."""
    workloads: dict[tuple[str, str], dict[tuple[str, ...], list[Result]]] = {}
    for result in results:
        if result.runs and _batch(result):
            lines = workloads.setdefault((_workload(result), f"{result.unit}/s"), defaultdict(list))
            lines[_line(result)].append(result)
    plots: list[dict[str, object]] = []
    for (workload, unit), lines in workloads.items():
        swept = {name: line for name, line in lines.items() if len(set(map(_batch, line))) > 1}
        if not swept:
            continue
        drawn_lines = [
            {
                "name": name,
                "points": _points((_batch(each), each.throughput, unit) for each in line),
                "then": _points((_batch(each), each.baseline_throughput, unit) for each in line),
            }
            for name, line in _line_names(swept).items()
        ]
        published = _published([each for line in swept.values() for each in line], unit)
        title = f"Throughput over batch size: {workload}"
        plots.append({"title": title, "unit": unit, "lines": drawn_lines, "published": published})
    return plots[:_MOST_SWEEPS]


def _points(known: Iterable[tuple[int, float | None, str]]) -> list[tuple[int, float, str]]:
    return sorted(
        (size, drawn(value), f"{si(value)} {unit}") for size, value, unit in known if value is not None
    )


def _published(results: Iterable[Result], unit: str) -> list[dict[str, object]]:
    """Return the published figures beside these benchmarks, a curve a source and platform."""
    curves: dict[str, set[tuple[int, float, str]]] = defaultdict(set)
    for result in results:
        for figure in result.references:
            if figure.metric == THROUGHPUT and figure.unit == unit:
                curve = curves[f"{figure.platform} ({figure.source})"]
                curve.add((_batch(result), drawn(figure.value), ", ".join(figure.flags)))
    return [{"name": name, "points": sorted(points)} for name, points in curves.items()]


def _batch(result: Result) -> int:
    """Return its batch size; 0 where it has none."""
    size = result.configuration.get(_BATCH_SIZE)
    return size if isinstance(size, int) else 0


def _workload(result: Result) -> str:
    parts = (result.configuration.get("model"), result.configuration.get("task"))
    return " ".join(str(part) for part in parts if part) or result.name.partition("[")[0]


def _line(result: Result) -> tuple[str, ...]:
    """Return what the members of one line share: all but the batch size."""
    shared = (f"{name}={value}" for name, value in result.configuration.items() if name not in _FOLLOWS)
    return result.platform, result.name.partition("[")[0], *sorted(shared)


def _line_names(lines: Mapping[tuple[str, ...], Sequence[Result]]) -> dict[str, Sequence[Result]]:
    """Name each line by its platform and by what its configuration has and another's has not."""
    common = set.intersection(*map(set, lines))
    return {
        ", ".join([platform, *(part for part in parts if part not in common)]): line
        for (platform, *parts), line in lines.items()
    }
