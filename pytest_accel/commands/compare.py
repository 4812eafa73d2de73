"""`pytest-accel compare`: platforms, baselines, results, revisions and studies side by side."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_accel.commands.project import BASELINES, KEYWORD, baselines_folder, by_keyword
from pytest_accel.commands.registry import argument, command
from pytest_accel.stats.quantities import counted

if TYPE_CHECKING:
    from pytest_accel.storage.comparison import Comparison


@command(
    argument(
        "sets",
        nargs="+",
        metavar="SET",
        help="a platform (h200), a folder of baselines, a file of --accel-json, git:REV or REV:PATH, or a study "
        "(nrp, olivia/single). Ratios are to the first",
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
)
def compare(args: argparse.Namespace) -> int:
    """Show sets of figures side by side, and what the gate says of two sets of runs of one platform."""
    from pytest_accel.report.baselines import new_ledger_lines
    from pytest_accel.report.comparison import render
    from pytest_accel.storage.comparison import compare as compared
    from pytest_accel.storage.sources import read_sources

    sources = read_sources(args.sets, baselines_folder(args))
    found = compared(
        [side for each in sources for side in each.sides],
        metrics=args.metric,
        tolerance=_tolerance(args.tolerance),
        wanted=by_keyword(args.keyword),
    )
    if not found.rows and args.keyword:
        raise ValueError(f"-k {args.keyword!r} selects none of the benchmarks of {', '.join(args.sets)}.")
    print(render(found, args.format), end="")
    if args.format == "table" and len(sources) == 2:
        for line in new_ledger_lines(sources[0].files, sources[1].files):
            print(line)
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
    judged = sum(1 for each in found.judged if each.judgement.was_judged)
    for line in _reasons(found, judged):
        print(f"--fail-on-regression: {line}", file=sys.stderr)
    return 1 if found.regressions or found.lost or not judged else 0


def _reasons(found: Comparison, judged: int) -> Iterator[str]:
    total = len(found.judged)
    failed = sum(1 for each in found.lost if each.judgement.failed)
    missing = len(found.lost) - failed
    elsewhere = len(found.unjudged) - len(found.lost)
    if failed:
        yield f"{counted(failed, 'benchmark')} of {total} failed or went unmeasured, and that is not green."
    if missing:
        yield (
            f"the later set lacks {counted(missing, 'benchmark')} of {total}, and that is not green. "
            "Choose what both have with -k."
        )
    if elsewhere and judged:
        yield f"{counted(elsewhere, 'benchmark')} of {total} not judged; the notes above say why."
    if not judged:
        why = (
            "every benchmark that both have differs in what was measured or where, or failed"
            if total > missing
            else "no benchmark is in two sets of runs of one platform"
        )
        yield f"nothing was judged ({why}), and that is not green."
