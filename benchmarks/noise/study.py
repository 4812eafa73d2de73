"""Study of the gate on simulated streams: `python -m benchmarks.noise.study [--trials N] [--seed S] [--workers W]`.

Every cell draws baselines and candidates from `model` and calls the real `judge` after each repeat, as a session does. Beside
it, on the same streams, is pytest-benchmark's `--benchmark-compare-fail=mean:5%`: the mean of the candidate's first run
against that of the last run of the baseline. A figure is missed when it is off by more than two standard errors of the
simulation: exit status 1. The cells of a slow mode and of the platform prior follow below, with 95 % intervals and no bound.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import Pool
from statistics import NormalDist

import numpy as np

from benchmarks.noise.model import Change, Model, baseline_steps, candidate_steps, rounds
from pytest_accel.stats.baseline_quality import DEFAULT_PRIOR, platform_prior
from pytest_accel.stats.gate import LOSSES, Outcome, Policy, Verdict, judge
from pytest_accel.stats.run import Run, RunSummary, Summarized

POLICY = Policy()
CELLS = ((0.003, 5), (0.01, 3), (0.01, 5), (0.01, 10), (0.03, 5), (0.03, 10))  # (between-run sd, R)
EFFECTS = (0.0, 0.5, 1.0, 1.5, 2.0)  # true slowdown, in multiples of delta
MAX_ERRORS = 2.0

# GATE.md, "Figures to reach", column by column as in CELLS; None: no figure.
AT_MOST = {0.0: (0.005, 0.005, 0.005, 0.005, 0.015, 0.01), 0.5: (0.05, 0.05, 0.05, None, 0.10, 0.10)}
AT_LEAST = {
    1.0: (0.96, 0.70, 0.80, 0.85, None, None),
    1.5: (0.99, 0.96, 0.985, 0.99, 0.66, None),
    2.0: (None, None, 0.995, None, 0.91, 0.95),
}
RUNS_AT_MOST = (1.15, 1.35, 1.25, None, 2.9, None)
STALLS_AT_LEAST = (0.78, None, 0.78, 0.78, None, None)
MEAN_SHARE = 0.2  # false alarms at 0 against those of mean:5%, in every cell
MEAN_LEAD = (0.20, None, 0.20, 0.20, None, None)  # points of power at the tolerance (sd <= 1 %, R >= 5)

# A quieter variant of the model, assumed and not fitted to a device: GATE.md measured .5 to 2.8 % within a process on an H200.
QUIET = Model(
    between_run_sd=0.0035, step_sd=0.002, outlier_share=0.005, throttle_share=0.0, warmup_tail=0.002
)
BENCHMARKS = 20  # of a simulated platform


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One cell under one true change."""

    between_run_sd: float
    baseline_runs: int
    effect: float
    change: Change
    trials: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Results of a task, one entry a trial."""

    failed: np.ndarray
    mean_failed: np.ndarray
    inconclusive: np.ndarray
    runs_used: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A figure, its bound (from above or from below), and its standard error."""

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


def summarized(run: Run) -> Summarized:
    """Compute the summary of a run once: the gate reads it up to five times."""
    return Summarized(session=run.session, summary=run.summary, standard_error=run.standard_error)


def as_runs(group: list[list[float]], sessions: str) -> list[Summarized]:
    """Return runs from their rounds; `sessions` names one session, or with {} one for each run."""
    return [
        summarized(Run(session=sessions.format(number), rounds_s=tuple(rounds_s), steps_per_round=10))
        for number, rounds_s in enumerate(group)
    ]


def judge_repeatedly(
    baseline: Sequence[RunSummary], candidate: Sequence[RunSummary], policy: Policy = POLICY
) -> Verdict:
    """Judge after each run, as a session does, until no further one is wanted or available."""
    verdict = judge(baseline, candidate[:1], policy)
    while verdict.wants_another_run and verdict.runs < len(candidate):
        verdict = judge(baseline, candidate[: verdict.runs + 1], policy)
    return verdict


# --- the cells of GATE.md ---------------------------------------------------------------------------


