"""`pytest-accel history`: sessions of other days, change points, exchange with other tools."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_accel.commands.project import HISTORY, by_keyword, required_history
from pytest_accel.commands.registry import argument, command, count
from pytest_accel.stats.changepoints import SEASON
from pytest_accel.stats.quantities import counted

if TYPE_CHECKING:
    from pytest_accel.report.history import Shift, Track
    from pytest_accel.stats.changepoints import Trend
    from pytest_accel.stats.verdict import Verdict
    from pytest_accel.storage.history import History, HistoryBenchmark, Point

_BY_A_METRIC = ("regressed", "inconclusive")  # verdicts that a gated metric alone can cause
_LISTED_SESSIONS = 20
_UNITS_BYTES = {"K": 2**10, "M": 2**20, "G": 2**30}


def _kept(text: str) -> dict[str, int]:
    """Parse 400d, 30 or 20M, for `type=`: what `History.prune` keeps."""
    found = re.fullmatch(r"([1-9][0-9]*)(d|[KMG])?", text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is none of 400d (days), 30 (sessions), 20M (bytes: K, M, G)"
        )
    number, unit = int(found[1]), found[2]
    if unit == "d":
        return {"keep_days": number}
    return {"max_bytes": number * _UNITS_BYTES[unit]} if unit else {"keep_sessions": number}


@command(
    argument(
        "name",
        nargs="?",
        default="",
        metavar="NAME",
        help="benchmarks by name, as pytest's -k; none: list sessions",
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
        "--export",
        choices=("jsonl", "csv"),
        help="the series as JSON lines, or as a table with a row for each run",
    ),
    argument("-o", "--output", metavar="FILE", help="with --export: where to (standard output)"),
    argument(
        "--import",
        dest="imported",
        nargs="+",
        metavar="FILE",
        help="add sessions: files that --accel-json wrote, or other histories, damaged ones too",
    ),
    argument(
        "--prune",
        type=_kept,
        metavar="KEPT",
        help="remove the oldest sessions except the last 400d (days), 30 (sessions) or 20M (bytes)",
    ),
    argument("--yes", action="store_true", help="with --prune: do it, instead of saying what would be done"),
    argument(
        "--platform", metavar="NAME", help="only this platform, as the folder of its baselines is named"
    ),
    argument("--limit", type=count, metavar="N", help="only the newest N sessions"),
    argument("--json", action="store_true", help="print sessions or series as JSON"),
    HISTORY,
)
def history(args: argparse.Namespace) -> int:
    """List the sessions, show one benchmark's past, find changes; export, import and prune the history."""
    from pytest_accel.storage.history import History

    actions = {
        "--changes": args.changes,
        "--export": args.export,
        "--import": args.imported,
        "--prune": args.prune,
    }
    named = [name for name, value in actions.items() if value]
    if len(named) > 1:
        raise ValueError(f"{' and '.join(named)} are two actions. Name one of them.")
    opened = History(required_history(args))
    match named:
        case ["--changes"]:
            return _changes(opened, args)
        case ["--export"]:
            _export(opened, args)
        case ["--import"]:
            _import(opened, [Path(each) for each in args.imported])
        case ["--prune"]:
            _prune(opened, args.prune, is_done=args.yes)
        case _ if args.name or args.platform:
            _show(opened, args)
        case _:
            _list(opened, args)
    return 0


def _list(history: History, args: argparse.Namespace) -> None:
    from dataclasses import asdict

    from pytest_accel.report.history import sessions_table

    sessions = history.sessions(args.limit or _LISTED_SESSIONS)
    if args.json:
        print(json.dumps([asdict(each) for each in sessions], indent=2))
    else:
        print("\n".join(sessions_table(sessions)) if sessions else "no session is left in it")


def _show(history: History, args: argparse.Namespace) -> None:
    """Print the series of one benchmark; the shape alone where several have the name."""
    from pytest_accel.report.history import json_lines, overview, series_table

    tracks = _tracks(history, args)
    if args.json:
        print(f"[{', '.join(json_lines(tracks))}]")
        return
    for track in tracks:
        print("\n".join(overview(track)))
    if len(tracks) == 1:
        print("\n".join(["", *series_table(tracks[0], _deciding_metrics(history, tracks[0]))]))


