"""History as text, JSON lines and CSV: tables, change points with what changed around them."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_accel.report.terminal import Cell, Column, changed, lines_of
from pytest_accel.stats.changepoints import MIN_VALUES
from pytest_accel.stats.environment import describe, diff, diff_identity
from pytest_accel.stats.metric_gates import shown_name
from pytest_accel.stats.quantities import counted, inert, percent, printable, seconds, si
from pytest_accel.stats.verdict import THROUGHPUT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_accel.stats.changepoints import ChangePoint, HasThroughput, Trend
    from pytest_accel.stats.environment import Environment
    from pytest_accel.stats.results import Result
    from pytest_accel.stats.verdict import Verdict
    from pytest_accel.storage.history import HistoryRun, Point, Pruned, SessionFacts

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 60  # of a line of blocks
_NARROWEST = 0.04  # of the level: smaller movements look flat
_SHORT = 12  # digits of a revision
_PEAK_MEMORY = "peak_memory_bytes"
_FACTS = (
    *("platform", "benchmark", "at", "session", "host", "revision", "status", "loss"),
    *("work_per_step", "unit", "environment", "configuration"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """The series of one benchmark on one platform, the oldest point first."""

    platform: str
    key: str
    points: tuple[Point, ...]

    @property
    def title(self) -> str:
        return inert(printable(f"{self.platform}  {self.key}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A new level, the two sessions between which it began, and what else changed there."""

    change: ChangePoint  # of throughput
    last: Point  # of the old level
    first: Point  # of the new one
    suspects: tuple[str, ...]

    @property
    def is_slower(self) -> bool:
        return self.change.relative < 0


def shifts(trend: Trend[Point], environments: Mapping[str, Environment]) -> tuple[Shift, ...]:
    """Return each change point of a series with the sessions around it."""
    sides = [(found, trend.points[found.index - 1], trend.points[found.index]) for found in trend.changes]
    return tuple(
        Shift(change=found, last=last, first=first, suspects=_suspects(last, first, environments))
        for found, last, first in sides
    )


def _suspects(last: Point, first: Point, environments: Mapping[str, Environment]) -> tuple[str, ...]:
    """Return what may explain a change, the most likely first."""
    old, new = environments.get(last.environment), environments.get(first.environment)
    named = []
    if last.configuration != first.configuration:
        named.append("the benchmark's own configuration")
    if old is not None and new is not None:
        named += [describe(found) for found in (diff_identity(old, new), diff(old, new)) if found]
    if last.host != first.host:
        named.append(f"host {last.host or 'unknown'} -> {first.host or 'unknown'}")
    if last.revision != first.revision:
        named.append(f"revision {_revision(last) or 'unknown'} -> {_revision(first) or 'unknown'}")
    return tuple(printable(each) for each in named)


