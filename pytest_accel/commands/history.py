"""`pytest-accel history`: what was measured on other days, what changed, and the way to other tools."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_accel.commands.registry import GROUPS, argument, command, count
from pytest_accel.commands.selecting import HISTORY, KEYWORD, by_keyword, required_history
from pytest_accel.stats.changepoints import SEASON

if TYPE_CHECKING:
    from pytest_accel.report.history import Shift, Track
    from pytest_accel.stats.changepoints import Trend
    from pytest_accel.stats.environment import Environment
    from pytest_accel.stats.results import SessionResults
    from pytest_accel.stats.verdict import Verdict
    from pytest_accel.storage.history import History, Point, Tracked

GROUPS["history"] = "Look at what was measured on other days, and what changed."

_BY_A_METRIC = ("regressed", "inconclusive")  # what a gated metric alone can make of a benchmark
_UNITS_BYTES = {"K": 2**10, "M": 2**20, "G": 2**30}


def _size(text: str) -> int:
    """For `type=`: bytes, or 500K, 20M, 1G."""
    number, unit = text.upper().removesuffix("B"), 1
    if number[-1:] in _UNITS_BYTES:
        number, unit = number[:-1], _UNITS_BYTES[number[-1]]
    if not (number.isascii() and number.isdecimal() and int(number) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size. Write 500000, 500K, 20M or 1G")
    return int(number) * unit


def _day(text: str) -> datetime:
    """For `type=`: 2026-03-01."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a day. Write 2026-03-01") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


_PLATFORM = argument(
    "--platform", metavar="NAME", help="only this platform, as the folder of its baselines is named"
)
_LIMIT = argument(
    "--limit", type=count, metavar="N", help="only what the newest N sessions of a series measured"
)
_JSON = argument("--json", action="store_true", help="print it as JSON, for scripts")


@command(
    HISTORY,
    argument("--limit", type=count, default=20, metavar="N", help="the newest N (default 20)"),
    _JSON,
    group="history",
    name="list",
)
def list_sessions(args: argparse.Namespace) -> int:
    """List the sessions, the newest first."""
    from dataclasses import asdict

    from pytest_accel.report.history import sessions_table

    sessions = _history(args).sessions(args.limit)
    if args.json:
        print(json.dumps([asdict(each) for each in sessions], indent=2))
    elif sessions:
        print("\n".join(sessions_table(sessions)))
    else:
        print("no session is left in it")
    return 0


@command(KEYWORD, _PLATFORM, _LIMIT, HISTORY, _JSON, group="history")
def show(args: argparse.Namespace) -> int:
    """Show what sessions measured of a benchmark; the shape alone where several have the name."""
    from pytest_accel.report.exports import json_lines
    from pytest_accel.report.history import overview, series_table

    history = _history(args)
    tracks = _tracks(history, args)
    if args.json:
        print(f"[{', '.join(json_lines(tracks))}]")
        return 0
    for track in tracks:
        print("\n".join(overview(track)))
    if len(tracks) == 1:
        print("\n".join(["", *series_table(tracks[0], _decided(history, tracks[0]))]))
    return 0


@command(
    KEYWORD,
    _PLATFORM,
    argument(
        "--limit",
        type=count,
        default=SEASON,
        metavar="N",
        help=f"look at the newest N sessions of a series (default {SEASON}, as the report does)",
    ),
    HISTORY,
    argument("--since", type=_day, metavar="DAY", help="only changes on this day or later: 2026-03-01"),
    argument("--all", action="store_true", help="those without a change too"),
    argument("--fail", action="store_true", help="exit status 1 where something became slower"),
    group="history",
)
def changes(args: argparse.Namespace) -> int:
    """Say where benchmarks became slower or faster for good, and what changed there; the gate does not use it."""
    from pytest_accel.report.history import Track, shift_lines
    from pytest_accel.stats.quantities import counted

    history = _history(args)
    chosen = _chosen(history, args)
    found = []
    for each in chosen:
        trend = history.trend(each.key, each.platform, args.limit)
        shifts = _shifts(history, trend, args.since)
        found.append(shifts)
        if shifts or args.all:
            track = Track(platform=each.platform, key=each.key, points=trend.points)
            print("\n".join([*shift_lines(track, trend, shifts), ""]))
    print(f"{sum(map(bool, found))} of {counted(len(chosen), 'benchmark')} changed")
    slower = any(shift.is_slower for shifts in found for shift in shifts)
    return 1 if args.fail and slower else 0


