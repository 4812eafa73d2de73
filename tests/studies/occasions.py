"""What does the gate say of sessions in which nothing changed? `python -m tests.studies.occasions [PLATFORM] [--baselines DIR]`.

Every session of every stored benchmark is judged by the runs of its other sessions: at 5 %, at the tolerance that is stored with all of them, and at
what the other sessions' runs alone would have `auto` choose where they are too noisy for 5 %. Counted are first looks that leave the question open, so that a fresh process would be
asked, and what all runs of that session come to. A baseline holds sessions of one benchmark whose steps are the same,
and what differs is the machine and its day. They are those that were accepted: what a verdict had called regressed on its night is not among them, so that this is no rate of false alarms.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_accel.stats.baseline_quality import auto_tolerance, baseline_quality
from pytest_accel.stats.gate import judge
from pytest_accel.stats.run import Run
from pytest_accel.stats.verdict import Policy
from pytest_accel.storage.baselines import BaselineEntry
from pytest_accel.storage.sources import find_source

FOLDER = Path(__file__).parents[2] / "baselines"
GATE_S_OWN = Policy().tolerance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("platform", nargs="?", default="h200")
    parser.add_argument("--baselines", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    files = find_source(f"platform:{arguments.platform}", arguments.baselines).files
    entries = {key: entry for file in files for key, entry in file.benchmarks.items()}
    print("\n".join(lines(entries)))


def lines(entries: dict[str, BaselineEntry]) -> Iterator[str]:
    first, often = Counter[str](), Counter[str]()
    ends: dict[str, Counter[str]] = {}
    sessions = 0
    for key, entry in entries.items():
        for others, own in occasions(entry.runs):
            sessions += 1
            for way, tolerance in tolerances(entry, others).items():
                policy = Policy(tolerance=tolerance)
                is_writable_folder = judge(others, own[:1], policy).wants_another_run
                first[way] += is_writable_folder
                ends.setdefault(way, Counter())[judge(others, own, policy).outcome.value] += 1
                often[key] += is_writable_folder and way == "stored"
    yield f"{len(entries)} benchmarks, {sessions} sessions of them that have others beside them"
    for way, counted in ends.items():
        said = ", ".join(f"{number} {outcome}" for outcome, number in counted.most_common())
        yield f"{way:12} open after the first look: {first[way]:3}; after all their runs: {said}"
    for key, number in often.most_common():
        if number > 1:
            yield f"  stored: open {number} times: {key}"


def occasions(runs: Sequence[Run]) -> Iterator[tuple[list[Run], list[Run]]]:
    """The runs of all other sessions, and those of each."""
    for session in dict.fromkeys(run.session for run in runs):
        others = [run for run in runs if run.session != session]
        if others:
            yield others, [run for run in runs if run.session == session]


def tolerances(entry: BaselineEntry, others: Sequence[Run]) -> dict[str, float]:
    known = baseline_quality(others, None)
    noisy = bool(known.too_noisy) and not known.provisional
    return {
        "5 %": GATE_S_OWN,
        "stored": entry.tolerance or GATE_S_OWN,
        "from others": auto_tolerance(others) if noisy else GATE_S_OWN,
    }


if __name__ == "__main__":
    main()
