"""Prior of run-to-run noise from the stored runs of a platform."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.baseline_quality import (
    DEFAULT_PRIOR,
    PRIOR_DEGREES_RANGE,
    PRIOR_NOISE_RANGE,
    platform_prior,
)
from pytest_accel.stats.gate import Outcome, Policy, judge
from pytest_accel.stats.run import Run
from pytest_accel.storage.baselines import BaselineStore, runs_of_platform


def benchmark(noise: float, runs: int = 6, seed: int = 0) -> list[Run]:
    source = random.Random(seed)
    return [
        Run(
            session=f"s{number}",
            rounds_s=(0.01 * math.exp(source.gauss(0, noise)),) * 6,
            steps_per_round=10,
        )
        for number in range(runs)
    ]


def platform(noises: list[float], runs: int = 6) -> list[list[Run]]:
    return [benchmark(noise, runs, seed) for seed, noise in enumerate(noises)]


@pytest.mark.parametrize("groups", [[], platform([0.004] * 3), platform([0.004] * 20, runs=2)])
def test_prior_of_a_platform_with_little_stored_is_the_default(groups):
    assert platform_prior(groups) == DEFAULT_PRIOR
    assert DEFAULT_PRIOR.applied(Policy(), benchmark(0.01)) == Policy()


def test_prior_noise_is_that_of_the_typical_benchmark():
    prior = platform_prior(platform([0.004] * 30 + [0.05] * 5))
    assert prior.noise == pytest.approx(0.004, rel=0.25)
    assert prior.benchmarks == 35


def test_prior_is_worth_less_the_more_benchmarks_differ():
    alike, different = (
        platform_prior(platform([0.005] * 40)),
        platform_prior(platform([0.002, 0.005, 0.03, 0.1] * 10)),
    )
    assert alike.degrees_of_freedom > 2 * different.degrees_of_freedom


@given(st.lists(st.floats(0, 1), min_size=4, max_size=10))
def test_prior_stays_within_its_bounds(noises):
    prior = platform_prior(platform(noises, runs=3))
    assert PRIOR_NOISE_RANGE[0] <= prior.noise <= PRIOR_NOISE_RANGE[1]
    assert PRIOR_DEGREES_RANGE[0] <= prior.degrees_of_freedom <= PRIOR_DEGREES_RANGE[1]


def test_benchmark_far_noisier_than_its_platform_keeps_the_default_prior():
    quiet = platform_prior(platform([0.004] * 20))
    assert quiet.applied(Policy(), benchmark(0.03)) == Policy()
    assert quiet.applied(Policy(), benchmark(0.004)).prior_noise == quiet.noise
    assert quiet.applied(Policy(), benchmark(0.03, runs=2)).prior_noise == quiet.noise


def test_h200_baselines_are_ok_among_themselves():
    """The newest session of each stored benchmark, judged against the others with the platform's prior."""
    store = BaselineStore(Path(__file__).parents[3] / "baselines")
    prior = platform_prior(runs_of_platform(store, "h200"))
    assert prior.benchmarks >= 40
    outcomes = Counter()
    for file in store.files("h200"):
        for entry in file.benchmarks.values():
            stored = [run for run in entry.runs if run.session != entry.runs[-1].session]
            newest = [run for run in entry.runs if run.session == entry.runs[-1].session]
            if stored:
                policy = Policy() if entry.tolerance is None else Policy(tolerance=entry.tolerance)
                outcomes[judge(stored, newest, prior.applied(policy, stored)).outcome] += 1
    assert outcomes.total() >= 40
    assert outcomes[Outcome.REGRESSED] == 0
    assert outcomes[Outcome.OK] >= outcomes.total() - 2
