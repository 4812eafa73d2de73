"""A calibration in one line that hides nothing of what the gate could not decide."""

from __future__ import annotations

import pytest

from pytest_accel.report.calibration import calibrated_text, conditions_text
from pytest_accel.stats.calibration import Calibration, Conditions, FalseAlarms


def text(alarms: FalseAlarms | None) -> str:
    found = Calibration(
        runs=8, sessions=1, noise=0.031, detectable_loss=0.107, tolerance=0.05, false_alarms=alarms
    )
    return calibrated_text(found)


def test_counts_every_draw():
    alarms = FalseAlarms(draws=56, looks=3, gate=1, undecided=48, mean=4)
    assert text(alarms) == (
        "8 runs, noise 3.1 %, smallest detectable loss 10.7 %, 56 draws: 7 ok, 48 undecided, 1 false alarm; "
        "pytest-benchmark's mean:5% would have failed 7.1 %"
    )


def test_of_a_thousand():
    alarms = FalseAlarms(draws=1000, looks=5, gate=0, undecided=0, mean=0)
    assert "1,000 draws: 1,000 ok, 0 undecided, 0 false alarms; " in text(alarms)


def test_without_draws_says_why():
    assert "false alarms not counted" in text(None)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Conditions(budget_s=5.0, threads=1), "a budget of 5 s and 1 thread"),
        (Conditions(budget_s=0.1, threads=8), "a budget of 100 ms and 8 threads"),
        (None, "an unknown budget"),
    ],
)
def test_conditions(found, said):
    assert conditions_text(found) == said
