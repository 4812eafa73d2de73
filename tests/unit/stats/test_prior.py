"""Prior of run-to-run noise from the stored runs of a platform."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.baseline_quality import (
    DEFAULT_PRIOR,
    PRIOR_DEGREES_RANGE,
    PRIOR_NOISE_RANGE,
    platform_prior,
)
from pytest_accel.stats.run import Run
from pytest_accel.stats.verdict import Policy


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
