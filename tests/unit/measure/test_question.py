"""What may be asked of a measurement."""

from __future__ import annotations

import pytest
import torch

from pytest_accel.measure.question import QuestionError, check_demand


@pytest.mark.parametrize("value", ["1e9", -1, float("nan"), float("inf"), True, [1]])
def test_a_demand_that_is_no_number_is_refused(value):
    with pytest.raises(QuestionError, match=r"bytes_moved: .* is not a positive, finite number"):
        check_demand(flops=None, bytes_moved=value)


def test_a_demand_may_be_left_out_or_be_any_kind_of_number():
    check_demand(flops=None, least_flops=0, bytes_moved=2.5e9)
    check_demand(flops=torch.tensor(3.0))
