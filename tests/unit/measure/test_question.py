"""What may be asked of a measurement."""

from __future__ import annotations

import pytest
import torch

from pytest_accel.measure.question import QuestionError, check_demand, check_steps


@pytest.mark.parametrize("value", ["1e9", -1, float("nan"), float("inf"), True, [1]])
def test_a_demand_that_is_no_number_is_refused(value):
    with pytest.raises(QuestionError, match=r"bytes_moved: .* is not a positive, finite number"):
        check_demand(flops=None, bytes_moved=value)


def test_a_demand_may_be_left_out_or_be_any_kind_of_number():
    check_demand(flops=None, least_flops=0, bytes_moved=2.5e9)
    check_demand(flops=torch.tensor(3.0))


@pytest.mark.parametrize("value", [0, -3, False, True, None, 2.0, 2.5, float("nan"), float("inf"), "3"])
def test_a_burst_that_is_no_number_of_steps_is_refused(value):
    with pytest.raises(
        QuestionError, match=r"burst: .* is no number of steps. Write a whole number from 1 on"
    ):
        check_steps(settling_steps=(0, 0), burst=(value, 1))


def test_steps_may_be_any_kind_of_whole_number():
    check_steps(settling_steps=(torch.tensor(7), 0), burst=(3, 1))
