"""Arguments of `accel.measure`."""

import math
import re

import numpy as np
import pytest
import torch

from pytest_accel.measure.arguments import (
    ArgumentError,
    check_arguments,
    check_gated,
    check_metrics,
    select_gates,
)


class Scalar:
    """A number as NumPy and torch have them."""

    def __float__(self) -> float:
        return 0.5


def refuses(check, *arguments, text):
    with pytest.raises(ArgumentError, match=re.escape(text)):
        check(*arguments)


def check(step=print, *, work=1.0, unit="images", configuration=None, gates=None, demands=None, counts=None):
    return check_arguments(
        step,
        work=work,
        unit=unit,
        configuration=configuration,
        gates=gates,
        demands=demands or {},
        counts=counts or {},
    )


def checked_gates(gates):
    return check(gates=gates).gates


def select(of_session, metrics, own, *, reasons=None, origin="the default", tolerance=None):
    return select_gates(of_session, own, metrics, tolerance=tolerance, origin=origin, reasons=reasons or {})


@pytest.mark.parametrize("value", ["1e9", -1, math.nan, math.inf, True, [1]])
def test_demand_that_is_no_number_is_refused(value):
    with pytest.raises(ArgumentError, match=r"bytes_moved: .* is not a positive, finite number"):
        check(demands={"flops": None, "bytes_moved": value})


def test_numbers_may_be_of_torch_and_numpy():
    counts = {"warmup_steps": (torch.tensor(7), 0), "burst": (3, 1)}
    configuration = {"rate": np.float32(0.5)}
    work = np.prod((2, 3))
    found = check(work=work, configuration=configuration, demands={"flops": torch.tensor(3.0)}, counts=counts)
    assert (found.work, found.configuration) == (6.0, {"rate": 0.5})


@pytest.mark.parametrize("value", [0, -3, False, True, None, 2.0, 2.5, math.nan, math.inf, "3"])
def test_burst_that_is_no_number_of_steps_is_refused(value):
    with pytest.raises(
        ArgumentError, match=r"burst: .* is no number of steps. Write a whole number from 1 on"
    ):
        check(counts={"burst": (value, 1)})


class TestMetrics:
    def test_are_plain_numbers_by_name(self):
        found = check_metrics({"accuracy": Scalar(), "epochs": 3, "below_zero": -1.5})
        assert found == {"accuracy": 0.5, "epochs": 3.0, "below_zero": -1.5}
        assert {type(value) for value in found.values()} == {float}

    @pytest.mark.parametrize("name", ["", "two words", "1st", 7, None, "x" * 41])
    def test_a_name_is_a_short_identifier(self, name):
        refuses(check_metrics, {name: 1.0}, text=f"metrics: the name {name!r} is not an identifier")

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "0.9", None, True, [1.0], 10**400])
    def test_a_value_is_a_finite_number(self, value):
        refuses(check_metrics, {"accuracy": value}, text="metrics['accuracy']: ")

    @pytest.mark.parametrize("name", ["throughput", "host_cpu_s_per_step", "tflops", "mfu"])
    def test_ours_are_not_overwritten(self, name):
        refuses(check_metrics, {name: 1.0}, text=f"metrics: {name!r} is measured by pytest-accel")

    def test_anything_but_a_mapping_is_refused(self):
        refuses(check_metrics, 0.9, text="is not a mapping of names")


class TestGates:
    def test_are_tolerances_by_name(self):
        assert checked_gates(None) == {}
        given = {"accuracy": 0.02, "reach": None, "energy_per_step_j": 0.08, "latency_p99_s": 0.1}
        assert checked_gates(given) == given

    @pytest.mark.parametrize("value", [0, 1, -0.1, 5, math.nan, "5%", True])
    def test_a_tolerance_is_a_fraction(self, value):
        refuses(checked_gates, {"accuracy": value}, text=f"gates['accuracy']: {value!r} is not a fraction")

    def test_throughput_has_its_own(self):
        refuses(checked_gates, {"throughput": 0.1}, text="the throughput is gated always")

    @pytest.mark.parametrize("name", ["temperature_c", "sm_clock_mhz", "energy_j", "slowdown_felt"])
    def test_how_it_was_measured_is_not_gated(self, name):
        refuses(checked_gates, {name: 0.1}, text=f"gates: {name!r} says how it was measured")

    def test_what_was_not_measured_is_named_with_what_was(self):
        refuses(check_gated, {"accuracy": 0.1}, {"mfu": 0.4, "acuracy": 0.9}, text="one of: acuracy, mfu")

    @pytest.mark.parametrize("value", [0.0, -0.5])
    def test_what_is_not_positive_is_refused(self, value):
        refuses(check_gated, {"accuracy": 0.1}, {"accuracy": value}, text=f"'accuracy' is {value:g}")
        check_gated({"mfu": 0.1}, {"mfu": 0.4})


ENERGY = "energy_per_step_j"


class TestSelectGates:
    def test_without_a_session_gate_the_benchmarks_own_stay(self):
        assert select({}, {ENERGY: 36.0}, {"accuracy": 0.02}) == ({"accuracy": 0.02}, [])

    @pytest.mark.parametrize(
        ("limit", "tolerance", "expected"), [(None, None, 0.05), (None, 0.1, 0.1), (0.08, 0.1, 0.08)]
    )
    def test_tolerance_is_its_own_else_the_sessions_else_the_default(self, limit, tolerance, expected):
        assert select({ENERGY: limit}, {ENERGY: 36.0}, {}, tolerance=tolerance) == ({ENERGY: expected}, [])

    @pytest.mark.parametrize(
        ("limit", "own", "expected"),
        [(None, None, None), (0.03, None, 0.03), (None, 0.02, 0.02), (0.03, 0.02, 0.03)],
    )
    def test_session_figure_goes_before_the_benchmarks(self, limit, own, expected):
        gates, _ = select({"accuracy": limit}, {"accuracy": 0.9}, {"accuracy": own}, tolerance=0.1)
        assert gates == {"accuracy": expected}

    def test_energy_that_was_not_measured_is_missed_with_its_reason(self):
        reasons = {ENERGY: "NVML: no such counter"}
        gates, (text,) = select({ENERGY: None}, {"mfu": 0.4}, {}, reasons=reasons, origin="pyproject.toml")
        assert gates == {}
        assert text.startswith(
            "energy is gated (from pyproject.toml) and was not measured: NVML: no such counter. "
        )

    def test_energy_of_zero_is_missed(self):
        gates, (text,) = select({ENERGY: 0.08}, {ENERGY: 0.0}, {})
        assert gates == {}
        assert "energy is gated (from the default) and is 0, which cannot be." in text

    @pytest.mark.parametrize(("origin", "missed"), [("--accel-gate", 0), ("@pytest.mark.accel of x", 1)])
    def test_metric_of_some_benchmarks_is_missed_where_their_mark_names_it(self, origin, missed):
        gates, texts = select({"latency_p99_s": None}, {}, {}, origin=origin)
        assert (gates, len(texts)) == ({}, missed)
