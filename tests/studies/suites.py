"""Does the platform verdict keep its promises? `python -m tests.studies.suites [--trials N] [--seed S]`.

A suite of n benchmarks; each baseline is a run a night for five nights, which all benchmarks share; tonight is one session.
A run is its benchmark's level, the effect of its session (which all benchmarks feel), and noise of its own: normal, no rounds
inside. The session asks the real gate one look after the other, once plainly and once with what the suite has in common
taken off where it counts.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_accel.stats.gate import judge
from pytest_accel.stats.platform_shift import ShiftMember, judge_platform_shift, without_shift
from pytest_accel.stats.run import Run
from pytest_accel.stats.verdict import Outcome, Policy, Verdict

POLICY = Policy()
NIGHTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """What became of one session."""

    alone: tuple[bool, ...]  # benchmarks that the plain gate failed
    rest: tuple[bool, ...]  # those that failed with the platform verdict in force
    platform: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    benchmarks: int
    session_sd: float
    run_sd: float = 0.01
    slowdown: float = 0.0  # loss of throughput, of all
    slow_one: float = 0.0  # of the first one, beside that


def run(session: str, log_s: float) -> Run:
    return Run(session=session, rounds_s=(math.exp(log_s),), steps_per_round=10)


def draw(rng: np.random.Generator, model: Model) -> tuple[list[list[Run]], list[list[Run]]]:
    """Baselines and tonight's runs, of each benchmark."""
    n, looks = model.benchmarks, POLICY.max_repeats
    sessions = rng.normal(0, model.session_sd, NIGHTS + 1)
    noise = rng.normal(0, model.run_sd, (n, NIGHTS + looks))
    shift = np.full(n, -math.log1p(-model.slowdown))
    shift[0] -= math.log1p(-model.slow_one)
    baselines = [[run(f"night {s}", sessions[s] + row[s]) for s in range(NIGHTS)] for row in noise]
    tonight = [
        [run("tonight", sessions[-1] + shift[i] + row[NIGHTS + look]) for look in range(looks)]
        for i, row in enumerate(noise)
    ]
    return baselines, tonight


def night(
    baselines: Sequence[list[Run]], tonight: Sequence[list[Run]], *, together: bool
) -> tuple[list[Outcome], bool]:
    """As a session does it: one more run for all that are open, what they share, then their verdicts.

    Those that regressed are held, and not measured again, until none is open: what counts later is taken off them, too.
    """
    n, c = len(baselines), 0.0
    looks, outcomes = [0] * n, [Outcome.INCONCLUSIVE] * n
    waiting, held = list(range(n)), list[int]()
    for _ in range(POLICY.max_repeats):
        for i in waiting:
            looks[i] += 1
        verdicts = _judged(baselines, tonight, looks, c, [*waiting, *held])
        if together and not c:
            found = judge_platform_shift(
                [
                    ShiftMember(
                        baseline=baselines[i],
                        runs=tonight[i][: looks[i]],
                        tolerance=POLICY.tolerance,
                        regressed=i in verdicts and verdicts[i].outcome is Outcome.REGRESSED,
                    )
                    for i in range(n)
                ]
            )
            if found is not None and found.regressed:
                c = found.c
                verdicts = _judged(baselines, tonight, looks, c, [*waiting, *held])
        for i, verdict in verdicts.items():
            outcomes[i] = verdict.outcome
        waiting = [i for i, verdict in verdicts.items() if verdict.wants_another_run]
        held = [i for i, verdict in verdicts.items() if verdict.outcome is Outcome.REGRESSED]
        if not waiting:
            break
    return outcomes, bool(c)


def _judged(
    baselines: Sequence[list[Run]],
    tonight: Sequence[list[Run]],
    looks: Sequence[int],
    c: float,
    which: Sequence[int],
) -> dict[int, Verdict]:
    return {i: judge(baselines[i], without_shift(c, tonight[i][: looks[i]]), POLICY) for i in which}


def simulate(model: Model, trials: int, seed: int) -> list[Night]:
    rng = np.random.default_rng(
        [
            seed,
            model.benchmarks,
            round(1e4 * model.session_sd),
            round(1e4 * model.run_sd),
            round(1e4 * model.slowdown),
            round(1e4 * model.slow_one),
        ]
    )
    found = []
    for _ in range(trials):
        baselines, tonight = draw(rng, model)
        alone, _ = night(baselines, tonight, together=False)
        rest, platform = night(baselines, tonight, together=True)
        found.append(
            Night(
                alone=tuple(each is Outcome.REGRESSED for each in alone),
                rest=tuple(each is Outcome.REGRESSED for each in rest),
                platform=platform,
            )
        )
    return found


def shares(nights: Sequence[Night]) -> dict[str, float]:
    """In %: of benchmarks and of nights."""
    return {
        "alone, a benchmark": 100 * float(np.mean([each.alone for each in nights])),
        "rest, a benchmark": 100 * float(np.mean([each.rest for each in nights])),
        "platform": 100 * float(np.mean([each.platform for each in nights])),
        "alone, any": 100 * float(np.mean([any(each.alone) for each in nights])),
        "with it, any": 100 * float(np.mean([each.platform or any(each.rest) for each in nights])),
        "first, alone": 100 * float(np.mean([each.alone[0] for each in nights])),
        "first, rest": 100 * float(np.mean([each.rest[0] for each in nights])),
    }


MODELS = [
    *(Model(benchmarks=n, session_sd=sd) for n in (8, 20) for sd in (0.0, 0.005, 0.01, 0.03)),
    *(
        Model(benchmarks=n, session_sd=sd, slowdown=loss)
        for n in (8, 20)
        for sd in (0.005, 0.01, 0.03)
        for loss in (0.05, 0.1)
    ),
    *(Model(benchmarks=n, session_sd=0.005, slowdown=0.0253) for n in (8, 20)),
    *(Model(benchmarks=8, session_sd=sd, slow_one=loss) for sd in (0.005, 0.01) for loss in (0.05, 0.1)),
    Model(benchmarks=8, session_sd=0.005, slowdown=0.05, slow_one=0.1),
]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.studies.suites", description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for model in MODELS:
        found = shares(simulate(model, options.trials, options.seed))
        told = ", ".join(f"{name} {value:.1f}" for name, value in found.items())
        sys.stdout.write(
            f"n {model.benchmarks}, session sd {100 * model.session_sd:g} %, all {100 * model.slowdown:g} %, "
            f"one {100 * model.slow_one:g} %: {told}\n"
        )
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
