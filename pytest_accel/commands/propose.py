"""`pytest-accel propose`: the text of an issue or a pull request, where a baseline should move."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_accel.commands.registry import argument, command, count


@command(
    argument("results", type=Path, metavar="RESULTS.json", help="what --accel-json wrote"),
    argument(
        "--max-characters", type=count, default=0, metavar="N", help="leave out what an issue has no room for"
    ),
    argument("--exit-code", action="store_true", help="leave with 1 if there is something to decide"),
)
def propose(args: argparse.Namespace) -> int:
    """Print, as Markdown, which baselines should move and how to move them; nothing where none should."""
    from pytest_accel.report.proposal import render_proposal
    from pytest_accel.storage.results import read_results

    text = render_proposal(read_results(args.results), limit_characters=args.max_characters)
    print(text, end="")
    return int(bool(text) and args.exit_code)