@command(
    argument(
        "--format",
        required=True,
        choices=("jsonl", "csv", "otava", "conbench", "github-action-benchmark"),
        help="jsonl, csv and otava have series; conbench and github-action-benchmark one session",
    ),
    argument("-o", "--output", metavar="FILE", help="where to (default: standard output); otava: a folder"),
    KEYWORD,
    _PLATFORM,
    _LIMIT,
    HISTORY,
    argument("--all", action="store_true", help="jsonl, csv: what is not valid or was slowed on purpose too"),
    argument(
        "--session", metavar="ID", help="conbench, github-action-benchmark: which (default: the newest)"
    ),
    argument("--repository", metavar="URL", help="conbench: of the code, https://github.com/org/repo"),
    group="history",
)
def export(args: argparse.Namespace) -> int:
    """Write the history in another tool's format."""
    from pytest_accel.report import exports

    history = _history(args)
    match args.format:
        case "jsonl":
            lines = exports.json_lines(_tracks(history, args, everything=args.all))
            _write(args.output, "".join(f"{line}\n" for line in lines))
        case "csv":
            _write(args.output, exports.csv_text(_tracks(history, args, everything=args.all)))
        case "otava":
            _write_folder(args.output, exports.otava_files(_tracks(history, args)))
        case "conbench":
            if not (args.repository or "").startswith("https://github.com/"):
                raise ValueError(
                    f"--repository: {args.repository or ''!r} is none that Conbench takes. "
                    "Write https://github.com/org/repo."
                )
            lines = exports.conbench_lines(_exportable(history, args), args.repository)
            _write(args.output, "".join(f"{line}\n" for line in lines))
        case "github-action-benchmark":
            _write(args.output, exports.github_action_benchmark(_exportable(history, args)))
    return 0


@command(
    argument(
        "results", nargs="+", metavar="RESULTS", help="files that --accel-json wrote, or other histories"
    ),
    HISTORY,
    group="history",
)
def add(args: argparse.Namespace) -> int:
    """Add sessions of other machines, of runners that keep nothing, or what a damaged history still has."""
    from pytest_accel.stats.quantities import inert, printable
    from pytest_accel.storage.history_file import is_sqlite
    from pytest_accel.storage.results import read_results

    history = _history(args)
    named = [Path(each) for each in args.results]
    sessions = [
        read_results(path) for path in named if not is_sqlite(path)
    ]  # all, before anything is written
    for session in sessions:
        is_new = history.append(session)
        print(inert(f"{printable(session.session)}  {'added' if is_new else 'was there already'}"))
    for path in filter(is_sqlite, named):
        print(inert(f"{printable(str(path))}  {_merged(history, path)}"))
    return 0


@command(
    HISTORY,
    argument("--keep-days", type=count, metavar="N", help="keep the sessions of the last N days"),
    argument("--keep-sessions", type=count, metavar="N", help="keep the newest N sessions"),
    argument("--max-bytes", type=_size, metavar="SIZE", help="keep the newest that fit: 500K, 20M, 1G"),
    argument("--yes", action="store_true", help="do it; without, only what would be done is said"),
    group="history",
)
def prune(args: argparse.Namespace) -> int:
    """Remove the oldest sessions; baselines are not touched."""
    from pytest_accel.report.history import pruned_line

    if args.keep_days is None and args.keep_sessions is None and args.max_bytes is None:
        raise ValueError("say what is to stay: --keep-days, --keep-sessions or --max-bytes.")
    pruned = _history(args).prune(
        keep_days=args.keep_days,
        keep_sessions=args.keep_sessions,
        max_bytes=args.max_bytes,
        dry_run=not args.yes,
    )
    print(pruned_line(pruned, is_done=args.yes))
    if pruned.sessions and not args.yes:
        print("nothing was removed: --yes does it")
    return 0


# --- parts ------------------------------------------------------------------------------------------


