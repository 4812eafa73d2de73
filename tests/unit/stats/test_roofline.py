"""No step is quicker than its arithmetic at the peak or its bytes at the memory's rate, and one that is raises an alarm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.measurement import Roofline

H200 = Roofline(peak_tflops=989.4, bandwidth_gb_s=4800)
POSITIVE = st.floats(1e-3, 1e6)
COUNT = st.floats(1, 1e18)
ROOFLINES = st.builds(Roofline, peak_tflops=POSITIVE, bandwidth_gb_s=POSITIVE)


@pytest.mark.parametrize(
    ("roofline", "flops", "moved", "least_s"),
    [
        (H200, 2 * 8192**3, 3 * 8192**2 * 2, 1.1113e-3),  # arithmetic: 1.0995 TFLOP at 989.4 TFLOP/s
        (H200, 2e9, 2e9, 2e9 / 4.8e12),  # memory: reading the weights for one token
        (Roofline(peak_tflops=None, bandwidth_gb_s=1000), 1e15, 1e9, 1e-3),
        (Roofline(peak_tflops=None, bandwidth_gb_s=None), 1e12, 1e9, 0),
        (H200, None, None, 0),
        (H200, 0, 0, 0),
    ],
)
def test_least_time_of_a_step(roofline, flops, moved, least_s):
    assert roofline.least_s(flops, moved) == pytest.approx(least_s, rel=1e-3)
    assert bool(roofline.impossible(1e-9, flops, moved)) == (least_s > 0)


class TestAlarms:
    def test_more_arithmetic_than_the_peak(self):
        alarm = H200.impossible(1e-3, 2e12, None, device="h200", precision="bf16")
        assert "2000 TFLOP/s in the fastest round, where the dense bf16 peak of h200 is 989.4" in alarm
        assert "a step of 1 ms cannot take less than 2.02 ms" in alarm
        assert "GB/s" not in alarm

    def test_more_bytes_than_the_memory_moves(self):
        alarm = H200.impossible(1e-3, 1e9, 9.6e9, device="h200")
        assert "9600 GB/s in the fastest round, where the memory of h200 moves 4800" in alarm
        assert "a step of 1 ms cannot take less than 2 ms" in alarm
        assert "TFLOP/s" not in alarm

    def test_both_at_once(self):
        alarm = H200.impossible(1e-6, 1e12, 1e9)
        assert alarm.startswith("impossible: ")
        assert "TFLOP/s" in alarm
        assert "GB/s" in alarm

    def test_a_step_at_the_roof_itself_is_possible(self):
        assert H200.impossible(H200.least_s(1e12, 1e9), 1e12, 1e9) == ""


@given(ROOFLINES, COUNT, COUNT, st.floats(1e-9, 1e9))
def test_only_an_impossible_step_has_a_share_above_one(roofline, flops, moved, step_s):
    share = roofline.rates(step_s, flops, moved)["roofline_share"]
    assert (share > 1) == bool(roofline.impossible(step_s, flops, moved))


@pytest.mark.parametrize(
    ("peak_tflops", "bandwidth_gb_s", "flops", "bytes_moved", "expected"),
    [
        (
            1000.0,
            5000.0,
            0.8e12,
            4e9,
            {"tflops": 400, "mfu": 0.4, "memory_gb_per_s": 2000, "roofline_share": 0.4},
        ),
        (1000.0, 5000.0, 0.8e12, None, {"tflops": 400, "mfu": 0.4}),
        (1000.0, 5000.0, None, 4e9, {"memory_gb_per_s": 2000, "roofline_share": 0.4}),
        (1000.0, 5000.0, None, None, {}),
        (None, 5000.0, 0.8e12, 4e9, {"tflops": 400, "memory_gb_per_s": 2000, "roofline_share": 0.4}),
        (1000.0, None, 0.8e12, 4e9, {"tflops": 400, "mfu": 0.4, "memory_gb_per_s": 2000}),
        (None, None, 0.8e12, 4e9, {"tflops": 400, "memory_gb_per_s": 2000}),
    ],
)
def test_rates_are_given_for_what_is_known(peak_tflops, bandwidth_gb_s, flops, bytes_moved, expected):
    roofline = Roofline(peak_tflops=peak_tflops, bandwidth_gb_s=bandwidth_gb_s)
    assert roofline.rates(2e-3, flops, bytes_moved) == pytest.approx(expected)
