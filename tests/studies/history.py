"""Does a history of 100,000 runs stay quick? `python -m tests.studies.history [--sessions N] [--folder DIR]`.

Sessions of 25 benchmarks, each with two runs and the five of its baseline, are appended one by one, as real ones are.
Printed is what appending and asking cost with a tenth of the sessions and with all of them, each the least of many
times: others use the machine too. What matters is the ratio; the milliseconds are this machine's and its disk's.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from pytest_accel.stats.results import SessionResults
from pytest_accel.storage.history import History
from pytest_accel.storage.results import render
from tests.support.results import AT, make_result, make_runs, make_session

BENCHMARKS = 25
RUNS = 2


def night(number: int, source: random.Random) -> SessionResults:
    name = f"night-{number:05d}"
    results = (make_result(name=f"test_training[model-{each}]", source=source) for each in range(BENCHMARKS))
    return make_session(
        (
            replace(each, runs=make_runs(source, each.step_time_s, runs=RUNS, session=name))
            for each in results
        ),
        session=name,
        at=(AT + timedelta(days=number)).isoformat(),
    )


def milliseconds(question: Callable[[], object], times: int = 25) -> float:
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        question()
        taken.append(time.perf_counter() - begin)
    return 1e3 * min(taken)


def questions(history: History) -> dict[str, float]:
    key, platform = history.benchmarks()[7].key, "gh200"
    return {
        "the newest 20 sessions": milliseconds(lambda: history.sessions(20)),
        "a series, its newest 60 sessions": milliseconds(lambda: history.series(key, platform, 60)),
        "a series, all of it": milliseconds(lambda: history.series(key, platform), 15),
        "all benchmarks": milliseconds(history.benchmarks, 15),
        "a whole session": milliseconds(history.latest, 15),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        study(History(Path(folder) / "history.sqlite"), args.sessions)


def study(history: History, sessions: int) -> None:
    source = random.Random(1)
    first = sessions // 10
    appends: list[float] = []
    before: dict[str, float] = {}
    for number in range(sessions):
        session = night(number, source)
        begin = time.perf_counter()
        history.append(session)
        appends.append(time.perf_counter() - begin)
        if number + 1 == first:
            before = questions(history)
    before["append a session"] = 1e3 * min(appends[:first])
    after = {**questions(history), "append a session": 1e3 * min(appends[-first:])}
    size = history.path.stat().st_size
    print(
        f"{sessions} sessions, {sessions * BENCHMARKS * RUNS:,} runs, {size / 2**20:.1f} MiB, "
        f"{size / sessions / 1024:.1f} KiB a session"
    )
    print(f"{'':34}{'ms, a tenth':>12}{'ms, all':>10}{'ratio':>8}")
    for name, then in before.items():
        print(f"{name:34}{then:12.2f}{after[name]:10.2f}{after[name] / then:8.2f}")
    text = render(night(0, source)).encode()
    for level in (1, 6, 9):
        taken = milliseconds(lambda level=level: zlib.compress(text, level), 15)
        share = len(zlib.compress(text, level)) / len(text)
        print(f"zlib level {level}: {len(text):,} bytes to {share:.1%} in {taken:.1f} ms")
    begin = time.perf_counter()
    pruned = history.prune(max_bytes=size // 2)
    print(f"prune to half: {len(pruned.sessions)} sessions in {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()