def _history(args: argparse.Namespace) -> History:
    from pytest_accel.storage.history import History

    return History(required_history(args))


def _merged(history: History, path: Path) -> str:
    from pytest_accel.storage.history import History

    if path.resolve() == history.path.resolve():
        raise ValueError(f"{path} is the history that it would be added to. Name another with --history.")
    told = {"added": 0, "there already": 0, "damaged": 0}
    for session in History(path).salvaged():
        if session is None:
            told["damaged"] += 1
        else:
            told["added" if history.append(session) else "there already"] += 1
    return ", ".join(f"{number} {what}" for what, number in told.items())


def _chosen(history: History, args: argparse.Namespace, *, everything: bool = False) -> list[Tracked]:
    """The benchmarks that the arguments choose; that there is none is an error, not an empty answer."""
    known = history.benchmarks(everything=everything)
    wanted = by_keyword(args.keyword)
    chosen = [
        each for each in known if wanted(each.key) and (args.platform or each.platform) == each.platform
    ]
    if not chosen:
        platforms = ", ".join(sorted({each.platform for each in known})) or "none"
        raise ValueError(
            f"{history.path}: it has {len(known)} series, on: {platforms}; none is chosen. "
            "Change -k or --platform; `pytest-accel history show` lists all."
        )
    return chosen


def _tracks(history: History, args: argparse.Namespace, *, everything: bool = False) -> list[Track]:
    from pytest_accel.report.history import Track

    return [
        Track(
            platform=each.platform,
            key=each.key,
            points=history.series(each.key, each.platform, args.limit, everything=everything),
        )
        for each in _chosen(history, args, everything=everything)
    ]


def _decided(history: History, track: Track) -> dict[str, tuple[Verdict, ...]]:
    """By session, the metrics that decided: rows keep the loss of throughput alone, documents every verdict."""
    from pytest_accel.report.history import metrics_that_decided
    from pytest_accel.storage.history import HistoryError

    found = {}
    for point in track.points:
        if point.status not in _BY_A_METRIC or point.loss is None:
            continue
        try:
            results = history.session(point.session).results
        except HistoryError:
            continue  # a damaged document hides which; the row still has the rest
        for result in results:
            if (result.disk_name, result.key or result.benchmark) == (track.platform, track.key):
                found[point.session] = metrics_that_decided(result)
    return found


def _shifts(history: History, trend: Trend[Point], since: datetime | None) -> tuple[Shift, ...]:
    from pytest_accel.report.history import shifts

    environments: dict[str, Environment] = {}
    for key in {point.environment for point in trend.points}:
        if (environment := history.environment(key)) is not None:
            environments[key] = environment
    return tuple(
        shift
        for shift in shifts(trend, environments)
        if since is None or datetime.fromisoformat(shift.first.at) >= since
    )


def _session(history: History, args: argparse.Namespace) -> SessionResults:
    session = history.session(args.session) if args.session else history.latest()
    if session is None:
        raise ValueError(f"{history.path}: no session is left in it. The next one that measures is kept.")
    return session


def _exportable(history: History, args: argparse.Namespace) -> SessionResults:
    """A session that has something to pass on: of a drill, or of failures alone, there is nothing."""
    from pytest_accel.storage.history import belongs_to_series

    session = _session(history, args)
    if not any(map(belongs_to_series, session.results)):
        raise ValueError(
            f"session {session.session} measured nothing that may be passed on: its runs were not valid, or slowed on purpose. "
            "Name another with --session; pytest-accel history list has them."
        )
    return session


def _write(output: str | None, text: str) -> None:
    if output is None:
        sys.stdout.write(text)
    else:
        _write_file(Path(output), text)


def _write_folder(output: str | None, files: dict[str, str]) -> None:
    if output is None:
        raise ValueError("--format otava writes several files. Name a folder for them: -o otava.")
    for name, text in files.items():
        _write_file(Path(output) / name, text)
    print(f"{len(files) - 1} series. Look at them: cd {output} && otava list-tests --config-file otava.yaml")


def _write_file(path: Path, text: str) -> None:
    from pytest_accel.storage.whole import write_whole

    try:
        write_whole(path, text)
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}. Name another place (-o).") from None
