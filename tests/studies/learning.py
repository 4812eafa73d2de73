"""Does the learned scale keep false alarms, and what does it gain? `python -m tests.studies.learning [--trials N] [--seed S]`.

On the streams of `tests.studies.streams`: five baseline runs, then nights without a change, each judged as a session does it
(so that a night has as many runs as its verdict took), then the night that is asked about: plainly, and with the scale of those nights.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_accel.stats.gate import judge
from pytest_accel.stats.learning import Night, learn, with_learned
from pytest_accel.stats.runs import Run
from pytest_accel.stats.verdict import Outcome, Policy, Verdict
from tests.studies.gate import as_runs
from tests.studies.streams import Model, baseline_steps, candidate_steps, rounds

BASELINE_RUNS, HISTORY_NIGHTS = 5, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    sd: float
    tolerance: float
    effect: float  # in multiples of delta
    session_share: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """In % of the trials."""

    plain: float
    learned: float
    plain_open: float
    learned_open: float
    runs_plain: float
    runs_learned: float


def judged(baseline: Sequence[Run], candidate: Sequence[Run], policy: Policy) -> Verdict:
    verdict = judge(baseline, candidate[:1], policy)
    while verdict.wants_another_run:
        verdict = judge(baseline, candidate[: verdict.looks + 1], policy)
    return verdict


def simulate(cell: Cell, trials: int, seed: int) -> Shares:
    rng = np.random.default_rng(
        [
            seed,
            round(1e4 * cell.sd),
            round(1e4 * cell.tolerance),
            round(10 * cell.effect),
            round(10 * cell.session_share),
        ]
    )
    model, policy = (
        Model(between_run_sd=cell.sd, session_share=cell.session_share),
        Policy(tolerance=cell.tolerance),
    )
    baselines = rounds(baseline_steps(rng, model, trials, BASELINE_RUNS), model).tolist()
    past = rounds(candidate_steps(rng, model, trials * HISTORY_NIGHTS, 5, 0.0), model).tolist()
    tonight = rounds(candidate_steps(rng, model, trials, 5, cell.effect * policy.delta), model).tolist()
    plain, learned = [], []
    for trial in range(trials):
        baseline, candidate = as_runs(baselines[trial], "night {}"), as_runs(tonight[trial], "tonight")
        nights = []
        for rows in past[trial * HISTORY_NIGHTS : (trial + 1) * HISTORY_NIGHTS]:
            night = as_runs(rows, "past")
            nights.append(
                Night(runs=tuple(run.summary for run in night[: judged(baseline, night, policy).looks]))
            )
        found = learn(nights)
        assert found is not None
        plain.append(judged(baseline, candidate, policy))
        learned.append(judged(baseline, candidate, with_learned(policy, found)))
    return Shares(
        plain=_share(plain, Outcome.REGRESSED),
        learned=_share(learned, Outcome.REGRESSED),
        plain_open=_share(plain, Outcome.INCONCLUSIVE),
        learned_open=_share(learned, Outcome.INCONCLUSIVE),
        runs_plain=float(np.mean([each.looks for each in plain])),
        runs_learned=float(np.mean([each.looks for each in learned])),
    )


def _share(verdicts: Sequence[Verdict], outcome: Outcome) -> float:
    return 100 * sum(each.outcome is outcome for each in verdicts) / len(verdicts)


CELLS = [
    *(
        Cell(sd=0.003, tolerance=tolerance, effect=effect)
        for tolerance in (0.02, 0.03, 0.05)
        for effect in (0.0, 0.5, 1.0)
    ),
    *(Cell(sd=sd, tolerance=0.05, effect=effect) for sd in (0.01, 0.03) for effect in (0.0, 0.5, 1.0, 2.0)),
    *(
        Cell(sd=sd, tolerance=0.05, effect=effect, session_share=0.8)
        for sd in (0.01, 0.03)
        for effect in (0.0, 0.5, 1.0)
    ),
]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.studies.learning", description=__doc__)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for cell in CELLS:
        found = simulate(cell, options.trials, options.seed)
        sys.stdout.write(
            f"sd {100 * cell.sd:g} %, session share {cell.session_share:g}, tolerance {100 * cell.tolerance:g} %, slowdown {cell.effect:g}: failed "
            f"{found.plain:.1f} -> {found.learned:.1f}, inconclusive {found.plain_open:.1f} -> {found.learned_open:.1f}, runs "
            f"{found.runs_plain:.2f} -> {found.runs_learned:.2f}\n"
        )
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
