"""More devices against fewer: efficiency, its kind, and what cannot be."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.gate import StepTime
from pytest_accel.stats.results import ScalingPoint, scaling_figure

POSITIVE = st.floats(1e-6, 1e6)
DEVICES = st.integers(1, 64)


def point(devices, work, step_s, noise=0.01):
    step = StepTime(point_s=step_s, low_s=step_s / (1 + noise), high_s=step_s * (1 + noise))
    return ScalingPoint(devices=devices, work_per_step=work, step=step)


def test_weak_scaling_that_loses_a_tenth():
    scaling = scaling_figure("few", point(1, 256, 0.1), point(4, 1024, 0.1 / 0.9))
    assert scaling.kind == "weak"
    assert scaling.speedup == pytest.approx(3.6)
    assert scaling.efficiency == pytest.approx(0.9)
    assert not scaling.superlinear


def test_strong_scaling_shares_the_work():
    scaling = scaling_figure("few", point(2, 1024, 0.4), point(8, 1024, 0.125))
    assert scaling.kind == "strong"
    assert scaling.efficiency == pytest.approx(0.8)


@pytest.mark.parametrize(("noise", "alarm"), [(0.01, True), (0.05, False)])
def test_an_alarm_needs_more_than_noise(noise, alarm):
    scaling = scaling_figure("few", point(1, 100, 0.1, noise), point(2, 200, 0.1 / 1.05, noise))
    assert scaling.superlinear is alarm


@given(DEVICES, POSITIVE, POSITIVE, st.integers(2, 16))
def test_perfect_scaling_is_one_and_no_alarm(devices, work, step_s, times):
    scaling = scaling_figure(
        "few", point(devices, work, step_s), point(devices * times, work * times, step_s)
    )
    assert math.isclose(scaling.efficiency, 1)
    assert not scaling.superlinear


@given(POSITIVE, POSITIVE, POSITIVE, POSITIVE)
def test_units_of_time_and_work_cancel(few_s, many_s, work, factor):
    def efficiency(seconds, units):
        few, many = point(1, work * units, few_s * seconds), point(4, 4 * work * units, many_s * seconds)
        return scaling_figure("few", few, many).efficiency

    assert math.isclose(efficiency(1, 1), efficiency(factor, 1 / factor), rel_tol=1e-9)
