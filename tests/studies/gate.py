"""Does the gate keep its figures? `python -m tests.studies.gate [--trials N] [--seed S] [--workers W]`.

Every cell draws baselines and candidates from `tests.studies.streams` and asks the real `judge`,
one look after the other, as a session does. Beside it, on the same streams, stands pytest-benchmark's
`--benchmark-compare-fail=mean:5%`: the mean over all steps of the candidate's first run against that
of the last run of the baseline (the latest saved one, which `--benchmark-compare` takes by default;
it knows no baseline of several runs), failing when it is more than 5 % longer.

A figure is missed when it is off by more than two standard errors of the simulation: exit status 1.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass
from itertools import product
from multiprocessing import Pool
from typing import TYPE_CHECKING

import numpy as np

from pytest_accel.stats.gate import judge
from pytest_accel.stats.run import Run
from pytest_accel.stats.verdict import Outcome, Policy, Verdict
from tests.studies.streams import Change, Model, baseline_steps, candidate_steps, rounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

POLICY = Policy()
CELLS = ((0.003, 5), (0.01, 3), (0.01, 5), (0.01, 10), (0.03, 5), (0.03, 10))  # (between-run sd, R)
EFFECTS = (0.0, 0.5, 1.0, 1.5, 2.0)  # true slowdown, in multiples of delta
MAX_ERRORS = 2.0

# The table "figures to reach", column by column as in CELLS; None is a figure that nobody asked for.
AT_MOST = {0.0: (0.005, 0.005, 0.005, 0.005, 0.015, 0.01), 0.5: (0.05, 0.05, 0.05, None, 0.10, 0.10)}
AT_LEAST = {
    1.0: (0.96, 0.70, 0.80, 0.85, None, None),
    1.5: (0.99, 0.96, 0.985, 0.99, 0.66, None),
    2.0: (None, None, 0.995, None, 0.91, 0.95),
}
RUNS_AT_MOST = (1.15, 1.35, 1.25, None, 2.9, None)
STALLS_AT_LEAST = (0.78, None, 0.78, 0.78, None, None)  # where a shift is to be caught as surely
MEAN_SHARE = 0.2  # false alarms at 0 against those of mean:5%, in every cell (R >= 3)
MEAN_LEAD = (0.20, None, 0.20, 0.20, None, None)  # points of power at the tolerance (sd <= 1 %, R >= 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One cell of the study under one true change."""

    between_run_sd: float
    baseline_runs: int
    effect: float
    change: Change
    trials: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What came of a task's trials; one entry a trial."""

    failed: np.ndarray
    mean_failed: np.ndarray
    inconclusive: np.ndarray
    runs_used: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A figure, the bound that it should keep (from above or from below), and its standard error."""

    row: str
    column: int
    value: float
    bound: float
    error: float
    is_ceiling: bool

    @property
    def excess(self) -> float:
        return self.value - self.bound if self.is_ceiling else self.bound - self.value

    @property
    def passed(self) -> bool:
        return self.excess <= MAX_ERRORS * self.error

    @property
    def mark(self) -> str:
        if not self.passed:
            return "MISS"
        return "ok" if self.excess <= 0 else "~"


def run_task(task: Task) -> Tally:
    cell = (round(1e4 * task.between_run_sd), task.baseline_runs, round(10 * task.effect))
    rng = np.random.default_rng([task.seed, *cell, task.change == "stall"])
    model = Model(between_run_sd=task.between_run_sd)
    baselines = baseline_steps(rng, model, task.trials, task.baseline_runs)
    candidates = candidate_steps(
        rng, model, task.trials, POLICY.max_repeats, task.effect * POLICY.delta, task.change
    )
    verdicts = [
        judge_in_turn(as_runs(baseline, "night {}"), as_runs(candidate, "tonight"))
        for baseline, candidate in zip(
            rounds(baselines, model).tolist(), rounds(candidates, model).tolist(), strict=True
        )
    ]
    return Tally(
        failed=np.array([v.outcome is Outcome.REGRESSED for v in verdicts]),
        mean_failed=candidates[:, 0].mean(axis=-1) > 1.05 * baselines[:, -1].mean(axis=-1),
        inconclusive=np.array([v.outcome is Outcome.INCONCLUSIVE for v in verdicts]),
        runs_used=np.array([v.runs for v in verdicts]),
    )


def as_runs(group: list[list[float]], sessions: str) -> list[Run]:
    """Runs from their rounds; `sessions` names the one session of all, or with {} one for each."""
    return [
        Run(session=sessions.format(number), rounds_s=tuple(rounds_s), steps_per_round=10)
        for number, rounds_s in enumerate(group)
    ]


def judge_in_turn(baseline: list[Run], candidate: list[Run]) -> Verdict:
    """Ask after each run, as a session does, until no further one is wanted."""
    looks = 1
    while (verdict := judge(baseline, candidate[:looks], POLICY)).wants_another_run:
        looks += 1
    return verdict


def rate_check(row: str, column: int, hits: np.ndarray, bound: float, *, is_ceiling: bool) -> Check:
    error = math.sqrt(bound * (1 - bound) / len(hits))
    return Check(
        row=row, column=column, value=float(hits.mean()), bound=bound, error=error, is_ceiling=is_ceiling
    )


def difference_check(
    row: str, column: int, values: np.ndarray, against: np.ndarray, bound: float = 0.0, *, is_ceiling: bool
) -> Check:
    """Compare two means on the same trials, so that what both suffer cancels out of the error."""
    difference = values - against
    error = float(difference.std()) / math.sqrt(len(values))
    bound += float(against.mean())
    return Check(
        row=row, column=column, value=float(values.mean()), bound=bound, error=error, is_ceiling=is_ceiling
    )


Results = dict[tuple[int, float, Change], Tally]


def checks(results: Results) -> Iterator[Check]:
    """Every figure that was promised, in the order of the printed table."""
    for row, bounds, effect, is_ceiling in (
        ("false alarms at 0", AT_MOST[0.0], 0.0, True),
        ("false alarms at half", AT_MOST[0.5], 0.5, True),
        ("caught at tolerance", AT_LEAST[1.0], 1.0, False),
        ("caught at 1.5", AT_LEAST[1.5], 1.5, False),
        ("caught at 2", AT_LEAST[2.0], 2.0, False),
    ):
        for column, bound in enumerate(bounds):
            if bound is not None:
                hits = results[column, effect, "shift"].failed
                yield rate_check(row, column, hits, bound, is_ceiling=is_ceiling)
    for column, bound in enumerate(RUNS_AT_MOST):
        if bound is not None:
            used = results[column, 0.0, "shift"].runs_used
            limit = np.full(len(used), bound)
            yield difference_check("runs used at 0", column, used, limit, is_ceiling=True)
    for column, bound in enumerate(STALLS_AT_LEAST):
        if bound is not None:
            hits = results[column, 1.0, "stall"].failed
            yield rate_check("stalls at tolerance", column, hits, bound, is_ceiling=False)
    for column in range(len(CELLS)):
        quiet = results[column, 0.0, "shift"]
        allowed = MEAN_SHARE * quiet.mean_failed
        yield difference_check("at 0, 1/5 of mean:5%", column, quiet.failed, allowed, is_ceiling=True)
    for column, lead in enumerate(MEAN_LEAD):
        if lead is not None:
            slow = results[column, 1.0, "shift"]
            row = "at tol., mean:5% + 20"
            yield difference_check(row, column, slow.failed, 1.0 * slow.mean_failed, lead, is_ceiling=False)


def simulate(tasks: list[Task], workers: int) -> Iterator[tuple[Task, Tally]]:
    if workers == 1:
        yield from ((task, run_task(task)) for task in tasks)
        return
    with Pool(workers) as pool:
        yield from zip(tasks, pool.imap(run_task, tasks), strict=True)


def study(tasks: list[Task], workers: int = 1, *, shows_progress: bool = False) -> Results:
    results: Results = {}
    started_s = time.monotonic()
    for task, tally in simulate(tasks, workers):
        column = CELLS.index((task.between_run_sd, task.baseline_runs))
        results[column, task.effect, task.change] = tally
        if shows_progress:
            elapsed_s = time.monotonic() - started_s
            sys.stderr.write(f"\r{len(results)} of {len(tasks)} cells, {elapsed_s:.0f} s ")
            sys.stderr.flush()
    return results


def all_tasks(trials: int, seed: int) -> list[Task]:
    changes: list[tuple[float, Change]] = [*((effect, "shift") for effect in EFFECTS), (1.0, "stall")]
    return [
        Task(between_run_sd=sd, baseline_runs=runs, effect=effect, change=change, trials=trials, seed=seed)
        for (sd, runs), (effect, change) in product(CELLS, changes)
    ]


def table_line(label: str, entries: Iterable[str]) -> str:
    return f"{label:<22}" + "".join(f"{entry:>16}" for entry in entries)


def as_entry(check: Check) -> str:
    unit = 1 if check.row.startswith("runs") else 100
    digits = 2 if unit == 1 else 1
    sign = "<=" if check.is_ceiling else ">="
    return f"{unit * check.value:.{digits}f} {sign}{unit * check.bound:.{digits}f} {check.mark}"


def render(results: Results) -> Iterator[str]:
    """The acceptance table, then every rate plainly, ours and that of mean:5% on the same streams."""
    header = [f"sd {100 * sd:g} % R{runs}" for sd, runs in CELLS]
    yield table_line("figure, %", header)
    entries: dict[str, list[str]] = {}
    for check in checks(results):
        entries.setdefault(check.row, ["-"] * len(CELLS))[check.column] = as_entry(check)
    for row, cells in entries.items():
        yield table_line(row, cells)
    yield ""
    yield table_line("gate / mean:5%, %", header)
    for effect in EFFECTS:
        tallies = [results[column, effect, "shift"] for column in range(len(CELLS))]
        yield table_line(f"failed at {effect:g}", (as_pair(tally) for tally in tallies))
    stalls = [results[column, 1.0, "stall"] for column in range(len(CELLS))]
    yield table_line("failed at 1, stall", (as_pair(tally) for tally in stalls))
    for effect in EFFECTS:
        tallies = [results[column, effect, "shift"] for column in range(len(CELLS))]
        yield table_line(
            f"inconclusive at {effect:g}", (f"{100 * tally.inconclusive.mean():.1f}" for tally in tallies)
        )
    for effect in EFFECTS:
        tallies = [results[column, effect, "shift"] for column in range(len(CELLS))]
        yield table_line(f"runs used at {effect:g}", (f"{tally.runs_used.mean():.2f}" for tally in tallies))


def as_pair(tally: Tally) -> str:
    return f"{100 * tally.failed.mean():.1f} / {100 * tally.mean_failed.mean():.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.studies.gate", description=__doc__)
    parser.add_argument("--trials", type=int, default=2000, help="per cell (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    results = study(all_tasks(options.trials, options.seed), options.workers, shows_progress=True)
    missed = [check for check in checks(results) if not check.passed]
    lines = [
        f"\n{options.trials} trials a cell, seed {options.seed}",
        f"~: off, by less than {MAX_ERRORS:g} standard errors of the simulation; MISS: by more",
        *render(results),
        f"\n{len(missed)} of {sum(1 for _ in checks(results))} figures missed.",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
