"""What a suite has in common is one verdict: no loss hides in it, and it adds no alarm."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.gate import Outcome, Policy, judge, loss
from pytest_accel.stats.metric_gates import (
    FEWEST_MEMBERS,
    ShiftMember,
    fewest_slower,
    judge_platform_shift,
    judge_rest,
    total_slowdown,
)
from pytest_accel.stats.run import Run

POLICY = Policy()


def runs(*log_s, session="s", **metrics):
    return [
        Run(session=session, rounds_s=(math.exp(each),), steps_per_round=10, metrics=metrics)
        for each in log_s
    ]


def member(d, *, regressed=True, spread=0.003, now=None, then=None):
    return ShiftMember(
        baseline=runs(-spread, 0.0, spread, **(then or {})),
        runs=runs(d, d, **(now or {})),
        tolerance=0.05,
        regressed=regressed,
    )


def suite(*differences, **more):
    return [member(d + 0.0005 * number, **more) for number, d in enumerate(differences)]


def test_a_loss_of_all_is_one_verdict():
    found = judge_platform_shift(suite(*[0.08] * 20))
    assert found is not None
    assert found.regressed
    assert (found.slower, found.members) == (20, 20)
    assert found.loss == pytest.approx(loss(0.085), abs=0.002)
    assert found.at_least < found.c


def test_of_fewer_than_eight_nothing_is_said():
    assert judge_platform_shift(suite(*[0.08] * (FEWEST_MEMBERS - 1))) is None


def test_what_no_benchmark_fails_by_does_not_count():
    found = judge_platform_shift(suite(*[0.08] * 8, regressed=False))
    assert found is not None
    assert not found.regressed


@pytest.mark.parametrize("d", [0.0, 0.01, -0.08])
def test_within_half_the_tolerance_or_faster_does_not_count(d):
    found = judge_platform_shift(suite(*[d] * 8))
    assert found is not None
    assert not found.regressed


@pytest.mark.parametrize("slow", range(1, 7))
def test_what_only_some_lost_is_not_the_platforms(slow):
    found = judge_platform_shift(suite(*[0.10] * slow, *[0.0] * (8 - slow)))
    assert found is not None
    assert not found.regressed


@pytest.mark.parametrize(("members", "needed"), [(8, 7), (9, 8), (12, 10), (20, 15)])
def test_so_many_must_share_it_that_chance_seldom_makes_as_many(members, needed):
    assert fewest_slower(members) == needed


@given(st.lists(st.floats(-0.3, 0.3), min_size=8, max_size=24), st.integers(0, 23), st.floats(0, 10))
def test_one_benchmark_moves_what_is_common_no_further_than_its_neighbours_stand(differences, which, by):
    which %= len(differences)
    before, ordered = (
        judge_platform_shift(suite(*differences)),
        sorted(each.d for each in suite(*differences)),
    )
    moved = [d + by * (number == which) for number, d in enumerate(differences)]
    after = judge_platform_shift(suite(*moved))
    assert before is not None
    assert after is not None
    middle = len(ordered) // 2
    assert before.c - 1e-9 <= after.c <= ordered[middle + 1] + 1e-9


class TestTheRest:
    BASELINE = runs(-0.003, 0.0, 0.003, -0.001, 0.001)

    def test_is_what_the_others_did_not_lose(self):
        verdict = judge_rest(self.BASELINE, runs(0.081, 0.082), 0.08, POLICY)
        assert verdict.outcome is Outcome.OK
        assert verdict.slowdown is not None
        assert verdict.slowdown.point == pytest.approx(loss(0.0015), abs=1e-4)
        assert verdict.common == pytest.approx(loss(0.08))

    def test_regresses_by_itself(self):
        assert judge_rest(self.BASELINE, runs(0.18, 0.181), 0.08, POLICY).outcome is Outcome.REGRESSED

    def test_of_one_that_lost_less_is_ok_and_no_improvement(self):
        verdict = judge_rest(self.BASELINE, runs(0.0, 0.001), 0.08, POLICY)
        assert verdict.outcome is Outcome.OK
        assert not judge_rest(self.BASELINE, runs(0.0), 0.08, POLICY).wants_another_run

    def test_a_slow_run_beside_the_rest_is_confirmed_by_another(self):
        verdict = judge_rest(self.BASELINE, runs(0.08, 0.08, 0.08, 0.55), 0.08, POLICY)
        assert verdict.outcome is Outcome.OK
        assert verdict.wants_another_run


@given(st.floats(0.001, 0.3), st.floats(-0.3, 0.3))
def test_the_rest_and_what_all_lost_are_the_whole(c, d):
    stored, now = runs(-0.003, 0.0, 0.003), runs(d, d)
    plain, rest = judge(stored, now, POLICY), judge_rest(stored, now, c, POLICY)
    assert total_slowdown(plain) == plain.slowdown
    assert total_slowdown(rest).point == pytest.approx(plain.slowdown.point)
    assert total_slowdown(rest).low <= total_slowdown(rest).point <= total_slowdown(rest).high
