"""`pytest-accel history`: sessions of other days, change points, import."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_accel.commands.registry import HISTORY, argument, by_keyword, command, parsed, required_history
from pytest_accel.report import history as history_text
from pytest_accel.stats.changepoints import MIN_VALUES, SEASON
from pytest_accel.stats.environment import Environment
from pytest_accel.stats.quantities import counted, parse_count, printable
from pytest_accel.storage.codec import encode
from pytest_accel.storage.results import read_results

if TYPE_CHECKING:  # SQLite is loaded only where it is needed
    from pytest_accel.storage.history import History, Point

_LISTED_SESSIONS = 20


@command(
    argument(
        "name", nargs="*", metavar="NAME", help="benchmarks by name, as pytest's -k; none: list sessions"
    ),
    argument(
        "--changes",
        action="store_true",
        help="change points: where benchmarks became slower or faster for good",
    ),
    argument(
        "--fail", action="store_true", help="with --changes: exit status 1 where something became slower"
    ),
    argument(
        "--import",
        dest="imported",
        nargs="+",
        default=[],
        type=Path,
        metavar="FILE",
        help="add sessions: files that --accel-json wrote",
    ),
    argument(
        "--platform", metavar="NAME", help="only this platform, as the folder of its baselines is named"
    ),
    argument(
        "--limit", type=parsed(parse_count(1, 1_000_000)), metavar="N", help="only the newest N sessions"
    ),
    argument("--json", action="store_true", help="print sessions or series as JSON"),
    HISTORY,
    example="history 'resnet50 and not fp32' --changes",
)
def history(args: argparse.Namespace) -> int:
    """List sessions, show the past of a benchmark, find changes."""
    from pytest_accel.storage.history import History

    # `history show NAME` is `history NAME`.
    args.name = " ".join(args.name[args.name[:1] in (["show"], ["list"]) :])
    if args.fail and not args.changes:  # it would be green whatever happened
        raise ValueError("--fail goes with --changes.")
    opened = History(required_history(args))
    for session in [read_results(path) for path in args.imported]:  # all, before anything is written
        is_new = opened.append(session)
        print(f"{printable(session.session)}  {'added' if is_new else 'was there already'}")
    if args.changes:
        return _changes(opened, args)
    if args.imported:
        return 0
    if args.name or args.platform:
        _show(opened, args)
    else:
        _list(opened, args)
    return 0


def _list(history: History, args: argparse.Namespace) -> None:
    sessions = history.sessions(args.limit or _LISTED_SESSIONS)
    if args.json:
        print(json.dumps([asdict(each) for each in sessions], indent=2))
    else:
        print("\n".join(history_text.sessions_table(sessions)) if sessions else "no session is left in it")


def _show(history: History, args: argparse.Namespace) -> None:
    """Print the series of one benchmark; the shape alone where several have the name."""
    tracks = {each: history.series(each[1], each[0], args.limit) for each in _chosen(history, args)}
    if args.json:
        plain = [
            {"platform": platform, "benchmark": key, "throughput": point.throughput, **encode(point)}
            for (platform, key), points in tracks.items()
            for point in points
        ]
        print(json.dumps(plain, indent=2))
        return
    for named, points in tracks.items():
        print("\n".join(history_text.overview(history_text.series_title(*named), points)))
        if often := history_text.recurring([point.is_slow for point in points]):
            print(f"  {often}")
        if len(tracks) == 1:
            print("\n".join(["", *history_text.series_table(points)]))


def _changes(history: History, args: argparse.Namespace) -> int:
    """Print change points; advisory, the gate does not use them."""

    def environment(point: Point) -> Environment | None:
        return history.session(point.session).environments.get(point.environment)

    chosen = _chosen(history, args)
    found: list[tuple[history_text.Shift, ...]] = []
    short = 0  # series in which nothing can be found
    for platform, key in chosen:
        points = history.series(key, platform, args.limit or SEASON)
        short += len(points) < MIN_VALUES
        found.append(history_text.shifts(points, environment))
        often = history_text.recurring([point.is_slow for point in points])
        if found[-1] or often:
            lines = history_text.shift_lines(history_text.series_title(platform, key), points, found[-1])
            print("\n".join([*lines, *([f"  {often}"] if often else []), ""]))
    print(f"{sum(map(bool, found))} of {counted(len(chosen), 'benchmark')} changed")
    if short:
        print(f"{short} too short to say: change points need {MIN_VALUES} sessions")
    return int(args.fail and any(change.relative < 0 for each in found for change, _ in each))


def _chosen(history: History, args: argparse.Namespace) -> list[tuple[str, str]]:
    """Return platform and key of the series that NAME and --platform select; none is an error, not an empty answer."""
    known = history.benchmarks()
    wanted = by_keyword(args.name)
    named = args.platform or ""
    chosen = [
        (platform, key)
        for platform, key in known
        if wanted(key) and (named in ("", platform) or platform.startswith(f"{named}-"))
    ]
    if not chosen:
        platforms = ", ".join(sorted({platform for platform, _ in known})) or "none"
        raise ValueError(
            f"{history.path}: it has {len(known)} series, on: {platforms}; none is selected. "
            "Change NAME or --platform; `pytest-accel history test` shows all."
        )
    return chosen
