"""Many small accepted losses stop at the anchor."""

import math

import pytest

from pytest_accel.stats.gate import Outcome, Policy, judge
from pytest_accel.stats.metric_gates import ANCHOR, judge_anchor, want_another_run, worst
from pytest_accel.stats.run import Run

POLICY = Policy()


def runs(*log_s):
    return [
        Run(session=f"s{n}", rounds_s=(math.exp(each),), steps_per_round=10) for n, each in enumerate(log_s)
    ]


QUIET = runs(-0.003, 0.0, 0.003, -0.001, 0.001)
LOST = runs(0.0990, 0.1, 0.1010, 0.0995, 0.1005)


def test_what_the_baseline_followed_fails_by_the_anchor():
    now = runs(0.1, 0.1)
    throughput, verdict = judge(LOST, now, POLICY), judge_anchor(QUIET, now, 0.0, POLICY)
    assert throughput.outcome is Outcome.OK
    assert verdict.outcome is Outcome.REGRESSED
    assert worst(throughput, [verdict]) is Outcome.REGRESSED
    assert (verdict.of, verdict.slowdown.point) == (ANCHOR, pytest.approx(0.095, abs=0.001))


def test_it_has_half_as_much_room_again():
    now = runs(0.035, 0.036)
    assert judge(QUIET, runs(0.06, 0.06), POLICY).outcome is Outcome.REGRESSED
    assert judge_anchor(QUIET, runs(0.03, 0.03), 0.0, POLICY).outcome is Outcome.OK
    assert judge_anchor(QUIET, now, 0.0, POLICY).tolerance == pytest.approx(0.075)
    assert judge_anchor(QUIET, now, 0.0, Policy(tolerance=0.9)).tolerance < 1


def test_faster_than_the_anchor_asks_for_nothing():
    verdict = judge_anchor(QUIET, runs(-0.2), 0.0, POLICY)
    assert verdict.of == ANCHOR
    assert judge_anchor(QUIET, runs(-0.2, -0.2), 0.0, POLICY).outcome is Outcome.OK
    assert not want_another_run(judge(runs(-0.2, -0.2, -0.2), runs(-0.2), POLICY), [verdict])


def test_what_the_platform_lost_is_not_asked_of_it_twice():
    assert judge_anchor(QUIET, runs(0.1, 0.1), 0.1, POLICY).outcome is Outcome.OK
