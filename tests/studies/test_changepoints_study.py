"""The study of change points in short: enough to notice a broken table or test.

The seed is fixed and every bound is at least four standard errors from the rate of the long study.
"""

import numpy as np
import pytest

from pytest_accel.stats import changepoints
from tests.studies.changepoints import nights, ours, share_found, share_near, strengths

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("length", [12, 20, 48])
def test_table_holds_its_levels(length):
    drawn = strengths(np.random.default_rng(5).random((3000, length)))
    passed = np.array([changepoints._significance(strength, length) for strength in drawn.tolist()])
    for level in (0.05, 0.01):
        assert (passed <= level).mean() == pytest.approx(level, abs=4 * (level / 3000) ** 0.5 + 0.3 * level)


def test_study_and_core_compute_the_same_strength():
    series = np.random.default_rng(6).random((3, 60))
    for row, strength in zip(series.tolist(), strengths(series), strict=True):
        spans = changepoints.windows(0, 60)
        assert max(changepoints._strength(row[a:b]) for a, b in spans) == pytest.approx(strength, rel=1e-4)


def test_stationary_nights_seldom_raise_a_false_alarm():
    rng = np.random.default_rng(7)
    assert share_found(ours(nights(rng, 0.01, 500, 30))) <= 3
    assert share_found(ours(nights(rng, 0.01, 150, 60, outliers=True))) <= 4.3


def test_shift_of_five_times_the_noise_is_found_on_the_sixth_night():
    series = nights(np.random.default_rng(8), 0.01, 100, 60)
    series[:, 54:] += np.log(1.05)
    assert share_near(ours(series), 54) >= 75


def test_nights_that_resemble_their_neighbours_raise_few():
    series = nights(np.random.default_rng(9), 0.01, 30, 200, phi=0.6)
    assert share_found(ours(series)) <= 40
