"""Streams of real runs: one benchmark in fresh processes, one JSON line a run, after a line that says what was measured."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from pytest_accel.stats.results import Result
from pytest_accel.stats.run import Run
from pytest_accel.storage.results import read_results

STREAMS = Path(__file__).parent / "streams"  # the committed ones
PAUSE_S = 1800.0
DIGITS = 5  # significant ones of a round time: far below any noise here
KEPT_METRICS = ("sm_clock_mhz", "temperature_c", "power_mean_w", "throttled_share", "slowdown_felt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Runs of one benchmark in the order of measuring, by the injected slowdown."""

    name: str
    runs: tuple[tuple[float, Run], ...]

    def with_slowdown(self, slowdown: float) -> list[Run]:
        return [run for injected, run in self.runs if injected == slowdown]


def read_stream(path: Path) -> Stream:
    """Read a stream; a run without rounds was disturbed and is left out."""
    head, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    sessions = _sessions([line["at"] for line in lines])
    runs = [
        (
            line.get("slowdown", 0.0),
            Run(
                session=f"{head['name']}-{session}",
                rounds_s=tuple(line["rounds_s"]),
                steps_per_round=line["steps_per_round"],
            ),
        )
        for session, line in zip(sessions, lines, strict=True)
        if line.get("rounds_s")
    ]
    return Stream(name=head["name"], runs=tuple(runs))


def _sessions(ends: list[str]) -> list[int]:
    """Number the sessions: half an hour without a run begins another one."""
    times = [datetime.fromisoformat(end) for end in ends]
    pauses = [(later - earlier).total_seconds() > PAUSE_S for earlier, later in pairwise(times)]
    return list(accumulate(pauses, initial=0)) if times else []


def gather(path: Path, arguments: list[str], slowdowns: list[float]) -> None:
    """Measure a benchmark once for each slowdown (0: none) and append to the stream; an interrupt loses one run."""
    for number, slowdown in enumerate(slowdowns, 1):
        result, environment = _measured(arguments, slowdown)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _append(path, _head(path.stem, result, environment, arguments))
        line = _line(result, slowdown)
        _append(path, line)
        sys.stderr.write(f"{number} of {len(slowdowns)}: {line.get('invalid') or line['rounds_s']}\n")


def _measured(arguments: list[str], slowdown: float) -> tuple[Result, dict[str, Any]]:
    """Run pytest once, judged against no baseline and kept in no history."""
    with tempfile.TemporaryDirectory(prefix="noise-") as folder:
        results = Path(folder) / "results.json"
        command = [
            *(sys.executable, "-m", "pytest", *arguments, "-p", "no:cacheprovider"),
            *(f"--accel-baselines={folder}/none", "--accel-history=off", "--accel-repeats=1"),
            f"--accel-json={results}",
            *([f"--accel-slowdown={slowdown:g}"] if slowdown else []),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the user's command
        if not results.exists():
            raise SystemExit(
                f"pytest ended with {ended.returncode}:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
            )
        session = read_results(results)
    if len(session.results) != 1:
        raise SystemExit(f"{len(session.results)} benchmarks were selected: name one.")
    (result,) = session.results
    environment = session.environments.get(result.environment)
    facts = {**environment.identity, **environment.context} if environment else {}
    return result, facts


def _head(name: str, result: Result, environment: dict[str, Any], arguments: list[str]) -> dict[str, Any]:
    return {
        "name": name,
        "benchmark": result.benchmark,
        "platform": result.platform,
        "unit": result.unit,
        "work_per_step": result.work_per_step,
        "configuration": dict(result.configuration),
        "environment": environment,
        "command": arguments,
    }


def _line(result: Result, slowdown: float) -> dict[str, Any]:
    at = datetime.now(UTC).isoformat(timespec="seconds")
    if not result.runs:
        return {"at": at, "slowdown": slowdown, "invalid": result.text or result.status.value}
    run = result.runs[-1]
    return {
        "at": at,
        "slowdown": slowdown,
        "steps_per_round": run.steps_per_round,
        "rounds_s": [float(f"{seconds:.{DIGITS}g}") for seconds in run.rounds_s],
        "metrics": {name: run.metrics[name] for name in KEPT_METRICS if name in run.metrics},
    }


def _append(path: Path, content: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(content, separators=(",", ":")) + "\n")


def plan(runs: int, slowdowns: list[float], slow_runs: int) -> list[float]:
    """Return the slowdown of each run, every kind spread evenly, so that a drift affects all alike."""
    wanted = {0.0: runs, **dict.fromkeys(slowdowns, slow_runs)}
    places = [((n + 0.5) / count, kind) for kind, count in wanted.items() for n in range(count)]
    return [kind for _, kind in sorted(places)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.noise.streams", description=__doc__)
    parser.add_argument("out", type=Path, help="the file; runs are appended where it exists")
    parser.add_argument("--runs", type=int, default=30, help="without a slowdown (default %(default)s)")
    parser.add_argument(
        "--slowdowns", type=float, nargs="*", default=[], help="losses to inject, such as 0.05"
    )
    parser.add_argument("--slow-runs", type=int, default=5, help="with each of them (default %(default)s)")
    parser.add_argument("pytest", nargs="+", metavar="PYTEST_ARGS", help="after --: one benchmark")
    options = parser.parse_args()
    gather(options.out, options.pytest, plan(options.runs, options.slowdowns, options.slow_runs))


if __name__ == "__main__":
    main()