def run_task(task: Task) -> Tally:
    cell = (round(1e4 * task.between_run_sd), task.baseline_runs, round(10 * task.effect))
    rng = np.random.default_rng([task.seed, *cell, task.change == "stall"])
    model = Model(between_run_sd=task.between_run_sd)
    baselines = baseline_steps(rng, model, task.trials, task.baseline_runs)
    candidates = candidate_steps(
        rng, model, task.trials, POLICY.max_repeats, d=task.effect * POLICY.delta, change=task.change
    )
    verdicts = [
        judge_repeatedly(as_runs(baseline, "session {}"), as_runs(candidate, "now"))
        for baseline, candidate in zip(
            rounds(baselines, model).tolist(), rounds(candidates, model).tolist(), strict=True
        )
    ]
    return Tally(
        failed=np.array([v.outcome in LOSSES for v in verdicts]),
        mean_failed=candidates[:, 0].mean(axis=-1) > 1.05 * baselines[:, -1].mean(axis=-1),
        inconclusive=np.array([v.outcome is Outcome.INCONCLUSIVE for v in verdicts]),
        runs_used=np.array([v.runs for v in verdicts]),
    )


def rate_check(row: str, column: int, hits: np.ndarray, bound: float, *, is_ceiling: bool) -> Check:
    error = math.sqrt(bound * (1 - bound) / len(hits))
    return Check(
        row=row, column=column, value=float(hits.mean()), bound=bound, error=error, is_ceiling=is_ceiling
    )


def difference_check(
    row: str, column: int, values: np.ndarray, against: np.ndarray, bound: float = 0.0, *, is_ceiling: bool
) -> Check:
    """Compare two means on the same trials, so that common noise cancels out of the error."""
    difference = values - against
    error = float(difference.std()) / math.sqrt(len(values))
    bound += float(against.mean())
    return Check(
        row=row, column=column, value=float(values.mean()), bound=bound, error=error, is_ceiling=is_ceiling
    )


Results = dict[tuple[int, float, Change], Tally]


def checks(results: Results) -> Iterator[Check]:
    """Yield every figure of GATE.md, in the order of the printed table."""
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


def all_tasks(trials: int, seed: int) -> list[Task]:
    changes: list[tuple[float, Change]] = [*((effect, "shift") for effect in EFFECTS), (1.0, "stall")]
    return [
        Task(between_run_sd=sd, baseline_runs=runs, effect=effect, change=change, trials=trials, seed=seed)
        for (sd, runs), (effect, change) in product(CELLS, changes)
    ]


def simulate(tasks: list[Task], workers: int) -> Results:
    with Pool(workers) as pool:
        tallies = pool.map(run_task, tasks, chunksize=1)
    return {
        (CELLS.index((task.between_run_sd, task.baseline_runs)), task.effect, task.change): tally
        for task, tally in zip(tasks, tallies, strict=True)
    }


def table_line(label: str, entries: Iterable[str]) -> str:
    return f"{label:<22}" + "".join(f"{entry:>16}" for entry in entries)


def as_entry(check: Check) -> str:
    unit = 1 if check.row.startswith("runs") else 100
    digits = 2 if unit == 1 else 1
    sign = "<=" if check.is_ceiling else ">="
    return f"{unit * check.value:.{digits}f} {sign}{unit * check.bound:.{digits}f} {check.mark}"


def render(results: Results) -> Iterator[str]:
    """Yield the table of bounds, then every rate, the gate's and that of mean:5%."""
    header = [f"sd {100 * sd:g} % R{runs}" for sd, runs in CELLS]
    yield table_line("figure, %", header)
    entries: dict[str, list[str]] = {}
    for check in checks(results):
        entries.setdefault(check.row, ["-"] * len(CELLS))[check.column] = as_entry(check)
    for row, cells in entries.items():
        yield table_line(row, cells)
    columns = range(len(CELLS))

    def line(label: str, effect: float, change: Change, entry: Callable[[Tally], str]) -> str:
        return table_line(label, (entry(results[column, effect, change]) for column in columns))

    def pair(tally: Tally) -> str:
        return f"{100 * tally.failed.mean():.1f} / {100 * tally.mean_failed.mean():.1f}"

    yield ""
    yield table_line("gate / mean:5%, %", header)
    for effect in EFFECTS:
        yield line(f"failed at {effect:g}", effect, "shift", pair)
    yield line("failed at 1, stall", 1.0, "stall", pair)
    for effect in EFFECTS:
        yield line(
            f"inconclusive at {effect:g}",
            effect,
            "shift",
            lambda tally: f"{100 * tally.inconclusive.mean():.1f}",
        )
    for effect in EFFECTS:
        yield line(f"runs used at {effect:g}", effect, "shift", lambda tally: f"{tally.runs_used.mean():.2f}")


