"""Results of a session: scaling, numerics, cost."""

import pytest

from pytest_accel.stats.gate import StepTime
from pytest_accel.stats.results import ScalingPoint, describe_loss_change, scaling_figure


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


# --- numerics ---------------------------------------------------------------------------------------


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
