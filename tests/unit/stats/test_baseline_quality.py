"""How good a baseline is, in the gate's own terms."""

import math
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.report.terminal import frozen_text
from pytest_accel.stats.baseline_quality import (
    DEFAULT_PRIOR,
    PRIOR_DEGREES_RANGE,
    PRIOR_NOISE_RANGE,
    NoisePrior,
    auto_tolerance,
    baseline_quality,
    platform_prior,
    rounded_up,
)
from pytest_accel.stats.causes import causes_of
from pytest_accel.stats.gate import Outcome, Policy, interval, judge
from pytest_accel.stats.run import Run
from pytest_accel.storage.baselines import BaselineStore, runs_of_platform
from tests.support.stored import runs


def test_few_runs_or_few_sessions_are_provisional():
    assert baseline_quality(runs(2), None).provisional == "2 runs of 5, 1 session of 3"
    assert baseline_quality(runs(5), None).provisional == "1 session of 3"
    three = (*runs(2, session="a"), *runs(2, session="b"), *runs(1, session="c"))
    assert baseline_quality(three, None).provisional == ""


def test_the_resolution_is_that_of_the_gate():
    """GATE.md: 4.2 s at five runs of five sessions."""
    five = tuple(run for session in "abcde" for run in runs(1, session=session))
    found = baseline_quality(five, None)
    assert found.resolution / found.noise == pytest.approx(4.2, abs=0.2)


def test_more_sessions_resolve_more():
    one = baseline_quality(runs(6, noise=0.01), None)
    six = baseline_quality(tuple(run for s in "abcdef" for run in runs(1, session=s, noise=0.01)), None)
    assert six.resolution < one.resolution


def test_noise_that_the_tolerance_cannot_bear_is_said():
    noisy = runs(noise=0.05)
    assert baseline_quality(noisy, None).too_noisy
    assert not baseline_quality(noisy, 0.5).too_noisy
    assert baseline_quality(noisy, None).tolerance == Policy().tolerance


@given(st.lists(st.floats(-0.4, 0.4), min_size=1, max_size=8), st.integers(1, 4))
def test_the_interval_is_the_one_that_a_recording_shows(levels, sessions):
    """Drift is taken into account once, in both."""
    measured = tuple(
        run
        for number, level in enumerate(levels)
        for run in runs(1, session=f"night {number % sessions}", step_s=math.exp(level))
    )
    assert baseline_quality(measured, None).step == interval(measured, Policy())


class TestAuto:
    def test_is_what_the_runs_resolve_rounded_up(self):
        five = tuple(
            run for number, s in enumerate("abcde") for run in runs(1, session=s, step_s=1 + 0.01 * number)
        )
        resolution = baseline_quality(five, None).resolution
        found = auto_tolerance(five)
        assert 0.03 < resolution <= found < resolution + 0.005
        assert found / 0.005 == pytest.approx(round(found / 0.005))

    def test_is_three_percent_where_less_is_resolved(self):
        same = tuple(run for s in "abcdefghij" for run in runs(1, session=s))
        assert baseline_quality(same, None).resolution < 0.03
        assert auto_tolerance(same) == 0.03

    @given(st.floats(0, 0.99))
    def test_holds_what_it_was_rounded_from(self, loss):
        assert loss <= rounded_up(loss) + 1e-8
        assert rounded_up(loss) < loss + 0.005 + 1e-8

    def test_that_would_be_another_by_now_is_said_in_both_directions(self):
        stays = frozen_text(chosen=0.06, stored=0.04, before=0.04)
        assert stays.startswith(
            "tolerance auto: 4.0 % stays, as it was frozen; its runs resolve 6.0 % by now"
        )
        narrower = frozen_text(chosen=0.03, stored=0.04, before=0.04)
        assert "4.0 % stays, as it was frozen; its runs resolve 3.0 % by now" in narrower
        same = frozen_text(chosen=0.04, stored=0.04, before=0.04)
        assert same.endswith("4.0 % stays, as it was frozen")
        anew = frozen_text(chosen=0.06, stored=0.06, before=0.04)
        assert anew.endswith("auto: 6.0 %, frozen in its baseline; it was 4.0 %")
        assert frozen_text(chosen=0.03, stored=0.03).endswith("frozen in its baseline")


# --- the prior of a platform ------------------------------------------------------------------------


def benchmark(noise: float, runs: int = 6, seed: int = 0) -> list[Run]:
    source = random.Random(seed)
    return [
        Run(session=f"s{number}", rounds_s=(0.01 * math.exp(source.gauss(0, noise)),) * 6, steps_per_round=10)
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


def test_h200_sessions_are_ok_among_themselves_and_name_no_cause():
    """Each session of each stored benchmark, judged against the others with the platform's prior."""
    store = BaselineStore(Path(__file__).parents[3] / "baselines")
    prior = platform_prior(runs_of_platform(store, "h200"))
    assert prior.benchmarks >= 20  # the others have one run
    outcomes, causes = Counter(), []
    entries = [entry for file in store.files("h200") for entry in file.benchmarks.values()]
    for entry in entries:
        policy = Policy() if entry.tolerance is None else Policy(tolerance=entry.tolerance)
        for session in {run.session for run in entry.runs}:
            stored = [run for run in entry.runs if run.session != session]
            candidate = [run for run in entry.runs if run.session == session]
            if stored:
                verdict = judge(stored, candidate, prior.applied(policy, stored))
                outcomes[verdict.outcome] += 1
                causes += causes_of(verdict, stored, candidate)
    assert outcomes.total() >= 100
    assert outcomes.keys() <= {Outcome.OK, Outcome.INCONCLUSIVE}
    assert outcomes[Outcome.OK] >= 0.9 * outcomes.total()
    assert causes == []


@pytest.mark.parametrize(
    ("prior", "tolerance", "alpha"),
    [
        (DEFAULT_PRIOR, 0.02, Policy().alpha),
        (NoisePrior(benchmarks=20), 0.03, Policy().alpha),
        (NoisePrior(benchmarks=20), 0.02, (0.0, 0.0, 0.015, 0.04, 0.15)),  # two runs decide nothing
    ],
)
def test_narrow_tolerance_takes_more_runs_with_a_prior_of_the_platform(prior, tolerance, alpha):
    assert prior.applied(Policy(tolerance=tolerance), ()).alpha == alpha
