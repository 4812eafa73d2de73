"""Metrics of a benchmark's own, and the gates upon them: what can be judged, and what is said of the rest."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import pytest

from pytest_accel.measure.device import CpuDevice
from pytest_accel.measure.question import QuestionError
from pytest_accel.platforms.names import PlatformName
from pytest_accel.session.accel import Accel
from pytest_accel.session.own_metrics import check_gated, checked_gates, checked_metrics, gates_asked
from pytest_accel.settings import Settings


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
        assert checked_gates({"accuracy": 0.02, "reach": None}) == {"accuracy": 0.02, "reach": None}

    @pytest.mark.parametrize("value", [0, 1, -0.1, 5, math.nan, "5%", True])
    def test_a_tolerance_is_a_fraction(self, value):
        refuses(checked_gates, {"accuracy": value}, text=f"gates['accuracy']: {value!r} is not a fraction")

    def test_throughput_has_its_own(self):
        refuses(checked_gates, {"throughput": 0.1}, text="the throughput is gated always")

    @pytest.mark.parametrize("name", ["energy_per_step_j", "latency_p99_s"])
    def test_may_be_of_what_less_is_better(self, name):
        assert checked_gates({name: 0.08}) == {name: 0.08}

    @pytest.mark.parametrize("name", ["temperature_c", "sm_clock_mhz", "energy_j", "slowdown_felt"])
    def test_how_it_was_measured_is_not_gated(self, name):
        refuses(checked_gates, {name: 0.1}, text=f"gates: {name!r} says how it was measured")

    def test_what_was_not_measured_is_named_with_what_was(self):
        refuses(check_gated, {"accuracy": 0.1}, {"mfu": 0.4, "acuracy": 0.9}, text="one of: acuracy, mfu")

    @pytest.mark.parametrize("value", [0.0, -0.5])
    def test_what_is_not_positive_is_refused(self, value):
        refuses(check_gated, {"accuracy": 0.1}, {"accuracy": value}, text=f"'accuracy' is {value:g}")

    def test_one_of_ours_may_be_gated(self):
        check_gated({"mfu": 0.1}, {"mfu": 0.4})


ENERGY = "energy_per_step_j"


class TestAsked:
    def test_nothing_asked_leaves_the_benchmarks_own(self):
        assert gates_asked(Settings(), {ENERGY: 36.0}, {"accuracy": 0.02}) == ({"accuracy": 0.02}, [])

    @pytest.mark.parametrize(
        ("settings", "tolerance"),
        [
            ({"gate": {ENERGY: None}}, 0.05),
            ({"gate": {ENERGY: None}, "tolerance": 0.1}, 0.1),
            ({"gate": {ENERGY: 0.08}, "tolerance": 0.1}, 0.08),
        ],
    )
    def test_a_tolerance_is_its_own_else_the_sessions_else_the_gates(self, settings, tolerance):
        assert gates_asked(Settings(**settings), {ENERGY: 36.0}, {}) == ({ENERGY: tolerance}, [])

    @pytest.mark.parametrize(("asked", "tolerance"), [(None, None), (0.03, 0.03)])
    def test_one_that_follows_the_throughput_does_so_where_it_is_asked_for_without_a_figure(
        self, asked, tolerance
    ):
        settings = Settings(gate={"loader_efficiency": asked}, tolerance=0.1)
        assert gates_asked(settings, {"loader_efficiency": 0.9}, {"loader_efficiency": None})[0] == {
            "loader_efficiency": tolerance
        }

    @pytest.mark.parametrize(("asked", "tolerance"), [(None, 0.02), (0.03, 0.03)])
    def test_a_figure_of_the_session_goes_before_the_benchmarks(self, asked, tolerance):
        settings = Settings(gate={"accuracy": asked}, tolerance=0.1)
        assert gates_asked(settings, {"accuracy": 0.9}, {"accuracy": 0.02})[0] == {"accuracy": tolerance}

    def test_energy_that_was_not_measured_is_not_green(self):
        settings = Settings(gate={ENERGY: None}, origins={"gate": "pyproject.toml"})
        gates, (text,) = gates_asked(settings, {"mfu": 0.4}, {}, {ENERGY: "NVML: no such counter"})
        assert gates == {}
        assert text.startswith(
            "energy is gated (from pyproject.toml) and was not measured: NVML: no such counter. "
        )
        assert text.endswith('leave this benchmark out of it: @pytest.mark.accel(gate="throughput").')

    def test_nor_is_energy_of_nothing(self):
        gates, (text,) = gates_asked(Settings(gate={ENERGY: 0.08}), {ENERGY: 0.0}, {})
        assert gates == {}
        assert "energy is gated (from the default) and is 0, which cannot be." in text

    @pytest.mark.parametrize(("origin", "missed"), [("--accel-gate", 0), ("@pytest.mark.accel of x", 1)])
    def test_what_some_benchmarks_have_is_missed_where_their_mark_asks(self, origin, missed):
        settings = Settings(gate={"latency_p99_s": None}, origins={"gate": origin})
        gates, texts = gates_asked(settings, {}, {})
        assert (gates, len(texts)) == ({}, missed)


class TestOfEveryStep:
    @pytest.fixture
    def timed(self):
        settled = SimpleNamespace(step_s=0.01)
        return SimpleNamespace(host_cpu_s=0.004, settled=settled, step_s=0.01)

    def metrics(self, device, timed, taken):
        settings = SimpleNamespace(budget_s=1.0, slowdown=0.0)
        accel = SimpleNamespace(
            platform=PlatformName(device), device_=CpuDevice(threads=1), settings=settings
        )
        return Accel._metrics(accel, lambda: taken.append(1), timed)

    def test_launching_is_timed_on_an_accelerator(self, timed):
        taken = []
        found = self.metrics("h200", timed, taken)
        assert found.keys() == {"host_cpu_s_per_step", "launch_s"}
        assert 0 < found["launch_s"] < 1
        assert len(taken) == 5

    def test_a_cpu_launches_nothing(self, timed):
        taken = []
        assert self.metrics("cpu", timed, taken).keys() == {"host_cpu_s_per_step"}
        assert taken == []
