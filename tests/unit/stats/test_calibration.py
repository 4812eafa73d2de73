"""A calibration finds the noise that is there, promises no more than the gate keeps, and repeats itself."""

from __future__ import annotations

import math
import random
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_accel.stats.calibration import calibrate, detectable_loss, false_alarms, measured_noise
from pytest_accel.stats.gate import judge, resolution_factor
from pytest_accel.stats.runs import Run
from pytest_accel.stats.verdict import Outcome, Policy

POLICY = Policy()
RHO = POLICY.session_correlation


def run(y: float, session: str = "tonight", spread: float = 0.0) -> Run:
    """A run whose ln(step time) is y; its rounds go up and down by `spread`."""
    return Run(
        session=session,
        rounds_s=tuple(math.exp(y + sign * spread) for sign in (-1, 0, 0, 0, 0, 1)),
        steps_per_round=10,
    )


def session(
    chance: random.Random, sd: float, count: int, name: str = "tonight", shift: float = 0.0
) -> list[Run]:
    """Runs of one evening; `sd` is what somebody sees who measures again on other days."""
    evening = shift + chance.gauss(0, sd * RHO**0.5)
    return [run(evening + chance.gauss(0, sd * (1 - RHO) ** 0.5), name) for _ in range(count)]


class TestNoise:
    @pytest.mark.parametrize("sd", [0.003, 0.01, 0.03])
    def test_is_that_of_the_machine(self, sd):
        """Neither the gate's prior of 1 % nor the evening is in it; a cap on slow runs takes little."""
        chance = random.Random(1)
        found = [measured_noise(session(chance, sd, 12), POLICY) for _ in range(300)]
        assert fmean(found) == pytest.approx(sd, rel=0.1)

    def test_of_several_evenings_is_their_standard_deviation(self):
        values = (0.0, 0.01, 0.02, 0.0, 0.01, 0.02)
        runs = [run(value, f"evening {at}") for at, value in enumerate(values)]
        assert measured_noise(runs, POLICY) == pytest.approx(stdev(values))
        one = [run(value) for value in values]  # one evening shows 1 - rho of the variance
        assert measured_noise(one, POLICY) == pytest.approx(stdev(values) / math.sqrt(1 - RHO))

    def test_of_a_machine_that_drifts_is_that_of_one_whose_runs_resemble_each_other(self):
        """As the gate takes it: above 8 % one evening shows half of the variance."""
        values = (0.0, 0.2, 0.4, 0.0, 0.2, 0.4)
        found = measured_noise([run(value) for value in values], POLICY)
        assert found == pytest.approx(stdev(values) / math.sqrt(1 - POLICY.drifting_correlation))

    def test_is_not_that_of_one_throttled_run(self):
        quiet = session(random.Random(2), 0.005, 12)
        noise = measured_noise(quiet, POLICY)
        slow = measured_noise([*quiet[:-1], run(quiet[-1].summary + 0.5)], POLICY)
        assert slow < 4 * noise < 0.03

    def test_is_never_less_than_what_the_rounds_show(self):
        equal = [run(0.0, spread=0.1) for _ in range(6)]
        alike = [Run(session="s", rounds_s=(0.9, 0.95, 1.0, 1.0, 1.05, 1.1), steps_per_round=1)] * 6
        assert measured_noise(equal, POLICY) == 0  # two rounds of six say nothing of a median
        assert measured_noise(alike, POLICY) == pytest.approx(alike[0].standard_error)

    @given(st.lists(st.floats(-0.1, 0.1), min_size=6, max_size=15), st.randoms())
    @settings(max_examples=50)
    def test_does_not_depend_on_the_order_of_runs(self, values, chance):
        runs = [run(value) for value in values]
        shuffled = chance.sample(runs, len(runs))
        assert measured_noise(shuffled, POLICY) == pytest.approx(measured_noise(runs, POLICY), abs=1e-12)


class TestDetectableLoss:
    def test_at_the_noise_of_the_prior_is_the_gates_own_resolution(self):
        whole = 1 - math.exp(-0.01 * resolution_factor(5, 3, POLICY))
        assert detectable_loss(0.01, POLICY) == pytest.approx(whole)

    @pytest.mark.parametrize("sd", [0.003, 0.01, 0.04])
    def test_is_caught_by_the_gate_in_most_cases(self, sd):
        """In 80 % as promised (more on a quiet machine, where the prior is the larger part)."""
        chance, loss = random.Random(3), detectable_loss(sd, POLICY)
        policy = Policy(tolerance=loss)
        caught = sum(_outcome(chance, sd, policy.delta, policy) is Outcome.REGRESSED for _ in range(200))
        assert caught >= 0.7 * 200

    @given(st.floats(0, 0.2), st.floats(0, 0.2))
    def test_grows_with_the_noise(self, one, other):
        low, high = sorted((one, other))
        assert detectable_loss(low, POLICY) <= detectable_loss(high, POLICY) < 1

    def test_is_smaller_with_more_runs_of_more_sessions(self):
        more = detectable_loss(0.02, POLICY, baseline_runs=10, sessions=10)
        assert more < detectable_loss(0.02, POLICY) < detectable_loss(0.02, POLICY, sessions=1)


