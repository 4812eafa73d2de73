"""The gate on real streams: `python -m benchmarks.noise.judge [FILE ...] [--tolerance 0.05]` prints a Markdown table.

A baseline is five quiet runs of a stream, a candidate further ones: quiet ones, quiet ones scaled by a slowdown, or ones that
were really slowed. Draws share runs: a rate from 30 runs is no more certain than 30 runs allow.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.noise.streams import STREAMS, Stream, read_stream
from benchmarks.noise.study import judge_repeatedly, summarized
from pytest_accel.stats.gate import LOSSES, Outcome, Policy
from pytest_accel.stats.run import RECORD_RUNS, Run

SLOWDOWNS = (0.0, 0.05, 0.1)  # losses of throughput
THRESHOLD = 0.05  # of mean:5%
DRAWS = 400

Draw = tuple[Sequence[int], Sequence[int]]  # indices of the runs of a baseline, and of a candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Shares of the draws that the gate and mean:5% fail."""

    gate: float
    undecided: float
    mean: float
    runs: float  # of the candidate that the gate used, on average


def slowed(runs: Sequence[Run], slowdown: float) -> list[Run]:
    """Return the runs with a throughput lower by that fraction."""
    factor = 1 / (1 - slowdown)
    return [replace(run, rounds_s=tuple(factor * seconds for seconds in run.rounds_s)) for run in runs]


def scattered(
    quiet: int, injected: int | None = None, *, draws: int = DRAWS, seed: int = 1
) -> Iterator[Draw]:
    """Draw baselines from so many quiet runs, and candidates from the others of them or from `injected` runs."""
    chance = random.Random(seed)  # noqa: S311 - repeatable, and no secret
    for _ in range(draws):
        if injected is None:
            drawn = chance.sample(range(quiet), RECORD_RUNS + Policy().max_repeats)
            yield drawn[:RECORD_RUNS], drawn[RECORD_RUNS:]
        else:
            repeats = min(Policy().max_repeats, injected)
            yield chance.sample(range(quiet), RECORD_RUNS), chance.sample(range(injected), repeats)


def consecutive(quiet: Sequence[Run]) -> Iterator[Draw]:
    """Yield every baseline of neighbours in time with every candidate of neighbours that comes later, each of one session."""
    baselines, candidates = (
        [
            range(first, first + count)
            for first in range(len(quiet) - count + 1)
            if len({run.session for run in quiet[first : first + count]}) == 1
        ]
        for count in (RECORD_RUNS, Policy().max_repeats)
    )
    for baseline in baselines:
        for candidate in candidates:
            if candidate.start >= baseline.stop:
                yield baseline, candidate


def rates(quiet: Sequence[Run], candidates: Sequence[Run], draws: Iterator[Draw], policy: Policy) -> Rates:
    """Judge every draw; pytest-benchmark compares the candidate's first run with the baseline's last."""
    stored, fresh = [summarized(run) for run in quiet], [summarized(run) for run in candidates]
    verdicts, mean = [], 0
    for old, new in draws:
        verdicts.append(judge_repeatedly([stored[i] for i in old], [fresh[i] for i in new], policy))
        mean += fmean(candidates[new[0]].rounds_s) > (1 + THRESHOLD) * fmean(quiet[old[-1]].rounds_s)
    count = len(verdicts)
    return Rates(
        gate=sum(verdict.outcome in LOSSES for verdict in verdicts) / count,
        undecided=sum(verdict.outcome is Outcome.INCONCLUSIVE for verdict in verdicts) / count,
        mean=mean / count,
        runs=sum(verdict.runs for verdict in verdicts) / count,
    )


def row(stream: Stream, policy: Policy) -> list[str]:
    quiet = stream.with_slowdown(0.0)
    noise = stdev(run.summary for run in quiet)
    cells = [stream.name, str(len(quiet)), f"{100 * noise:.2f} %"]
    for slowdown in SLOWDOWNS:
        found = rates(quiet, slowed(quiet, slowdown), scattered(len(quiet)), policy)
        cells.append(f"{100 * found.gate:.1f} / {100 * found.mean:.1f}")
        if not slowdown:
            in_time = rates(quiet, quiet, consecutive(quiet), policy)
            cells += [f"{100 * in_time.gate:.1f} / {100 * in_time.mean:.1f}", f"{found.runs:.2f}"]
    real = stream.with_slowdown(0.1)
    if real:
        found = rates(quiet, real, scattered(len(quiet), len(real)), policy)
        cells.append(f"{100 * found.gate:.1f} / {100 * found.mean:.1f}")
    return cells if real else [*cells, "-"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.noise.judge", description=__doc__)
    parser.add_argument("files", type=Path, nargs="*", help=f"streams (default: all of {STREAMS})")
    parser.add_argument("--tolerance", type=float, default=Policy().tolerance)
    options = parser.parse_args()
    policy = Policy(tolerance=options.tolerance)
    head = ["stream", "runs", "noise", "false alarms, %", "of neighbours in time, %", "runs used"]
    head += ["caught at 5 %", "caught at 10 %", "caught at 10 %, injected"]
    sys.stdout.write("Rates are the gate's / those of mean:5%.\n\n")
    for cells in (head, ["---"] * len(head)):
        sys.stdout.write(f"| {' | '.join(cells)} |\n")
    for file in options.files or sorted(STREAMS.glob("*.jsonl")):
        sys.stdout.write(f"| {' | '.join(row(read_stream(file), policy))} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
