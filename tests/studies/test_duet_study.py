"""The study of the duet in short: every bound is some standard errors from the rates of the long one.

Those are of 4,000 trials a cell (`python -m tests.studies.duet --trials 4000`).
"""

from functools import cache

import pytest

from tests.studies.duet import WORLDS, Tally, Task, run_task

pytestmark = pytest.mark.slow
QUIET, USUAL, NOISY, OTHER_SESSIONS, DRIFT, HEATING = WORLDS


@cache
def tally(world, effect: float, trials: int = 300) -> Tally:
    return run_task(Task(world=world, effect=effect, trials=trials, seed=20))


@pytest.mark.parametrize(
    "world", [QUIET, USUAL, OTHER_SESSIONS, DRIFT, HEATING], ids=lambda world: world.title
)
def test_a_duet_neither_cries_wolf_nor_misses_a_loss_of_the_tolerance(world):
    # .0 to .1 % and 94 to 99 %; four standard errors of 300 trials at 94 % are 5.5 points
    assert tally(world, 0.0).failed.mean() <= 0.01
    assert tally(world, 1.0).failed.mean() >= 0.885


def test_half_the_tolerance_seldom_fails():
    assert tally(USUAL, 0.5).failed.mean() <= 0.055  # 1.9 %
    assert tally(NOISY, 0.5).failed.mean() <= 0.165  # 9.6 %


def test_three_per_cent_of_noise_are_said_and_twice_the_tolerance_is_caught():
    assert tally(NOISY, 0.0).failed.mean() <= 0.0135  # .2 %
    assert tally(NOISY, 2.0).failed.mean() >= 0.97  # 99.6 %
    assert tally(NOISY, 1.0).inconclusive.mean() >= 0.085  # 17.3 %


def test_what_is_unchanged_takes_little_more_than_one_group():
    assert tally(USUAL, 0.0).processes.mean() <= 4.8  # 4.43
    assert tally(OTHER_SESSIONS, 0.0).processes.mean() <= 4.8  # 4.40
