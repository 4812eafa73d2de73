"""`pytest-accel compare`: platforms, baselines and results side by side."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import TYPE_CHECKING

from pytest_accel.commands.registry import BASELINES, KEYWORD, argument, baselines_folder, by_keyword, command

if TYPE_CHECKING:
    from pytest_accel.storage.comparison import Comparison


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
    KEYWORD,
    BASELINES,
    argument(
        "--tolerance", default="", metavar="FRACTION", help="of the gate (the baseline's own, else 5%%)"
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
    from pytest_accel.report.comparison import render
    from pytest_accel.storage.comparison import compare as compared
    from pytest_accel.storage.comparison import read_sources

    found = compared(
        read_sources(args.sets, baselines_folder(args)),
        metrics=args.metric,
        tolerance=_tolerance(args.tolerance),
        wanted=by_keyword(args.keyword),
    )
    if not found.rows and args.keyword:
        raise ValueError(f"-k {args.keyword!r} selects none of the benchmarks of {', '.join(args.sets)}.")
    print(render(found, args.format), end="")
    return _status(found) if args.fail_on_regression else 0


def _tolerance(text: str) -> float | None:
    from pytest_accel.stats.quantities import parse_fixed_tolerance

    if not text:
        return None
    try:
        return parse_fixed_tolerance(text)
    except ValueError as error:
        raise ValueError(f"--tolerance {text!r} {error}") from None


def _status(found: Comparison) -> int:
    """Return the exit status; a comparison that judged nothing, or misses benchmarks, is not green."""
    from pytest_accel.stats.gate import LOSSES

    statuses = Counter(each.judgement.status for each in found.judged)
    regressed = sum(each.judgement.outcome in LOSSES for each in found.judged)
    counts = {
        "regressed or unstable": regressed,
        "failed or went unmeasured": statuses["failed"],
        "missing from the later set (choose what both have with -k)": statuses["missing"],
        "not judged, for the reasons above": statuses["not-judged"],
    }
    judged = statuses["judged"] + statuses["same-runs"]
    is_green = judged and not (regressed or statuses["failed"] or statuses["missing"])
    if not is_green or statuses["not-judged"]:
        words = [f"{judged} judged", *(f"{number} {what}" for what, number in counts.items() if number)]
        end = "" if is_green else ", so the check fails"
        print(f"--fail-on-regression: {', '.join(words)}{end}", file=sys.stderr)
    return 0 if is_green else 1
