"""What is not fit to be recorded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_accel.session.recording import refuse_disturbed

THROTTLED = SimpleNamespace(invalid="throttled")


def case(*, fair=0, disturbed=0, problem=""):
    return SimpleNamespace(
        label="test_step (h200)",
        problem=problem,
        measurements=[object()] * fair,
        disturbed=[THROTTLED] * disturbed,
        may_be_replaced=disturbed <= 2,
    )


@pytest.mark.parametrize(("fair", "disturbed"), [(1, 0), (5, 2), (0, 0)])
def test_what_was_replaced_is_no_reason(fair, disturbed):
    found = case(fair=fair, disturbed=disturbed)
    refuse_disturbed(found)
    assert found.problem == ""


def test_more_than_may_be_replaced_is():
    found = case(fair=4, disturbed=3)
    refuse_disturbed(found)
    assert found.problem.startswith("test_step (h200): 3 runs were disturbed, the last one: throttled. ")


def test_a_session_that_ended_before_another_run_took_its_place_recorded_nothing():
    found = case(fair=0, disturbed=1)
    refuse_disturbed(found)
    assert found.problem.startswith("test_step (h200): 1 run was disturbed, ")


def test_what_is_known_to_have_failed_keeps_its_words():
    found = case(disturbed=3, problem="it failed")
    refuse_disturbed(found)
    assert found.problem == "it failed"
