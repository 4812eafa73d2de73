"""How often a duet errs, and what it costs: the real code on simulated sessions of two environments in turn.

    python -m tests.studies.duet --trials 10000 --workers 2

Prints the shares of `regressed` and of `inconclusive` verdicts at slowdowns of 0 to 2 times the tolerance, and the device
time used, in processes. Processes follow each other closely (a run's length apart, which is what starting and warming up
takes at the least), so that a throttle often spans two of them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, product
from multiprocessing import Pool
from typing import Literal

import numpy as np

from pytest_accel.stats.paired import DEFAULT_BLOCKS as MOST_GROUPS
from pytest_accel.stats.paired import RUNS_PER_BLOCK as RUNS_PER_GROUP
from pytest_accel.stats.paired import PairBlock as Group
from pytest_accel.stats.paired import block_order as turns
from pytest_accel.stats.paired import judge_pairs as judge
from pytest_accel.stats.run import Run
from pytest_accel.stats.verdict import Outcome, Policy, Verdict
from tests.studies.streams import Model, candidate_steps, rounds

Trend = Literal["none", "linear", "heating"]
EFFECTS = (0.0, 0.5, 1.0, 1.5, 2.0)
GAP_STEPS = 60
HEATING_RUNS = 4.0  # in which the clock loses most of what it will lose


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a machine does to both environments: noise from run to run, an effect of the session, a trend through it."""

    title: str
    run_sd: float
    session_sd: float = 0.0
    trend: Trend = "none"
    trend_size: float = 0.0  # of ln(step time), from the first run to the last of the longest schedule

    @property
    def model(self) -> Model:
        total = (self.run_sd**2 + self.session_sd**2) ** 0.5
        share = self.session_sd**2 / total**2
        return Model(between_run_sd=total, session_share=share, retry_gap_steps=GAP_STEPS)

    def trend_of(self, runs: int) -> np.ndarray:
        """ln of how much slower each run is for when it came."""
        position = np.arange(runs)
        if self.trend == "linear":
            return self.trend_size * position / (runs - 1)
        if self.trend == "heating":
            return self.trend_size * -np.expm1(-position / HEATING_RUNS)
        return np.zeros(runs)


WORLDS = (
    World(title="sd .3 %", run_sd=0.003),
    World(title="sd 1 %", run_sd=0.01),
    World(title="sd 3 %", run_sd=0.03),
    World(title="sd 1 %, session 5 %", run_sd=0.01, session_sd=0.05),
    World(title="sd 1 %, drift 5 %", run_sd=0.01, trend="linear", trend_size=0.05),
    World(title="sd 1 %, heating 5 %", run_sd=0.01, trend="heating", trend_size=0.05),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One world under one true change."""

    world: World
    effect: float  # in multiples of the tolerance
    trials: int
    seed: int
    most_groups: int = MOST_GROUPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What came of a task's trials; one entry a trial."""

    failed: np.ndarray
    improved: np.ndarray
    inconclusive: np.ndarray
    processes: np.ndarray


def run_task(task: Task) -> Tally:
    world, model = task.world, task.world.model
    names = (world.title, task.effect, task.most_groups)
    rng = np.random.default_rng([task.seed, *chain.from_iterable(str(each).encode() for each in names)])
    sides = list(chain.from_iterable(turns(group + 1) for group in range(task.most_groups)))
    times = candidate_steps(rng, model, task.trials, len(sides), 0.0)
    is_new = np.array([side == "new" for side in sides])
    shifts = task.effect * Policy().delta * is_new + world.trend_of(len(sides))
    times *= np.exp(shifts)[None, :, None]
    verdicts = [play(session, task.most_groups) for session in rounds(times, model).tolist()]
    return Tally(
        failed=np.array([each.outcome is Outcome.REGRESSED for each in verdicts]),
        improved=np.array([each.outcome is Outcome.IMPROVED for each in verdicts]),
        inconclusive=np.array([each.outcome is Outcome.INCONCLUSIVE for each in verdicts]),
        processes=np.array([each.runs + each.baseline_runs for each in verdicts]),
    )


def play(session: list[list[float]], most_groups: int) -> Verdict:
    """Ask after each group, as the command does, until no further one is wanted."""
    runs = [Run(session="s", rounds_s=tuple(rounds_s), steps_per_round=10) for rounds_s in session]
    groups: list[Group] = []
    while True:
        number = len(groups) + 1
        four = runs[RUNS_PER_GROUP * (number - 1) : RUNS_PER_GROUP * number]
        first, second, third, fourth = four
        old, new = (
            ((first, fourth), (second, third))
            if turns(number)[0] == "old"
            else (
                (second, third),
                (first, fourth),
            )
        )
        groups.append(Group(old=old, new=new))
        verdict = judge(groups, most_groups=most_groups)
        if not verdict.wants_another_run:
            return verdict


Results = dict[tuple[str, float], Tally]


def study(tasks: list[Task], workers: int = 1) -> Results:
    if workers == 1:
        tallies = list(map(run_task, tasks))
    else:
        with Pool(workers) as pool:
            tallies = pool.map(run_task, tasks, chunksize=1)
    return {(task.world.title, task.effect): tally for task, tally in zip(tasks, tallies, strict=True)}


def render(results: Results) -> Iterator[str]:
    def line(label: str, entries: Iterator[str]) -> str:
        return f"{label:<20}" + "".join(f"{entry:>21}" for entry in entries)

    yield line("%", (world.title for world in WORLDS))
    for title, name in (("regressed", "failed"), ("inconclusive", "inconclusive"), ("improved", "improved")):
        for effect in EFFECTS:
            shares = (100 * getattr(results[world.title, effect], name).mean() for world in WORLDS)
            yield line(f"{title} at {effect:g}", (f"{share:.2f}" for share in shares))
    for effect in EFFECTS:
        used = (results[world.title, effect].processes.mean() for world in WORLDS)
        yield line(f"processes at {effect:g}", (f"{count:.2f}" for count in used))


def all_tasks(trials: int, seed: int, most_groups: int) -> list[Task]:
    plain = Task(world=WORLDS[0], effect=0.0, trials=trials, seed=seed, most_groups=most_groups)
    return [replace(plain, world=world, effect=effect) for world, effect in product(WORLDS, EFFECTS)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.studies.duet", description=__doc__)
    parser.add_argument("--trials", type=int, default=2000, help="per cell (default: %(default)s)")
    parser.add_argument("--groups", type=int, default=MOST_GROUPS, help="at most (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    results = study(all_tasks(options.trials, options.seed, options.groups), options.workers)
    sys.stdout.write(
        f"{options.trials} trials a cell, seed {options.seed}, at most {options.groups} groups; slowdowns in multiples "
        "of the tolerance\n" + "\n".join(render(results)) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