# --- the prior from the platform --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """Between-run noises of the benchmarks of a platform, and a loss at a tolerance."""

    name: str
    noises: tuple[float, ...]  # of BENCHMARKS benchmarks, in turn
    quiet: bool
    tolerance: float
    losses: tuple[float, ...]
    baseline_runs: int = 5


POPULATIONS = (
    Population(
        name="quiet variant, .35 %",
        noises=(0.0025, 0.003, 0.0035, 0.004, 0.0045),
        quiet=True,
        tolerance=0.02,
        losses=(0.0, 0.01, 0.02, 0.03),
    ),
    Population(
        name="model, .4 %", noises=(0.004,), quiet=False, tolerance=0.02, losses=(0.0, 0.01, 0.02, 0.03)
    ),
    Population(
        name="model, .4 %, R10",
        noises=(0.004,),
        quiet=False,
        tolerance=0.02,
        losses=(0.0, 0.01, 0.02, 0.03),
        baseline_runs=10,
    ),
    Population(
        name=".4 %, each 7th 3 %",
        noises=(*[0.004] * 6, 0.03),
        quiet=False,
        tolerance=0.05,
        losses=(0.0, 0.025, 0.05),
    ),
    Population(name="all 3 %", noises=(0.03,), quiet=False, tolerance=0.05, losses=(0.0, 0.025, 0.05)),
)


def prior_line(population: Population, lost: float, platforms: int, seed: int) -> str:
    """Return failures, open verdicts and runs used with the default prior and with the platform's."""
    rng = np.random.default_rng([seed, POPULATIONS.index(population), round(1e4 * lost)])
    verdicts: dict[str, list[Verdict]] = {"default": [], "platform": []}
    d = -math.log1p(-lost)
    drawn: list[list[tuple[list[Summarized], list[Summarized]]]] = [[] for _ in range(platforms)]
    for number in range(BENCHMARKS):
        noise = population.noises[number % len(population.noises)]
        model = replace(QUIET, between_run_sd=noise) if population.quiet else Model(between_run_sd=noise)
        stored = rounds(baseline_steps(rng, model, platforms, population.baseline_runs), model).tolist()
        fresh = rounds(candidate_steps(rng, model, platforms, POLICY.max_repeats, d=d), model).tolist()
        for benchmarks, baseline, candidate in zip(drawn, stored, fresh, strict=True):
            benchmarks.append((as_runs(baseline, "session {}"), as_runs(candidate, "now")))
    for benchmarks in drawn:
        learned = platform_prior([baseline for baseline, _ in benchmarks])
        for name, prior in (("default", DEFAULT_PRIOR), ("platform", learned)):
            for baseline, candidate in benchmarks:
                policy = prior.applied(Policy(tolerance=population.tolerance), baseline)
                verdicts[name].append(judge_repeatedly(baseline, candidate, policy))
    shown = [f"{name} {_rates(found)}" for name, found in verdicts.items()]
    return f"{population.name:<20} tolerance {population.tolerance:.0%} loss {lost:5.1%}: {'; '.join(shown)}"


def _rates(verdicts: list[Verdict]) -> str:
    count = len(verdicts)
    failed = sum(verdict.outcome in LOSSES for verdict in verdicts)
    undecided = sum(verdict.outcome is Outcome.INCONCLUSIVE for verdict in verdicts)
    runs = sum(verdict.runs for verdict in verdicts)
    return f"{rate(failed, count)} failed, {100 * undecided / count:.1f} % open, {runs / count:.2f} runs"


def rate(hits: int, trials: int) -> str:
    """Return a rate with its 95 % interval (Wilson)."""
    z2 = NormalDist().inv_cdf(0.975) ** 2
    middle = (hits + z2 / 2) / (trials + z2)
    half = math.sqrt(z2 * (hits * (1 - hits / trials) + z2 / 4)) / (trials + z2)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return f"{100 * hits / trials:.2f} % ({100 * low:.2f} to {100 * high:.2f})"


# --- a slow mode ------------------------------------------------------------------------------------

