"""Which way is better, what may be gated, and how `--accel-gate` is written."""

from __future__ import annotations

import pytest

from pytest_accel.stats.comparison import figures
from pytest_accel.stats.metric_gates import (
    DESCRIPTIVE,
    LESS_IS_BETTER,
    MEASURED,
    NAMES,
    less_is_better,
    parse_gates,
    shown_name,
)
from pytest_accel.stats.run import Run


@pytest.mark.parametrize(
    ("name", "less"),
    [
        ("throughput", False),
        ("energy_per_step_j", True),
        ("node_module_energy_per_step_j", True),
        ("latency_p99_s", True),
        ("host_cpu_s_per_step", True),
        ("accuracy", False),
        ("mfu", False),
        ("sm_clock_mhz", False),
        ("energy_j", False),  # of the window: no way is better
        # A user's own names: seconds and joules are costs, and what they buy is not.
        ("decode_s", True),
        ("decode_j", True),
        ("tokens_per_s", False),
        ("units_per_j", False),
        ("memory_gb_per_s", False),
        ("bandwidth_gb_s", False),
        ("requests_s", False),
        ("time_per_token_s", True),
        ("correct_digits", False),
    ],
)
def test_which_way_is_better(name, less):
    assert less_is_better(name) == less


def test_what_describes_a_measurement_has_no_better_way():
    assert not DESCRIPTIVE & LESS_IS_BETTER
    assert {*DESCRIPTIVE, *LESS_IS_BETTER} <= MEASURED.keys()


def test_energy_is_called_that():
    assert shown_name("energy_per_step_j") == "energy"
    assert shown_name("accuracy") == "accuracy"


class TestGates:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("throughput", {}),
            ("throughput,energy", {"energy_per_step_j": None}),
            (" energy = 8% , latency=0.1,", {"energy_per_step_j": 0.08, "latency_p99_s": 0.1}),
            ("energy_per_step_j", {"energy_per_step_j": None}),
            ("accuracy=2%", {"accuracy": 0.02}),
        ],
    )
    def test_are_metrics_with_what_is_tolerated(self, text, found):
        assert parse_gates(text) == found

    @pytest.mark.parametrize("text", ["", " , ", "enrgy", "throughput,temperature_c", "throughput energy"])
    def test_an_unknown_one_is_an_error_with_all_that_are_known(self, text):
        with pytest.raises(
            ValueError, match="Valid, separated by commas: throughput, energy, latency, "
        ) as caught:
            parse_gates(text)
        assert "gates={...}" in str(caught.value)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("energy=much", "has 'much' for energy, which is not a fraction or a percentage"),
            ("energy=0", "has '0' for energy, which leaves no room for noise"),
            ("energy=", "has '' for energy"),
            ("energy=120%", "is not between 0 and 100 %"),
            ("throughput=3%", "accel_tolerance"),
            ("energy,energy_per_step_j=5%", "twice"),
        ],
    )
    def test_a_bad_tolerance_is_named(self, text, said):
        with pytest.raises(ValueError, match=said):
            parse_gates(text)

    def test_every_name_that_errors_list_is_taken(self):
        assert len(parse_gates(",".join(NAMES))) == len(NAMES) - 1  # less throughput


def test_figures_carry_units_of_our_names_and_of_no_others():
    metrics = {"power_mean_w": 650.0, "sm_clock_mhz": 1515.0, "temperature_c": 61.0, "tdp_share": 0.93}
    run = Run(
        session="s",
        rounds_s=(0.1,) * 6,
        steps_per_round=1,
        metrics={**metrics, "vitamin_c": 1.0, "gb_per_s": 3.0},
    )
    found = figures([run], 1.0, "images")
    units = {name: found[name].unit for name in run.metrics}
    assert units == {
        "power_mean_w": "W",
        "sm_clock_mhz": "MHz",
        "temperature_c": "°C",
        "tdp_share": "%",
        "vitamin_c": "",
        "gb_per_s": "",
    }
    assert found["tdp_share"].value == pytest.approx(93.0)
