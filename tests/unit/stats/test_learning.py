"""What nights say of the noise, and what they must not say."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.learning import (
    LEAST_NOISE,
    Learned,
    Night,
    learn,
    typical_noise,
    with_learned,
    with_typical,
)
from pytest_accel.stats.verdict import Policy
from tests.studies.learning import Cell, simulate

POLICY = Policy()


def nights(*first, alike=()):
    return [Night(runs=(each,), alike=alike) for each in first]


def normal(count, sd, *, seed=1, drift=0.0):
    chance = random.Random(seed)
    return [chance.gauss(0, sd) + drift * number for number in range(count)]


def test_the_scale_is_that_of_successive_differences():
    found = learn(nights(0.0, 0.01, 0.0, 0.01, 0.0, 0.01))
    assert found is not None
    assert found.noise == pytest.approx(0.01 / 2**0.5)
    assert found.degrees_of_freedom == pytest.approx(2 / 3 * 5)
    assert found.nights == 6


def test_it_comes_out_as_it_was_put_in():
    found = learn(nights(*normal(400, 0.01)))
    assert found is not None
    assert found.noise == pytest.approx(0.01, rel=0.1)
    assert found.degrees_of_freedom == 6


def test_few_nights_say_nothing():
    assert learn(nights(*normal(5, 0.01))) is None
    assert learn([]) is None


@given(st.floats(-0.002, 0.002), st.floats(-5, 5))
def test_neither_the_level_nor_a_drift_enters(drift, level):
    plain = learn(nights(*normal(200, 0.01)))
    drifting = learn(nights(*(each + level for each in normal(200, 0.01, drift=drift))))
    assert plain is not None
    assert drifting is not None
    assert drifting.noise == pytest.approx(plain.noise, rel=0.05)


def test_a_night_on_which_the_code_changed_is_no_noise():
    before, after = normal(20, 0.003), [0.2 + each for each in normal(20, 0.003, seed=2)]
    found = learn(nights(*before, *after))
    assert found is not None
    assert found.noise < 0.005


def test_nights_of_two_environments_are_not_compared():
    steps = [Night(runs=(0.1 * number,), alike=(str(number // 2),)) for number in range(20)]
    found = learn(steps)
    assert found is not None
    assert found.noise == pytest.approx(0.1 / 2**0.5), "each of its ten pairs, and none across"
    assert learn([Night(runs=(0.1 * n,), alike=(str(n),)) for n in range(20)]) is None


class TestCorrelation:
    def learned(self, session_sd, run_sd, count=300):
        chance = random.Random(4)
        made = []
        for _ in range(count):
            session = chance.gauss(0, session_sd)
            made.append(Night(runs=tuple(session + chance.gauss(0, run_sd) for _ in range(3))))
        return learn(made)

    @pytest.mark.parametrize(
        ("session_sd", "run_sd", "rho"), [(0.01, 0.01, 0.5), (0.0, 0.01, 0.0), (0.03, 0.003, 0.8)]
    )
    def test_is_the_share_that_a_session_has(self, session_sd, run_sd, rho):
        assert self.learned(session_sd, run_sd).correlation == pytest.approx(rho, abs=0.1)

    def test_of_few_nights_stays_near_that_of_the_gate(self):
        few = self.learned(0.03, 0.003, count=6)
        many = self.learned(0.03, 0.003)
        assert 0.2 < few.correlation < many.correlation

    def test_of_one_second_run_stays_near_that_of_a_machine_so_noisy(self):
        """What is drawn to is the gate's own for such noise: one night must not talk it out of a drift."""
        levels = normal(20, 0.15)
        several = [Night(runs=(levels[0], levels[0] + 0.15)), *nights(*levels[1:])]
        found = learn(several)
        assert found is not None
        assert found.correlation == pytest.approx(POLICY.drifting_correlation, abs=0.1)

    def test_of_single_runs_is_that_of_the_gate(self):
        found = learn(nights(*normal(20, 0.01)))
        assert found is not None
        assert found.correlation is None
        assert with_learned(POLICY, found).session_correlation == POLICY.session_correlation


def test_the_prior_is_pooled_and_nothing_else_changes():
    found = with_learned(POLICY, Learned(noise=0.002, degrees_of_freedom=12, nights=19))
    assert found.prior_degrees_of_freedom == 15
    assert found.prior_noise == pytest.approx(((3 * 0.01**2 + 12 * 0.002**2) / 15) ** 0.5)
    assert (found.tolerance, found.alpha, found.beta) == (POLICY.tolerance, POLICY.alpha, POLICY.beta)


def test_a_new_benchmark_takes_the_median_of_its_platform():
    known = [Learned(noise=each, degrees_of_freedom=12, nights=19) for each in (0.004, 0.006, 0.05)]
    assert typical_noise(known) == 0.006
    assert typical_noise([]) is None
    assert typical_noise([Learned(noise=1e-5, degrees_of_freedom=12, nights=19)]) == LEAST_NOISE
    assert with_typical(POLICY, 0.006).prior_degrees_of_freedom == POLICY.prior_degrees_of_freedom


class TestSimulated:
    """Bounds are three or more standard errors from what 1,000 draws gave (`python -m tests.studies.learning --seed 11`).

    There, 59.1 -> 66.1 % caught with 4.53 -> 4.17 runs: of these the runs are told by few draws.
    """

    def test_a_quiet_machine_decides_sooner_and_catches_no_less(self):
        found = simulate(Cell(sd=0.003, tolerance=0.02, effect=1.0), 80, seed=7)
        assert found.runs_learned < found.runs_plain
        assert found.learned >= found.plain - 5

    def test_false_alarms_stay_few(self):
        assert simulate(Cell(sd=0.003, tolerance=0.02, effect=0.0), 80, seed=7).learned <= 5
        noisy = simulate(Cell(sd=0.03, tolerance=0.05, effect=0.5), 80, seed=7)
        assert noisy.learned <= noisy.plain + 5