SHARE, FACTOR = 0.5, 1.6  # of the processes, and of their step time
NIGHTS = 5
NO_THROTTLE = Model(between_run_sd=0.004, throttle_share=0.0)
THROTTLED = Model(between_run_sd=0.004)


def nights(model: Model, trials: int, seed: int, *, mode: bool, least_runs: int = 1) -> list[list[Verdict]]:
    """Return the verdicts of NIGHTS nights of each trial, against one baseline of five runs.

    As in a session, a slow run of an earlier night doubles the runs that ok needs; `least_runs` are those of a new environment.
    """
    rng = np.random.default_rng([seed, mode, least_runs, round(1e3 * model.throttle_share)])
    found: list[list[Verdict]] = [[] for _ in range(trials)]
    baselines = [
        as_runs(each, "session {}") for each in rounds(baseline_steps(rng, model, trials, 5), model).tolist()
    ]
    for _ in range(NIGHTS):
        times = candidate_steps(rng, model, trials, POLICY.max_repeats, d=0.0)
        if mode:
            times = times * np.where(rng.random((trials, POLICY.max_repeats, 1)) < SHARE, FACTOR, 1.0)
        for baseline, drawn, verdicts in zip(baselines, rounds(times, model).tolist(), found, strict=True):
            candidate = as_runs(drawn, "now")
            seen_slow = any(map(_had_a_slow_run, verdicts))
            policy = replace(POLICY, least_runs=max(least_runs, 1 + seen_slow))
            verdicts.append(judge_repeatedly(baseline, candidate, policy))
    return found


def _had_a_slow_run(verdict: Verdict) -> bool:
    """Return whether the history would show a run slower than throttling makes it."""
    group, all_runs = verdict.slow_group, verdict.slowdown
    is_regressed = verdict.outcome is Outcome.REGRESSED and all_runs is not None
    worst = group.loss if group else all_runs.point if is_regressed and all_runs else 0.0
    return worst > POLICY.deepest_throttle


def mode_lines(trials: int, seed: int) -> Iterator[str]:
    """Yield how often a mode of half of the processes is caught, and how often one is seen where there is none."""
    for name, least_runs in (("nothing known", 1), ("new environment", 2)):
        found = nights(NO_THROTTLE, trials, seed, mode=True, least_runs=least_runs)
        first = sum(verdicts[0].outcome in LOSSES for verdicts in found)
        all_nights = sum(verdict.outcome in LOSSES for verdicts in found for verdict in verdicts)
        any_night = sum(any(verdict.outcome in LOSSES for verdict in verdicts) for verdicts in found)
        yield (
            f"{name:<16} first night {rate(first, trials)}; of {NIGHTS} nights {rate(all_nights, NIGHTS * trials)}, "
            f"in at least one {rate(any_night, trials)}"
        )
    for name, model in (("quiet", NO_THROTTLE), ("throttled", THROTTLED)):
        verdicts = [each for found in nights(model, trials, seed, mode=False) for each in found]
        unstable = sum(verdict.outcome is Outcome.UNSTABLE for verdict in verdicts)
        failed = sum(verdict.outcome in LOSSES for verdict in verdicts)
        runs = sum(verdict.runs for verdict in verdicts) / len(verdicts)
        count = len(verdicts)
        yield f"no mode, {name:<10} UNSTABLE {rate(unstable, count)}, any failure {rate(failed, count)}, {runs:.2f} runs"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.noise.study", description=__doc__)
    parser.add_argument("--trials", type=int, default=2000, help="per cell (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    results = simulate(all_tasks(options.trials, options.seed), options.workers)
    missed = [check for check in checks(results) if not check.passed]
    lines = [
        f"{options.trials} trials a cell, seed {options.seed}",
        f"~: off, by less than {MAX_ERRORS:g} standard errors of the simulation; MISS: by more",
        *render(results),
        f"\n{len(missed)} of {sum(1 for _ in checks(results))} figures missed.\n\nslow mode:",
        *mode_lines(options.trials, options.seed),
        "\nprior from the platform:",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    platforms = max(1, options.trials // BENCHMARKS)
    for population in POPULATIONS:
        for lost in population.losses:
            sys.stdout.write(f"{prior_line(population, lost, platforms, options.seed)}\n")
            sys.stdout.flush()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