# --- text -------------------------------------------------------------------------------------------


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Return a block a value; the median of several where more than `width` are given."""
    if not values:
        return ""
    count = min(width, len(values))
    shown = [median(values[i * len(values) // count : (i + 1) * len(values) // count]) for i in range(count)]
    low, high = min(shown), max(shown)
    margin = max(0.0, _NARROWEST * abs(median(shown)) - (high - low)) / 2
    low, high = low - margin, high + margin
    if high <= low:
        return BLOCKS[0] * count
    steps = len(BLOCKS) - 1
    return "".join(BLOCKS[round((value - low) / (high - low) * steps)] for value in shown)


def overview(track: Track) -> list[str]:
    """Return the name of a benchmark, and its shape with the newest figure."""
    newest = track.points[-1]
    values = [point.throughput for point in track.points]
    return [
        track.title,
        f"  {sparkline(values)}  {si(values[-1])} {printable(newest.unit)}/s, {counted(len(values), 'session')}",
    ]


def metrics_that_decided(result: Result) -> tuple[Verdict, ...]:
    """Return the verdicts of metrics that gave a result its status; none where its throughput did."""
    deciding = tuple(verdict for verdict in result.verdicts if verdict.outcome is result.status)
    return () if any(verdict.of == THROUGHPUT for verdict in deciding) else deciding


def series_table(track: Track, decided: Mapping[str, Sequence[Verdict]] = MappingProxyType({})) -> list[str]:
    """Return a row a session, the newest last.

    `decided` has, by session, the metrics that decided in place of throughput.
    """
    unit = f"{printable(track.points[-1].unit)}/s"
    rows = [
        [
            _moment(point.at),
            point.session,
            _revision(point),
            str(len(point.runs)),
            seconds(point.step_time_s),
            si(point.throughput),
            _verdict(point, decided.get(point.session, ())),
            point.environment,
        ]
        for point in track.points
    ]
    return _table(
        ["when (UTC)", "session", "revision", "runs>", "step>", f"{unit}>", "verdict", "environment"], rows
    )


def _verdict(point: Point, decided: Sequence[Verdict]) -> str:
    if decided:
        return f"{point.status}: {', '.join(map(_of_metric, decided))}"
    return point.status if point.loss is None else f"{point.status}, {changed(point.loss)}"


def _of_metric(verdict: Verdict) -> str:
    name, found = shown_name(verdict.of), verdict.slowdown
    return name if found is None else f"{name} {changed(found.point, verdict.of)}"


def sessions_table(sessions: Sequence[SessionFacts]) -> list[str]:
    """Return a row a session, the newest first."""
    titles = [
        "when (UTC)",
        "session",
        "revision",
        "host",
        "benchmarks>",
        "measured>",
        "failed>",
        "exit>",
        "took>",
    ]
    rows = [
        [
            _moment(each.at),
            each.session,
            each.revision[:_SHORT],
            each.host,
            *(str(number) for number in (each.benchmarks, each.measured, each.failed, each.exit_status)),
            seconds(each.duration_s),
        ]
        for each in sessions
    ]
    return _table(titles, rows)


def unchanged(trend: Trend[HasThroughput]) -> str:
    """Return the text for a series without a change."""
    if trend.is_too_short:
        return f"too short to say: change points need {MIN_VALUES} sessions"
    return "no change"


def shift_lines(track: Track, trend: Trend[Point], found: Sequence[Shift]) -> list[str]:
    """Return a benchmark, its shape, and each change with its suspects below."""
    lines = overview(track)
    if not found:
        return [*lines, f"  {unchanged(trend)}"]
    for each in found:
        change, unit = each.change, printable(each.first.unit)
        lines.append(
            f"  {changed(-change.relative)} since {_moment(each.first.at)}, session {printable(each.first.session)}: "
            f"{si(change.before)} -> {si(change.after)} {unit}/s (significance {change.significance:g})"
        )
        lines += [f"    suspect: {suspect}" for suspect in each.suspects] or [
            "    nothing that is recorded changed there"
        ]
    return lines


def pruned_line(pruned: Pruned, *, is_done: bool) -> str:
    what = counted(len(pruned.sessions), "session")
    share = percent(1 - pruned.bytes_after / pruned.bytes_before) if pruned.bytes_before else percent(0)
    size = f"{pruned.bytes_before:,} -> {pruned.bytes_after:,} bytes, {share} less"
    return f"{'removed' if is_done else 'would remove'} {what}, {pruned.left} stay ({size})"


def _moment(at: str) -> str:
    return printable(at)[:16].replace("T", " ")


def _revision(point: Point) -> str:
    return point.revision[:_SHORT]


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table; a title that ends in `>` is of figures."""
    columns = [Column(title=title.removesuffix(">"), right=title.endswith(">")) for title in titles]
    return lines_of(columns, [[Cell(text=printable(cell)) for cell in row] for row in rows])


# --- exports ----------------------------------------------------------------------------------------


def json_lines(tracks: Iterable[Track]) -> Iterator[str]:
    """Yield a line a benchmark and session, with all its runs."""
    for track in tracks:
        for point in track.points:
            yield json.dumps(
                {
                    **_facts(track, point),
                    "step_time_s": point.step_time_s,
                    "throughput": point.throughput,
                    "runs": [{"step_time_s": run.step_time_s, **_metrics(run)} for run in point.runs],
                }
            )


def csv_text(tracks: Sequence[Track]) -> str:
    """Return a row a run."""
    runs = [
        (track, point, position, run)
        for track in tracks
        for point in track.points
        for position, run in enumerate(point.runs)
    ]
    names = sorted({name for *_, run in runs for name in _metrics(run)})
    rows = (
        {
            **_facts(track, point),
            "run": position,
            "step_time_s": run.step_time_s,
            "throughput": point.work_per_step / run.step_time_s,
            **{f"metrics.{name}": value for name, value in _metrics(run).items()},
        }
        for track, point, position, run in runs
    )
    return _csv([*_FACTS, "run", "step_time_s", "throughput", *(f"metrics.{name}" for name in names)], rows)


def _facts(track: Track, point: Point) -> dict[str, Any]:
    named = {"platform": track.platform, "benchmark": track.key}
    return {name: named[name] if name in named else getattr(point, name) for name in _FACTS}


def _metrics(run: HistoryRun) -> dict[str, float]:
    own = {} if run.peak_memory_bytes is None else {_PEAK_MEMORY: run.peak_memory_bytes}
    return {**run.metrics, **own}


def _csv(columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
