"""`pytest-accel compare`: platforms, baselines, results, revisions and studies side by side."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pytest_accel.commands.registry import argument, command
from pytest_accel.commands.selecting import BASELINES, KEYWORD, baselines_folder, by_keyword

if TYPE_CHECKING:
    from pytest_accel.core.comparison import Comparison


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
        "or a metric of your own; repeatable",
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
        help="leave with 1 if the gate finds a regression, and if it could judge nothing",
    ),
)
def compare(args: argparse.Namespace) -> int:
    """Show sets of figures side by side, and what the gate says of two sets of runs of one platform."""
    from pytest_accel.core.comparison import compare as compared
    from pytest_accel.report.comparison import render
    from pytest_accel.store.gathering import gather

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
    from pytest_accel.core.quantities import parse_fraction

    if not text:
        return None
    try:
        value = parse_fraction(text)
    except ValueError as error:
        raise ValueError(f"--tolerance {text!r} {error}") from None
    if not value:
        raise ValueError(f"--tolerance {text!r} leaves no room for noise. Write 0.05 or 5%.")
    return value


def _status(found: Comparison) -> int:
    """Never green by accident: a comparison that judged nothing has found nothing out."""
    import sys

    if found.regressions:
        return 1
    if any(each.judgement.was_judged for each in found.judged):
        return 0
    why = (
        "every benchmark that both have differs in what was measured or where"
        if found.judged
        else "no benchmark stands in two sets of runs of one platform"
    )
    print(f"--fail-on-regression: nothing was judged ({why}), and that is not green.", file=sys.stderr)
    return 1
