"""`pytest-accel explain`: why a benchmark lost, from a file of results."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_accel.commands.registry import argument, command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_accel.stats.results import Result


@command(
    argument("results", metavar="RESULTS.json", help="what --accel-json wrote"),
    argument("benchmark", nargs="?", metavar="BENCHMARK", help="its name or node id (all that lost)"),
    example="explain results.json 'test_gpt[800m]'",
)
def explain(args: argparse.Namespace) -> int:
    """Print why benchmarks lost: their causes and kernels.

    Changes of operations, idle time and what is unexplained sum to the measured loss.
    """
    from pytest_accel.storage.results import read_results

    found = _chosen(read_results(Path(args.results)).results, args.benchmark)
    if not found:
        print(f"{args.results}: no benchmark lost")
    for at, result in enumerate(found):
        print("\n" * bool(at) + "\n".join(explained(result)))
    return 0


def explained(result: Result) -> list[str]:
    """Return why one benchmark lost, in lines as wide as the terminal."""
    from pytest_accel.report.history import text_table
    from pytest_accel.report.kernels import HEADINGS, kernel_rows
    from pytest_accel.report.terminal import fitted
    from pytest_accel.stats.quantities import printable

    lines = fitted(map(printable, _lines(result)))
    if result.kernels is None:
        return [*lines, *fitted([_NO_TABLES])]
    return [*lines, *text_table(HEADINGS, kernel_rows(result.kernels))]


def _chosen(results: Sequence[Result], name: str | None) -> list[Result]:
    from pytest_accel.stats.quantities import did_you_mean

    if name is None:
        return [result for result in results if result.has_lost or (result.is_platform and result.failed)]
    found = [result for result in results if name in (result.benchmark, result.name, result.label)]
    if not found:
        known = [result.name for result in results]
        raise ValueError(
            f"no benchmark {name!r} in these results.{did_you_mean(name, known)} "
            "Without a name, all that lost are explained."
        )
    return found


def _lines(result: Result) -> Iterator[str]:
    from pytest_accel.report.terminal import explanation, line_text
    from pytest_accel.stats.causes import lost
    from pytest_accel.stats.quantities import counted, seconds

    for line in result.lines:
        yield line_text(result.label if line.status else "", line)
    yield from explanation(result.causes, lost(result.verdict), result.changes)
    if ranks_s := result.runs[-1].rank_step_s if result.runs else ():
        slowest_s = max(ranks_s)
        slowest = f"rank {ranks_s.index(slowest_s)}, {seconds(slowest_s)} a step"
        yield f"slowest of {counted(len(ranks_s), 'rank')}: {slowest} (the fastest {seconds(min(ranks_s))})"


_NO_TABLES = (
    "no kernel tables to compare: the last run of a recording and a slow repeat of a step with torch have one. "
    "Record anew with --accel-update where the baseline is older."
)
