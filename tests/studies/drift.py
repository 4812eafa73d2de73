"""Do many small accepted losses stop at the anchor? `python -m tests.studies.drift [--trials N] [--seed S]`.

A benchmark loses a little every night. Each night is judged against the baseline; every ten nights somebody accepts where it
stands, with five fresh runs of the last five nights. The anchor was recorded before the first loss and stays. Summaries alone,
normal: a session's effect and a run's.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pytest_accel.stats.gate import judge
from pytest_accel.stats.metric_gates import judge_anchor
from pytest_accel.stats.run import Run
from pytest_accel.stats.verdict import Outcome, Policy, Verdict

POLICY = Policy()
REFRESH_NIGHTS, BASELINE_RUNS = 10, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Of one benchmark: the nights on which either said regressed first; None where it never did."""

    baseline_night: int | None
    anchor_night: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    loss_a_night: float = 0.001
    nights: int = 100
    run_sd: float = 0.009
    session_sd: float = 0.0045


def course(rng: np.random.Generator, model: Model) -> Course:
    def night(number: int, runs: int) -> list[Run]:
        level = -number * math.log1p(-model.loss_a_night) + rng.normal(0, model.session_sd)
        noise = rng.normal(0, model.run_sd, runs)
        return [
            Run(session=f"night {number}", rounds_s=(math.exp(level + each),), steps_per_round=10)
            for each in noise
        ]

    anchor = [run for _ in range(BASELINE_RUNS) for run in _named(night(0, 1), rng)]
    baseline = anchor
    by_baseline = by_anchor = None
    for number in range(1, model.nights + 1):
        runs = night(number, POLICY.max_repeats)
        if by_baseline is None and _fails(lambda k: judge(baseline, runs[:k], POLICY)):  # noqa: B023 - called at once
            by_baseline = number
        if by_anchor is None and _fails(lambda k: judge_anchor(anchor, runs[:k], 0.0, POLICY).verdict):  # noqa: B023
            by_anchor = number
        if number % REFRESH_NIGHTS == 0:
            baseline = [run for back in range(BASELINE_RUNS) for run in night(number - back, 1)]
    return Course(baseline_night=by_baseline, anchor_night=by_anchor)


def _named(runs: list[Run], rng: np.random.Generator) -> list[Run]:
    """Each of a session of its own."""
    return [
        Run(session=str(rng.integers(1 << 30)), rounds_s=run.rounds_s, steps_per_round=10) for run in runs
    ]


def _fails(ask: Callable[[int], Verdict]) -> bool:
    """Ask one look after the other, as a session does."""
    verdict = ask(1)
    while verdict.wants_another_run:
        verdict = ask(verdict.runs + 1)
    return verdict.outcome is Outcome.REGRESSED


def simulate(model: Model, trials: int, seed: int) -> list[Course]:
    rng = np.random.default_rng([seed, round(1e5 * model.loss_a_night), model.nights])
    return [course(rng, model) for _ in range(trials)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.studies.drift", description=__doc__)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for model in (Model(), Model(loss_a_night=0.0), Model(loss_a_night=0.0005, nights=200)):
        found = simulate(model, options.trials, options.seed)
        nights = sorted(each.anchor_night for each in found if each.anchor_night is not None)
        never = sum(each.baseline_night is None for each in found)
        where = (
            f"nights {nights[0]} to {nights[-1]}, half of them by night {nights[len(nights) // 2]}"
            if nights
            else ""
        )
        sys.stdout.write(
            f"{100 * model.loss_a_night:g} % a night, {model.nights} nights, {options.trials} trials: the anchor stopped "
            f"{100 * len(nights) / len(found):.1f} % ({where}); the moving baseline never noticed "
            f"{100 * never / len(found):.1f} %\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
