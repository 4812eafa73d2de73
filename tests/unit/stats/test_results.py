"""Results of a session: scaling, numerics, cost."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.gate import StepTime
from pytest_accel.stats.results import LOSS_TOLERANCE, ScalingPoint, describe_loss_change, scaling_figure

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


# --- numerics ---------------------------------------------------------------------------------------

LOSSES = st.floats(0.01, 1e3)


@pytest.mark.parametrize(
    ("before", "after", "news"),
    [
        ([], 2.5, ""),
        ([None], 2.5, ""),
        ([2.5], None, ""),
        ([2.5, None], 2.25, "2.5 -> 2.25"),
        ([2.5], 2.52, ""),
        ([2.5], 2.25, "2.5 -> 2.25"),
        ([2.5, 2.5], 2.6, "2.5 -> 2.6"),
        ([59.07, 60.28], 61.4, ""),  # of a benchmark whose own runs stand 2 % apart
        ([59.07, 60.28], 61.6, "59.07 to 60.28 -> 61.6"),
        ([59.07, 60.28], 57.9, ""),
        ([59.07, 60.28], 57.8, "59.07 to 60.28 -> 57.8"),
        ([-1.0], -1.005, ""),
        ([-1.0], 1.0, "-1 -> 1"),
    ],
)
def test_what_is_news(before, after, news):
    assert describe_loss_change(before, after) == news


@given(st.lists(LOSSES, min_size=1), LOSSES)
def test_one_more_run_like_the_others_is_never_news(before, between):
    lowest, highest = min(before), max(before)
    assert not describe_loss_change(before, min(max(between, lowest), highest))


@given(LOSSES, LOSSES)
def test_one_run_alone_leaves_the_tolerance(before, after):
    assert bool(describe_loss_change([before], after)) is not math.isclose(
        before, after, rel_tol=LOSS_TOLERANCE
    )


@given(st.lists(LOSSES, min_size=1), LOSSES, LOSSES)
def test_runs_that_stand_apart_make_no_news(before, another, after):
    """Whatever was no news stays none when one more run is known."""
    if not describe_loss_change(before, after):
        assert not describe_loss_change([*before, another], after)
