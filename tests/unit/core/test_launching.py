"""A device that waits for its host is told apart from one that is busy, and from one that waits for its loader."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.core.launching import host_bound
from pytest_accel.core.metrics import MEASURED, less_is_better

STEP_S = 0.0262


def test_a_host_that_launches_as_long_as_the_step_takes_is_said_with_both():
    said = host_bound({"launch_s": 0.0259}, STEP_S)
    assert said.startswith("its host takes 25.9 ms to launch a step of 26.2 ms: the device waits for it")
    assert "replay=True" in said


@pytest.mark.parametrize(
    "metrics",
    [
        {},  # the CPU
        {"launch_s": 0.004},
        {"launch_s": 0.0259, "loader_step_s": 0.026},  # the step waits for a batch, and so did this one
    ],
)
def test_else_nothing_is_said(metrics):
    assert host_bound(metrics, STEP_S) == ""


def test_a_loader_that_keeps_up_is_no_excuse():
    assert host_bound({"launch_s": 0.0259, "loader_step_s": 0.001}, STEP_S)


@given(st.floats(1e-6, 10), st.floats(1e-6, 10))
def test_the_longer_the_launching_the_sooner_it_is_said(launch_s, step_s):
    if host_bound({"launch_s": launch_s}, step_s):
        assert host_bound({"launch_s": 2 * launch_s}, step_s)
        assert host_bound({"launch_s": launch_s}, step_s / 2)


def test_it_is_a_metric_of_which_less_is_better():
    assert "launch_s" in MEASURED
    assert less_is_better("launch_s")
