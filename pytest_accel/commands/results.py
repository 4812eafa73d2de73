"""`pytest-accel compare`, `explain` and `report`: what files of results hold."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_accel.commands import registry
from pytest_accel.commands.registry import argument, command
from pytest_accel.report.comparison import KERNEL_HEADINGS, kernel_rows, render
from pytest_accel.report.page import write_report
from pytest_accel.report.terminal import explanation, fitted, line_text, text_table
from pytest_accel.report.verdicts import VERDICTS
from pytest_accel.stats.causes import lost
from pytest_accel.stats.gate import LOSSES
from pytest_accel.stats.quantities import counted, did_you_mean, parse_fixed_tolerance, printable, seconds
from pytest_accel.stats.results import Result
from pytest_accel.storage.comparison import Comparison, read_sources
from pytest_accel.storage.comparison import compare as compared
from pytest_accel.storage.results import read_results

_NO_TABLES = "no kernel tables to compare: of a step with torch, the last run of a recording and a slow repeat have one"


@command(
    argument(
        "sets",
        nargs="+",
        metavar="SET",
        help="a platform (h200; cpu, where one begins with cpu-), a folder of baselines, or a file of --accel-json. Ratios are to the first",
    ),
    argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="throughput, energy, scaling, mfu (these are the default), memory, time, first-step, accuracy, "
        "power, clocks, or a metric of your own; repeatable",
    ),
    argument("--format", choices=("table", "markdown", "json"), default="table", help="(table)"),
    registry.KEYWORD,
    registry.BASELINES,
    argument(
        "--tolerance",
        type=registry.parsed(parse_fixed_tolerance),
        metavar="FRACTION",
        help="of the gate (the baseline's own, else 5%%)",
    ),
    argument(
        "--fail-on-regression",
        action="store_true",
        help="exit status 1 if the gate finds a regression, if a benchmark failed or is missing, or if nothing was judged",
    ),
    example="compare h200 results.json",
)
def compare(args: argparse.Namespace) -> int:
    """Show platforms, baselines and results side by side.

    The gate judges two sets of runs of one platform.
    """
    found = compared(
        read_sources(args.sets, registry.baselines_folder(args)),
        metrics=args.metric,
        tolerance=args.tolerance,
        wanted=registry.by_keyword(args.keyword),
    )
    if not found.rows and args.keyword:
        raise ValueError(f"-k {args.keyword!r} selects none of the benchmarks of {', '.join(args.sets)}.")
    print(render(found, args.format), end="")
    return _status(found) if args.fail_on_regression else 0


def _status(found: Comparison) -> int:
    """Return the exit status; a comparison that judged nothing, or misses benchmarks, is not green."""
    statuses = Counter(each.judgement.status for each in found.judged)
    judged = statuses["judged"] + statuses["same-runs"]
    faults = {
        "regressed or unstable": sum(each.judgement.outcome in LOSSES for each in found.judged),
        "failed or went unmeasured": statuses["failed"],
        "missing from the later set (choose what both have with -k)": statuses["missing"],
    }
    is_green = judged and not any(faults.values())
    if not is_green or statuses["not-judged"]:
        counts = {
            "judged": judged or "0",
            **faults,
            "not judged, for the reasons above": statuses["not-judged"],
        }
        words = ", ".join(f"{number} {what}" for what, number in counts.items() if number)
        print(f"--fail-on-regression: {words}{'' if is_green else ', so the check fails'}", file=sys.stderr)
    return 0 if is_green else 1


# --- explain ----------------------------------------------------------------------------------------


@command(
    argument("results", metavar="RESULTS.json", help="what --accel-json wrote"),
    argument(
        "benchmark", nargs="?", metavar="BENCHMARK", help="its name or node id (all that lost or failed)"
    ),
    example="explain results.json 'test_gpt[800m]'",
)
def explain(args: argparse.Namespace) -> int:
    """Print why benchmarks lost: their causes and kernels.

    Changes of operations, idle time and what is unexplained sum to the measured loss.
    """
    found = _chosen(read_results(Path(args.results)).results, args.benchmark)
    if not found:
        print(f"{args.results}: no benchmark lost or failed")
    for at, result in enumerate(found):
        print("\n" * bool(at) + "\n".join(explained(result)))
    return 0


def explained(result: Result) -> list[str]:
    """Return why one benchmark lost, in lines as wide as the terminal."""
    lines = fitted(map(printable, _lines(result)))
    if result.kernels is None:
        return [*lines, *fitted([_NO_TABLES])]
    return [*lines, *text_table(KERNEL_HEADINGS, kernel_rows(result.kernels))]


def _chosen(results: Sequence[Result], name: str | None) -> list[Result]:
    if name is None:
        return [result for result in results if result.has_lost or result.causes or result.failed]
    found = [result for result in results if name in (result.benchmark, result.name, result.label)]
    if not found:
        known = [result.name for result in results]
        raise ValueError(
            f"no benchmark {name!r} in these results.{did_you_mean(name, known)} "
            "Without a name, all that lost or failed are explained."
        )
    return found


def _lines(result: Result) -> Iterator[str]:
    for line in result.lines:
        yield line_text(result.label if line.status else "", line)
    if result.causes or VERDICTS[result.status].suspects:
        yield from explanation(result.causes, lost(result.verdict), result.changes)
    if ranks_s := result.runs[-1].rank_step_s if result.runs else ():
        slowest_s = max(ranks_s)
        slowest = f"rank {ranks_s.index(slowest_s)}, {seconds(slowest_s)} a step"
        yield f"slowest of {counted(len(ranks_s), 'rank')}: {slowest} (the fastest {seconds(min(ranks_s))})"


# --- report -----------------------------------------------------------------------------------------


@command(
    argument("results", nargs="?", metavar="RESULTS.json", help="what --accel-json wrote"),
    argument(
        "--session", metavar="ID", help="a session of the history, by a beginning of its id (the newest)"
    ),
    argument(
        "-o",
        "--output",
        default="report.html",
        metavar="FILE",
        help="a page, or Markdown where it ends in .md (report.html)",
    ),
    registry.HISTORY,
    example="report results.json -o report.html",
)
def report(args: argparse.Namespace) -> int:
    """Write the HTML page or the Markdown summary of a session.

    Of results in a file, or of the history's newest session.
    """
    if args.results and args.session:
        raise ValueError("RESULTS.json and --session are two sessions. Name one of them.")
    output, history = Path(args.output), registry.located("history", args.history)
    if args.results:
        session = read_results(Path(args.results))
    else:
        from pytest_accel.storage.history import History

        kept = History(registry.required_history(args))
        session = kept.session(args.session) if args.session else kept.latest()
    write_report(output, session, history=history)
    print(f"{output}: {counted(len(session.results), 'benchmark')} of session {printable(session.session)}")
    return 0
