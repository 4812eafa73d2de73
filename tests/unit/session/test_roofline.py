"""Rates of a step on a device of the catalogue: which figures there are, and what alone raises an alarm."""

from __future__ import annotations

import pytest

from pytest_accel.platforms.kinds import Variant
from pytest_accel.session.rates import rates

DEVICE = Variant(peaks_tflops={"bf16": 1000.0}, bandwidth_gb_s=5000.0)
STEP = {
    "timed_step_s": 2e-3, "fastest_step_s": 1e-3, "flops": 0.8e12, "bytes_moved": 4e9, "precision": "bf16",
    "variant": DEVICE,
}  # fmt: skip


def test_everything_known():
    metrics, alarm = rates(**STEP)
    assert metrics == pytest.approx(
        {"tflops": 400, "mfu": 0.4, "memory_gb_per_s": 2000, "roofline_share": 0.4}  # .8 ms either way
    )
    assert alarm == ""


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"bytes_moved": None}, {"tflops", "mfu"}),
        ({"flops": None}, {"memory_gb_per_s", "roofline_share"}),
        ({"flops": None, "bytes_moved": None}, set()),
        ({"precision": None}, {"tflops", "memory_gb_per_s", "roofline_share"}),
        (
            {"precision": "fp8"},
            {"tflops", "memory_gb_per_s", "roofline_share"},
        ),  # a peak that the catalogue lacks
        ({"variant": None}, {"tflops", "memory_gb_per_s"}),  # the host
        ({"variant": Variant(peaks_tflops={"bf16": 1000.0})}, {"tflops", "mfu", "memory_gb_per_s"}),
    ],
)
def test_what_is_not_known_has_no_figure(changed, names):
    metrics, alarm = rates(**STEP | changed)
    assert set(metrics) == names
    assert alarm == ""


@pytest.mark.parametrize(
    ("changed", "unit"), [({"flops": 1.1e12}, "TFLOP/s"), ({"bytes_moved": 5.1e9}, "GB/s")]
)
def test_the_fastest_round_is_judged_and_not_the_typical_one(changed, unit):
    metrics, alarm = rates(**STEP | changed, device="h200")
    assert metrics["mfu"] < 1
    assert metrics["roofline_share"] < 1
    assert alarm.startswith("impossible: ")
    assert unit in alarm
    assert "h200" in alarm


def test_what_an_algorithm_may_save_raises_no_alarm():
    metrics, alarm = rates(**STEP | {"flops": 1.1e12}, least_flops=0.6e12)
    assert alarm == ""
    assert metrics["mfu"] == metrics["roofline_share"] == pytest.approx(0.55)
    _, alarm = rates(**STEP | {"flops": 2.2e12}, least_flops=1.2e12)
    assert "1200 TFLOP/s" in alarm
