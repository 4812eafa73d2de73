"""What streams of thirty simulated runs show by chance: where the bounds in promises.py come from.

`python -m benchmarks.noise.chance [STREAMS]` prints quantiles over so many streams of each kind; 40 take about a minute.
"""

from __future__ import annotations

import math
import random
import sys

from benchmarks.noise.resampling import POLICY, consecutive, kept, neighbours, noise_of, scattered, tally
from pytest_accel.stats.gate import policy_at_noise
from pytest_accel.stats.run import Run

RUNS, ROUNDS, DRAWS = 30, 8, 300
NOISES = (0.003, 0.01, 0.03, 0.1, 0.2)
CORRELATIONS = (0.0, 0.2, 0.5)  # of a run with the next, as a first-order autoregression


def simulated(chance: random.Random, noise: float, correlation: float) -> list[Run]:
    """Runs whose rounds agree to half of what runs differ by."""
    runs: list[Run] = []
    effect = chance.gauss(0, noise)
    for _ in range(RUNS):
        rounds_s = tuple(math.exp(effect + chance.gauss(0, noise / 2)) for _ in range(ROUNDS))
        runs.append(kept(Run(session="simulated", rounds_s=rounds_s, steps_per_round=1)))
        effect = correlation * effect + math.sqrt(1 - correlation**2) * chance.gauss(0, noise)
    return runs


def main(streams: int) -> None:
    for noise in NOISES:
        for correlation in CORRELATIONS:
            chance = random.Random(f"{noise} {correlation}")  # noqa: S311 - repeatable, and no secret
            found: dict[str, list[float]] = {}
            for number in range(streams):
                runs = simulated(chance, noise, correlation)
                anywhere = tally(runs, runs, scattered(RUNS, draws=DRAWS, seed=number))
                in_time = tally(runs, runs, consecutive(runs))
                assert anywhere is not None
                assert in_time is not None
                shown = {
                    "anywhere": anywhere.gate_rate,
                    "anywhere, of mean's": _share(anywhere.gate, anywhere.mean),
                }
                if neighbours(runs) <= policy_at_noise(POLICY, noise_of(runs).between).session_correlation:
                    shown |= {
                        "in time": in_time.gate_rate,
                        "in time, of mean's": _share(in_time.gate, in_time.mean),
                    }
                for name, value in shown.items():
                    found.setdefault(name, []).append(value)
            for name, values in found.items():
                values.sort()
                quantiles = ", ".join(
                    f"{100 * values[int(q * (len(values) - 1))]:.1f}" for q in (0.5, 0.9, 0.95, 0.99)
                )
                sys.stdout.write(
                    f"noise {noise:.1%}, correlation {correlation:g}, {name}, {len(values)} streams: median, 90, 95, 99 % in %: "
                    f"{quantiles}; most {100 * values[-1]:.1f}\n"
                )
                sys.stdout.flush()


def _share(gate: int, mean: int) -> float:
    return gate / mean if mean else float(gate > 0)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