def _changes(history: History, args: argparse.Namespace) -> int:
    """Print change points; advisory, the gate does not use them."""
    from pytest_accel.report.history import Track, shift_lines

    chosen = _chosen(history, args)
    found: list[tuple[Shift, ...]] = []
    for each in chosen:
        trend = history.trend(each.key, each.platform, args.limit or SEASON)
        found.append(_shifts(history, trend))
        if found[-1]:
            track = Track(platform=each.platform, key=each.key, points=trend.points)
            print("\n".join([*shift_lines(track, trend, found[-1]), ""]))
    print(f"{sum(map(bool, found))} of {counted(len(chosen), 'benchmark')} changed")
    return int(args.fail and any(shift.is_slower for shifts in found for shift in shifts))


def _export(history: History, args: argparse.Namespace) -> None:
    from pytest_accel.report.history import csv_text, json_lines

    tracks = _tracks(history, args)
    lines = (f"{line}\n" for line in json_lines(tracks))
    _write(args.output, csv_text(tracks) if args.export == "csv" else "".join(lines))


def _import(history: History, files: list[Path]) -> None:
    from pytest_accel.stats.quantities import inert, printable
    from pytest_accel.storage.history_file import is_sqlite
    from pytest_accel.storage.results import read_results

    sessions = [
        read_results(path) for path in files if not is_sqlite(path)
    ]  # all, before anything is written
    for session in sessions:
        is_new = history.append(session)
        print(inert(f"{printable(session.session)}  {'added' if is_new else 'was there already'}"))
    for path in filter(is_sqlite, files):
        print(inert(f"{printable(str(path))}  {_merge(history, path)}"))


def _merge(history: History, path: Path) -> str:
    from pytest_accel.storage.history import History

    if path.resolve() == history.path.resolve():
        raise ValueError(f"{path} is the history that it would be added to. Name another with --history.")
    counts = {"added": 0, "there already": 0, "damaged": 0}
    for session in History(path).salvaged():
        if session is None:
            counts["damaged"] += 1
        else:
            counts["added" if history.append(session) else "there already"] += 1
    return ", ".join(f"{number} {what}" for what, number in counts.items())


def _prune(history: History, kept: Mapping[str, int], *, is_done: bool) -> None:
    from pytest_accel.report.history import pruned_line

    pruned = history.prune(
        keep_days=kept.get("keep_days"),
        keep_sessions=kept.get("keep_sessions"),
        max_bytes=kept.get("max_bytes"),
        dry_run=not is_done,
    )
    print(pruned_line(pruned, is_done=is_done))
    if pruned.sessions and not is_done:
        print("nothing was removed: --yes does it")


# --- series -----------------------------------------------------------------------------------------


def _chosen(history: History, args: argparse.Namespace) -> list[HistoryBenchmark]:
    """Return the series that NAME and --platform select; none is an error, not an empty answer."""
    known = history.benchmarks()
    wanted = by_keyword(args.name)
    chosen = [
        each for each in known if wanted(each.key) and (args.platform or each.platform) == each.platform
    ]
    if not chosen:
        platforms = ", ".join(sorted({each.platform for each in known})) or "none"
        raise ValueError(
            f"{history.path}: it has {len(known)} series, on: {platforms}; none is selected. "
            "Change NAME or --platform; `pytest-accel history test` shows all."
        )
    return chosen


def _tracks(history: History, args: argparse.Namespace) -> list[Track]:
    from pytest_accel.report.history import Track

    return [
        Track(
            platform=each.platform, key=each.key, points=history.series(each.key, each.platform, args.limit)
        )
        for each in _chosen(history, args)
    ]


def _deciding_metrics(history: History, track: Track) -> dict[str, tuple[Verdict, ...]]:
    """Return the metrics that decided, by session: rows keep the loss of throughput alone."""
    from pytest_accel.report.history import metrics_that_decided
    from pytest_accel.storage.history_file import HistoryError

    found = {}
    for point in track.points:
        if point.status not in _BY_A_METRIC or point.loss is None:
            continue
        try:
            results = history.session(point.session).results
        except HistoryError:
            continue  # a damaged document: the row still has the rest
        for result in results:
            if (result.disk_name, result.key or result.benchmark) == (track.platform, track.key):
                found[point.session] = metrics_that_decided(result)
    return found


def _shifts(history: History, trend: Trend[Point]) -> tuple[Shift, ...]:
    from pytest_accel.report.history import shifts

    keys = {point.environment for point in trend.points}
    found = {key: environment for key in keys if (environment := history.environment(key)) is not None}
    return shifts(trend, found)


def _write(output: str | None, text: str) -> None:
    from pytest_accel.storage.files import write_atomic

    if output is None:
        sys.stdout.write(text)
        return
    try:
        write_atomic(Path(output), text)
    except OSError as error:
        raise ValueError(f"{output} cannot be written: {error.strerror}. Name another place (-o).") from None