def _outcome(chance: random.Random, sd: float, shift: float, policy: Policy) -> Outcome:
    """Of a baseline of three evenings, and a candidate that is slower by `shift`."""
    evenings = (("a", 2), ("b", 2), ("c", 1))
    baseline = [each for name, count in evenings for each in session(chance, sd, count, name)]
    candidate = session(chance, sd, 5, shift=shift)
    looks = 1
    while (verdict := judge(baseline, candidate[:looks], policy)).wants_another_run:
        looks += 1
    return verdict.outcome


class TestFalseAlarms:
    @pytest.mark.parametrize(("sd", "at_most"), [(0.003, 0.005), (0.01, 0.005), (0.03, 0.015)])
    def test_are_as_rare_as_the_gate_promises(self, sd, at_most):
        """GATE.md, at no change; over many calibrations, because the draws of one share its runs."""
        chance = random.Random(4)
        found = [false_alarms(session(chance, sd, 14), POLICY, draws=20, seed=seed) for seed in range(150)]
        assert sum(each.draws for each in found) == 3000
        assert sum(each.gate for each in found) <= at_most * 3000

    def test_are_counted(self):
        """Half of the runs fast, half slow: most draws find a difference where there is none."""
        runs = [run(0.2 if at >= 7 else 0.001 * at) for at in range(14)]
        found = false_alarms(runs, POLICY, draws=200)
        assert 0 < found.gate < found.draws
        assert found.mean > 0

    def test_of_the_mean_are_of_the_first_run_against_the_last_of_the_baseline(self):
        """As --benchmark-compare does it: one run that is a tenth slower than all others, and is drawn as either."""
        runs = [run(0.0)] * 6 + [run(0.1)]
        found = false_alarms(runs, POLICY)
        assert found.draws == math.comb(7, 5)
        assert (
            found.mean == 0
        )  # it was measured last: never first of two, and as last of a baseline it is the slow one
        first = false_alarms([runs[-1], *runs[:-1]], POLICY)
        assert first.mean == math.comb(6, 1)  # first of two, whichever the other is
        fast = false_alarms([run(0.0)] * 6 + [run(-0.1)], POLICY)
        assert fast.mean == math.comb(6, 4)  # last of the baseline, whichever the others are

    def test_of_few_runs_are_all_there_are(self):
        nine = session(random.Random(5), 0.01, 9)
        found = false_alarms(nine, POLICY)
        assert (found.draws, found.looks) == (math.comb(9, 5), 4)
        assert false_alarms(nine, POLICY, seed=1) == found  # nothing was left to chance

    def test_need_runs_to_draw_from(self):
        assert false_alarms(session(random.Random(6), 0.01, 6), POLICY) is None
        assert false_alarms(session(random.Random(6), 0.01, 7), POLICY).looks == 2

    def test_draw_a_baseline_and_a_candidate_that_share_nothing(self, monkeypatch):
        seen = []

        def looked_at(baseline, candidate, policy):
            seen.append((len(baseline), {id(each) for each in baseline} & {id(each) for each in candidate}))
            assert [each.summary for each in candidate] == sorted(each.summary for each in candidate)
            return judge(baseline, candidate, policy)

        monkeypatch.setattr("pytest_accel.stats.calibration.judge", looked_at)
        in_order = [run(0.02 * at) for at in range(12)]
        false_alarms(in_order, POLICY, draws=30)
        assert all(entry == (5, set()) for entry in seen)
        assert len(seen) >= 30


class TestCalibration:
    def test_repeats_itself(self):
        runs = session(random.Random(7), 0.03, 12)
        assert calibrate(runs, seed=3, draws=50) == calibrate(runs, seed=3, draws=50)

    def test_says_what_it_rests_on(self):
        runs = session(random.Random(8), 0.01, 6, "a") + session(random.Random(9), 0.01, 6, "b")
        found = calibrate(runs, 0.1, draws=10)
        assert (found.runs, found.sessions, found.tolerance) == (12, 2, 0.1)
        assert found.noise == measured_noise(runs, POLICY)
        assert found.false_alarms.draws == 10

    def test_of_too_few_runs_is_refused(self):
        with pytest.raises(ValueError, match=r"5 runs do not tell the noise\. Calibrate with at least 6"):
            calibrate(session(random.Random(1), 0.01, 5))
