"""`pytest-accel compare`: platforms, baselines, results, revisions and studies side by side."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_accel.commands.registry import argument, command
from pytest_accel.commands.selecting import BASELINES, KEYWORD, baselines_folder, by_keyword

if TYPE_CHECKING:
    from pytest_accel.storage.comparison import Comparison


@command(
    argument(
        "sets",
        nargs="+",
        metavar="SET",
        help="a platform (h200), a folder of baselines, a file of --accel-json or --benchmark-json, git:REV or "
        "REV:PATH, or a study (nrp, olivia/single); platform:, file:, git: and published: say which",
    ),
    argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="throughput, energy, scaling, mfu (these are shown if none is named), memory, time, first-step, accuracy, "
        "power, clocks, or a metric of your own; repeatable",
    ),
    argument("--ratio-to", default="", metavar="NAME", help="the column that ratios are to (the first)"),
    argument("--sort", choices=("name", "ratio", "throughput"), default="", help="ratio: the worst first"),
    argument(
        "--format", choices=("table", "markdown", "csv", "json", "latex"), default="table", help="(table)"
    ),
    KEYWORD,
    BASELINES,
    argument(
        "--tolerance", default="", metavar="FRACTION", help="of the gate (the baseline's own, else 5%%)"
    ),
    argument(
        "--fail-on-regression",
        action="store_true",
        help="leave with 1 if the gate finds a regression, if a benchmark failed or is missing, and if nothing was judged",
    ),
)
def compare(args: argparse.Namespace) -> int:
    """Show sets of figures side by side, and what the gate says of two sets of runs of one platform."""
    from pytest_accel.report.comparison import render
    from pytest_accel.storage.comparison import compare as compared
    from pytest_accel.storage.gathering import gather

    gathered = gather(args.sets, baselines_folder(args))
    sides = [side for each in gathered for side in each.sides]
    found = compared(
        sides,
        metrics=args.metric,
        ratio_to=args.ratio_to,
        tolerance=_tolerance(args.tolerance),
        wanted=by_keyword(args.keyword),
    )
    if not found.rows and args.keyword:
        raise ValueError(f"-k {args.keyword!r} chooses none of the benchmarks of {', '.join(args.sets)}.")
    print(render(found, args.format, args.sort), end="")
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
    """Never green by accident: a comparison that judged nothing has found nothing out, nor has one that lost some."""
    import sys

    judged = sum(1 for each in found.judged if each.judgement.was_judged)
    for line in _said(found, judged):
        print(f"--fail-on-regression: {line}", file=sys.stderr)
    return 1 if found.regressions or found.lost or not judged else 0


def _said(found: Comparison, judged: int) -> Iterator[str]:
    """What whoever looks only at the exit status would miss."""
    from pytest_accel.stats.quantities import counted

    failed = sum(1 for each in found.lost if each.judgement.failed)
    missing = len(found.lost) - failed
    elsewhere = len(found.unjudged) - len(found.lost)
    if failed:
        yield f"{counted(failed, 'benchmark')} of {len(found.judged)} failed or went unmeasured, and that is not green."
    if missing:
        yield (
            f"the later set lacks {counted(missing, 'benchmark')} of {len(found.judged)}, and that is not green. "
            "Choose what both have with -k."
        )
    if elsewhere and judged:
        yield f"{counted(elsewhere, 'benchmark')} of {len(found.judged)} not judged; NOT JUDGED says why."
    if not judged:
        why = (
            "every benchmark that both have differs in what was measured or where, or failed"
            if len(found.judged) > missing
            else "no benchmark stands in two sets of runs of one platform"
        )
        yield f"nothing was judged ({why}), and that is not green."
