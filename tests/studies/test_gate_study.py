"""The study of the gate in short: enough trials to notice a broken gate, not to judge a tuned one.

The seed is fixed and every bound is at least four standard errors from the rate of the long study
(`python -m tests.studies.gate`), so that another numpy's streams would pass as well.
"""

from functools import cache

import pytest

from tests.studies.gate import Tally, Task, run_task

pytestmark = pytest.mark.slow


@cache
def tally(sd: float, runs: int, effect: float, trials: int, change: str = "shift") -> Tally:
    return run_task(
        Task(between_run_sd=sd, baseline_runs=runs, effect=effect, change=change, trials=trials, seed=20)
    )


@pytest.mark.parametrize(
    ("sd", "runs", "effect", "trials", "at_most"),
    [
        (0.003, 5, 0.0, 1500, 0.01),
        (0.01, 5, 0.0, 1500, 0.01),
        (0.01, 1, 0.5, 1500, 0.065),  # one baseline run: its own error must be in the standard error
        (0.01, 3, 0.5, 1500, 0.075),
        (0.03, 5, 0.0, 800, 0.03),
    ],
)
def test_gate_seldom_fails_what_is_not_slower_than_half_the_tolerance(sd, runs, effect, trials, at_most):
    assert tally(sd, runs, effect, trials).failed.mean() <= at_most


@pytest.mark.parametrize(
    ("sd", "runs", "effect", "trials", "at_least"),
    [
        (0.003, 5, 1.0, 400, 0.95),
        (0.01, 5, 1.0, 800, 0.785),
        (0.01, 5, 1.5, 400, 0.97),
        (0.03, 5, 2.0, 400, 0.89),
    ],
)
def test_gate_catches_what_is_slower_than_the_tolerance(sd, runs, effect, trials, at_least):
    assert tally(sd, runs, effect, trials).failed.mean() >= at_least


def test_gate_sees_stalls_as_well_as_shifts():
    stalled = tally(0.01, 5, 1.0, 800, "stall")
    assert stalled.failed.mean() >= 0.785


def test_gate_seldom_needs_a_second_run_of_an_unchanged_benchmark():
    assert tally(0.003, 5, 0.0, 1500).runs_used.mean() <= 1.15
    assert tally(0.01, 5, 0.0, 1500).runs_used.mean() <= 1.25
    assert tally(0.03, 5, 0.0, 800).runs_used.mean() <= 3.0


def test_gate_beats_a_plain_threshold_on_the_mean_on_both_sides():
    quiet, slow = tally(0.01, 5, 0.0, 1500), tally(0.01, 5, 1.0, 800)
    assert quiet.failed.mean() <= 0.4 * quiet.mean_failed.mean()
    assert slow.failed.mean() >= slow.mean_failed.mean() + 0.2


def test_failing_at_the_tolerance_takes_at_least_two_runs():
    slow = tally(0.01, 5, 1.5, 400)
    assert slow.runs_used[slow.failed].min() == 2
