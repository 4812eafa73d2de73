"""History as text: a line of blocks, tables, and change points with what changed around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

from pytest_accel.report.terminal import changed, text_table
from pytest_accel.stats.changepoints import MIN_VALUES, ChangePoint, change_points
from pytest_accel.stats.environment import Environment, describe, diff, diff_identity
from pytest_accel.stats.quantities import counted, printable, seconds, si

if TYPE_CHECKING:  # SQLite is loaded only where it is needed
    from pytest_accel.storage.history import Point, SessionFacts

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 60  # of a line of blocks
_NARROWEST = 0.04  # of the level: smaller movements look flat
# Newest sessions, those before, and how many of the newest are news.
SLOW_OF, SLOW_BEFORE, SLOW_OFTEN = 6, 12, 3
_SHORT = 12  # digits of a revision


Shift: TypeAlias = tuple[ChangePoint, tuple[str, ...]]  # a change of throughput, and what else changed there


def changes_of(points: Sequence[Point]) -> tuple[ChangePoint, ...]:
    """Return the change points of the throughput of a series."""
    return change_points([point.throughput for point in points])


def shifts(points: Sequence[Point], environment: Callable[[Point], Environment | None]) -> tuple[Shift, ...]:
    """Return each change point of a series with its suspects; `environment` is that of a point."""
    found = []
    for change in changes_of(points):
        last, first = points[change.index - 1], points[change.index]
        suspects = _suspects(last, first, environment(last), environment(first))
        found.append((change, tuple(map(printable, suspects))))
    return tuple(found)


def _suspects(last: Point, first: Point, old: Environment | None, new: Environment | None) -> Iterator[str]:
    """Yield what may explain a change, the most likely first."""
    if last.configuration != first.configuration:
        yield "the benchmark's own configuration"
    if old is not None and new is not None:
        yield from (describe(found) for found in (diff_identity(old, new), diff(old, new)) if found)
    if last.host != first.host:
        yield f"host {last.host or 'unknown'} -> {first.host or 'unknown'}"
    if last.revision != first.revision:
        yield f"revision {last.revision[:_SHORT] or 'unknown'} -> {first.revision[:_SHORT] or 'unknown'}"


def recurring(slow: Sequence[bool]) -> str:
    """Return a sentence where the newest sessions often had a slow run and those before never; else empty.

    The oldest comes first. Fewer than 6 sessions before do not show that it is new.
    """
    newest, before = slow[-SLOW_OF:], slow[-SLOW_OF - SLOW_BEFORE : -SLOW_OF]
    if sum(newest) < SLOW_OFTEN or any(before) or len(before) < SLOW_OF:
        return ""
    return (
        f"slow runs in {sum(newest)} of the last {len(newest)} sessions, in none of the {len(before)} before: "
        "a slow mode that comes and goes"
    )


# --- text -------------------------------------------------------------------------------------------


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Return a block a value; the median of several where more than `width` are given."""
    count = min(width, len(values))
    shown = [median(values[i * len(values) // count : (i + 1) * len(values) // count]) for i in range(count)]
    low, high = min(shown), max(shown)
    margin = max(0.0, _NARROWEST * abs(median(shown)) - (high - low)) / 2
    low, high = low - margin, high + margin
    if high <= low:
        return BLOCKS[0] * count
    steps = len(BLOCKS) - 1
    return "".join(BLOCKS[round((value - low) / (high - low) * steps)] for value in shown)


def series_title(platform: str, key: str) -> str:
    return printable(f"{platform}  {key}")


def overview(title: str, points: Sequence[Point]) -> list[str]:
    values = [point.throughput for point in points]
    newest = f"{si(values[-1])} {printable(points[-1].unit)}/s"
    return [title, f"  {sparkline(values)}  {newest}, {counted(len(values), 'session')}"]


def series_table(points: Sequence[Point]) -> list[str]:
    """Return a row a session, the newest last."""
    unit = f"{printable(points[-1].unit)}/s"
    rows = [
        [
            _moment(point.at),
            point.status,
            si(point.throughput),
            "" if point.loss is None else changed(point.loss),
            seconds(point.step_time_s),
            str(len(point.step_times_s)),
            point.session,
            point.revision[:_SHORT],
            point.environment,
        ]
        for point in points
    ]
    titles = ["when (UTC)", "verdict", f"{unit}>", "against baseline>", "step>", "runs>"]
    titles += ["session", "revision", "environment"]
    return text_table(titles, rows)


def sessions_table(sessions: Sequence[SessionFacts]) -> list[str]:
    """Return a row a session, the newest first."""
    rows = [
        [
            _moment(each.at),
            each.session,
            *(str(number) for number in (each.benchmarks, each.measured, each.failed, each.exit_status)),
            seconds(each.duration_s),
            each.host,
            each.revision[:_SHORT],
        ]
        for each in sessions
    ]
    titles = ["when (UTC)", "session", "benchmarks>", "measured>", "failed>", "exit>", "took>"]
    titles += ["host", "revision"]
    return text_table(titles, rows)


def unchanged(points: Sequence[Point]) -> str:
    if len(points) < MIN_VALUES:
        return f"too short to say: change points need {MIN_VALUES} sessions"
    return "no change"


def shift_lines(title: str, points: Sequence[Point], found: Sequence[Shift]) -> list[str]:
    lines = overview(title, points)
    for change, suspects in found:
        first = points[change.index]
        lines.append(
            f"  {changed(-change.relative)} since {_moment(first.at)}, session {printable(first.session)}: "
            f"{si(change.before)} -> {si(change.after)} {printable(first.unit)}/s"
        )
        named = [f"suspect: {suspect}" for suspect in suspects]
        lines += [f"    {text}" for text in named or ["nothing that is recorded changed there"]]
    return lines


def _moment(at: str) -> str:
    return printable(at)[:16].replace("T", " ")
