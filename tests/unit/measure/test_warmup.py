"""Planning of rounds, and detection of drift."""

from __future__ import annotations

import math
import random
from itertools import islice
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.measure.rounds import (
    MAX_ROUNDS,
    MIN_ROUND_S,
    MIN_WARMUP_S,
    STEPS_PER_ROUND,
    DriftDetector,
    plan_rounds,
    steady_rounds,
)
from pytest_accel.stats.run import MIN_ROUNDS

STEP_S = st.floats(1e-9, 1e4)
BUDGET_S = st.floats(1e-3, 3600)


class TestPlan:
    @given(STEP_S, BUDGET_S)
    def test_never_fewer_than_six_rounds_and_never_too_many(self, step_s, budget_s):
        plan = plan_rounds(step_s, budget_s)
        assert MIN_ROUNDS <= plan.rounds <= MAX_ROUNDS
        assert plan.steps_per_round >= 1

    @given(STEP_S, BUDGET_S)
    def test_budget_is_kept_to_half_a_round(self, step_s, budget_s):
        plan = plan_rounds(step_s, budget_s)
        round_s = plan.steps_per_round * step_s
        if plan.rounds > MIN_ROUNDS:
            assert plan.rounds * round_s <= budget_s + 0.5 * round_s * (1 + 1e-9)
        elif plan.steps_per_round > 1:
            assert plan.rounds * round_s <= budget_s * (1 + 1e-9)

    @given(STEP_S, BUDGET_S)
    def test_budget_is_used(self, step_s, budget_s):
        plan = plan_rounds(step_s, budget_s)
        round_s = plan.steps_per_round * step_s
        assert plan.rounds * round_s >= budget_s - 0.5 * round_s * (1 + 1e-9)

    @given(st.floats(1e-3, 0.039))
    def test_ten_steps_where_they_make_a_round(self, step_s):
        plan = plan_rounds(step_s, 2.4)
        assert plan.steps_per_round == max(STEPS_PER_ROUND, math.ceil(MIN_ROUND_S / step_s))

    @pytest.mark.parametrize("step_s", [1e-6, 1e-4, 1e-3])
    def test_rounds_grow_where_there_would_be_too_many(self, step_s):
        plan = plan_rounds(step_s, 60.0)
        assert plan.rounds == MAX_ROUNDS
        assert plan.rounds * plan.steps_per_round * step_s == pytest.approx(60.0, rel=0.01)

    def test_long_steps_make_rounds_of_one(self):
        assert plan_rounds(10.0, 5.0).steps_per_round == 1
        assert plan_rounds(10.0, 5.0).rounds == MIN_ROUNDS

    def test_tiny_steps_make_rounds_long_enough_for_the_timer(self):
        assert plan_rounds(1e-6, 1.0).steps_per_round * 1e-6 == pytest.approx(MIN_ROUND_S)

    def test_tiny_budget_still_has_six_rounds_within_it(self):
        plan = plan_rounds(1e-6, 0.006)
        assert plan.rounds >= MIN_ROUNDS
        assert plan.rounds * plan.steps_per_round * 1e-6 <= 0.006 * 1.1

    @given(STEP_S, BUDGET_S, st.integers(1, 300))
    def test_rounds_are_whole_bursts_and_no_longer_than_that_takes(self, step_s, budget_s, burst):
        plain, plan = plan_rounds(step_s, budget_s), plan_rounds(step_s, budget_s, burst=burst)
        assert plan.steps_per_round % burst == 0
        assert plain.steps_per_round <= plan.steps_per_round < plain.steps_per_round + burst
        assert MIN_ROUNDS <= plan.rounds <= MAX_ROUNDS

    def test_loader_bound_rounds_have_one_rate(self):
        """As with three workers on an H200: two batches were ready, the third was waited for."""
        waits_s = [0.056, 0.056, 0.494]
        plan = plan_rounds(0.2, 2.0, burst=3)
        for phase in range(3):
            taken = [waits_s[(phase + step) % 3] for step in range(plan.steps_per_round)]
            assert sum(taken) / len(taken) == pytest.approx(sum(waits_s) / 3)

    @pytest.mark.parametrize(
        ("step_s", "budget_s"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (1.0, -1.0), (math.nan, 1.0)]
    )
    def test_impossible_figures_are_refused(self, step_s, budget_s):
        with pytest.raises(ValueError, match="cannot be planned"):
            plan_rounds(step_s, budget_s)


def observed(stream, *, max_s: float = 30.0, block_s: float = 0.1) -> DriftDetector:
    """Observe blocks until steady or exhausted; the stream gives mean step times."""
    detector = DriftDetector(max_s=max_s)
    for step_s in stream:
        if detector.steady or detector.exhausted:
            break
        detector.observe(step_s, block_s)
    return detector


def noisy(step_s: float, sd: float, seed: int):
    draw = random.Random(seed)
    while True:
        yield step_s * math.exp(draw.gauss(0, sd))


