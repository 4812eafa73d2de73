"""`pytest-accel report`: the HTML page of a session, from a file or from the history."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_accel.commands.registry import HISTORY, argument, command, history_file, required_history

if TYPE_CHECKING:
    from pytest_accel.stats.results import SessionResults


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
    HISTORY,
    example="report results.json -o report.html",
)
def report(args: argparse.Namespace) -> int:
    """Write the HTML page or the Markdown summary of a session.

    Of results in a file, or of the history's newest session.
    """
    from pytest_accel.report.markdown import render_summary
    from pytest_accel.report.page import write_page
    from pytest_accel.stats.quantities import counted, printable
    from pytest_accel.storage.files import write_atomic

    history = history_file(args)
    session = _session(args, history)
    output = Path(args.output)
    if output.is_dir():
        raise ValueError(f"{output} is a folder. Name a file: -o {output / 'report.html'}")
    try:
        if output.suffix.lower() == ".md":
            write_atomic(output, render_summary(session))
        else:
            write_page(output, session, history=history)
    except OSError as error:
        raise ValueError(
            f"{output} cannot be written: {error.strerror}. Name another file with -o."
        ) from None
    print(f"{output}: {counted(len(session.results), 'benchmark')} of session {printable(session.session)}")
    return 0


def _session(args: argparse.Namespace, history: Path | None) -> SessionResults:
    from pytest_accel.storage.history import History
    from pytest_accel.storage.results import read_results

    if args.results and args.session:
        raise ValueError("RESULTS.json and --session are two sessions. Name one of them.")
    if args.results:
        return read_results(Path(args.results))
    kept = History(history or required_history(args))
    return kept.session(args.session) if args.session else kept.latest()
