"""Metrics of a benchmark's own, and the gates upon them: what can be judged, and what is said of the rest."""

from __future__ import annotations

import math
import re

import pytest

from pytest_accel.measure.question import QuestionError
from pytest_accel.session.metrics import check_gated, checked_gates, checked_metrics


class Scalar:
    """A number as NumPy and torch have them."""

    def __float__(self) -> float:
        return 0.5


def refuses(check, *arguments, text):
    with pytest.raises(QuestionError, match=re.escape(text)):
        check(*arguments)


class TestMetrics:
    def test_are_plain_numbers_by_name(self):
        found = checked_metrics({"accuracy": Scalar(), "epochs": 3, "below_zero": -1.5})
        assert found == {"accuracy": 0.5, "epochs": 3.0, "below_zero": -1.5}
        assert {type(value) for value in found.values()} == {float}

    @pytest.mark.parametrize("name", ["", "two words", "1st", 7, None, "x" * 41])
    def test_a_name_is_a_short_identifier(self, name):
        refuses(checked_metrics, {name: 1.0}, text=f"metrics: the name {name!r} is not an identifier")

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "0.9", None, True, [1.0], 10**400])
    def test_a_value_is_a_finite_number(self, value):
        refuses(checked_metrics, {"accuracy": value}, text="metrics['accuracy']: ")

    @pytest.mark.parametrize("name", ["throughput", "host_cpu_s_per_step", "tflops", "mfu"])
    def test_ours_are_not_overwritten(self, name):
        refuses(checked_metrics, {name: 1.0}, text=f"metrics: {name!r} is measured by pytest-accel")

    @pytest.mark.parametrize("value", [None, 0.9, ["accuracy"]])
    def test_anything_but_a_mapping_is_refused(self, value):
        refuses(checked_metrics, value, text="is not a mapping of names to numbers")


class TestGates:
    def test_none_are_none(self):
        assert checked_gates(None) == {}

    def test_are_tolerances_by_name(self):
        assert checked_gates({"accuracy": 0.02}) == {"accuracy": 0.02}

    @pytest.mark.parametrize("value", [0, 1, -0.1, 5, math.nan, "5%", True])
    def test_a_tolerance_is_a_fraction(self, value):
        refuses(checked_gates, {"accuracy": value}, text=f"gates['accuracy']: {value!r} is not a fraction")

    def test_throughput_has_its_own(self):
        refuses(checked_gates, {"throughput": 0.1}, text="the throughput is gated always")

    def test_what_was_not_measured_is_named_with_what_was(self):
        refuses(check_gated, {"accuracy": 0.1}, {"mfu": 0.4, "acuracy": 0.9}, text="one of: acuracy, mfu")

    @pytest.mark.parametrize("value", [0.0, -0.5])
    def test_what_is_not_positive_is_refused(self, value):
        refuses(check_gated, {"accuracy": 0.1}, {"accuracy": value}, text=f"'accuracy' is {value:g}")

    def test_one_of_ours_may_be_gated(self):
        check_gated({"mfu": 0.1}, {"mfu": 0.4})