class TestDriftDetector:
    @given(
        st.lists(st.floats(1e-7, 10), min_size=1, max_size=20),
        st.floats(0.01, 5),
        st.floats(0.01, 1),
    )
    def test_ends_on_any_stream(self, cycle, max_s, block_s):
        blocks = 0
        detector = DriftDetector(max_s=max_s)
        while not (detector.steady or detector.exhausted):
            detector.observe(cycle[blocks % len(cycle)], block_s)
            blocks += 1
        assert blocks <= math.ceil(max_s / block_s) + 1
        assert detector.step_s > 0

    def test_constant_steps_are_steady_after_the_least_time(self):
        detector = observed([0.01] * 1000)
        assert detector.steady
        assert MIN_WARMUP_S <= detector.spent_s <= MIN_WARMUP_S + 0.2
        assert detector.step_s == 0.01

    @pytest.mark.parametrize("sd", [0.003, 0.01, 0.03, 0.1])
    def test_noise_without_drift_is_steady_soon(self, sd):
        """Noise is not drift, however large it is."""
        spent = [observed(noisy(0.01, sd, seed)).spent_s for seed in range(100)]
        assert median(spent) < 3.0
        assert sum(each >= 30 for each in spent) <= 2

    @pytest.mark.parametrize("drift", [0.005, 0.02, 0.1])
    def test_steps_that_go_on_getting_slower_are_not_steady(self, drift):
        """A trend is not noise, however steep it is; 0.5 % a block is 2 % between the windows."""
        detector = observed((0.01 * math.exp(drift * block) for block in range(1000)), max_s=10.0)
        assert detector.exhausted
        assert not detector.steady

    @pytest.mark.parametrize("sd", [0.0, 0.001, 0.003])
    @pytest.mark.parametrize("step", [0.5, 0.03, -0.03, -0.5])
    def test_step_change_is_waited_out(self, step, sd):
        """Clocks drop, or an autotuner switches: the windows must lie behind it."""
        for at in range(8, 16):
            draw = random.Random(at)
            stream = (
                0.01 * math.exp(draw.gauss(0, sd) + (step if block >= at else 0.0)) for block in range(1000)
            )
            # Seen from before the change, it is steady: begin to ask only once it has happened.
            detector = DriftDetector(max_s=30.0)
            for block, step_s in enumerate(stream):
                detector.observe(step_s, 0.1)
                if block > at and (detector.steady or detector.exhausted):
                    break
            assert detector.steady
            assert detector.blocks_s[-1] == pytest.approx(0.01 * math.exp(step), rel=0.02)
            # At least three of the four blocks of the earlier window lie behind the change too.
            assert len(detector.blocks_s) - at >= 6

    @pytest.mark.parametrize("tail_blocks", [3, 6, 10])
    def test_warm_up_tail_is_waited_out(self, tail_blocks):
        """Twice as slow at first, and exponentially better."""
        stream = (0.01 * (1 + math.exp(-block / tail_blocks)) for block in range(1000))
        detector = observed(stream)
        assert detector.steady
        assert detector.step_s == pytest.approx(0.01, rel=0.05)

    @pytest.mark.parametrize(("excess", "tau_s"), [(0.2, 3.0), (0.3, 5.0), (0.5, 2.0)])
    def test_slow_tail_is_waited_out(self, excess, tau_s):
        """Windows that grow see what two neighbouring ones of .4 s do not."""
        stream = (0.01 * (1 + excess * math.exp(-0.1 * block / tau_s)) for block in range(1000))
        detector = observed(stream)
        assert detector.blocks_s[-1] == pytest.approx(0.01, rel=0.03)

    def test_compilation_in_the_first_block_is_forgotten(self):
        detector = observed([5.0, *[0.01] * 1000])
        assert detector.steady
        assert detector.step_s == 0.01

    def test_single_outlier_does_not_delay(self):
        detector = observed([*[0.01] * 6, 0.05, *[0.01] * 1000])
        assert detector.steady
        assert detector.spent_s < 2.0

    def test_few_long_blocks_are_not_enough(self):
        detector = DriftDetector(max_s=30.0)
        for _ in range(7):
            detector.observe(2.0, 2.0)
        assert not detector.steady
        detector.observe(2.0, 2.0)
        assert detector.steady

    def test_limit_below_the_least_time_is_the_limit(self):
        detector = observed([0.01] * 1000, max_s=0.05)
        assert detector.exhausted
        assert len(detector.blocks_s) == 1


class TestSteadyRounds:
    def test_level_rounds_are_steady(self):
        assert steady_rounds([0.01] * 8)

    @pytest.mark.parametrize("rate", [0.01, -0.02])
    def test_rounds_that_drift_are_not(self, rate):
        assert not steady_rounds([0.01 * math.exp(rate * number) for number in range(10)])

    def test_one_slow_round_is_no_drift(self):
        assert steady_rounds([0.02, *[0.01] * 9])

    def test_noise_is_hardly_ever_taken_for_drift(self):
        runs = (list(islice(noisy(0.01, 0.03, seed), 10)) for seed in range(300))
        assert sum(not steady_rounds(rounds_s) for rounds_s in runs) < 30

    def test_too_few_rounds_say_nothing(self):
        assert steady_rounds([0.01, 0.5])
