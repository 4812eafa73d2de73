"""How good a baseline is, in the gate's own terms."""

from __future__ import annotations

import pytest

from pytest_accel.core.standing import standing
from pytest_accel.core.verdict import Policy
from tests.support.stored import runs


def test_few_runs_or_few_sessions_are_provisional():
    assert standing(runs(2), None).provisional == "2 runs of 5, 1 session of 3"
    assert standing(runs(5), None).provisional == "1 session of 3"
    three = (*runs(2, session="a"), *runs(2, session="b"), *runs(1, session="c"))
    assert standing(three, None).provisional == ""


def test_the_resolution_is_that_of_the_gate():
    """GATE.md: 4.2 s at five runs of five sessions."""
    five = tuple(run for session in "abcde" for run in runs(1, session=session))
    found = standing(five, None)
    assert found.resolution / found.noise == pytest.approx(4.2, abs=0.2)


def test_more_sessions_resolve_more():
    one = standing(runs(6, noise=0.01), None)
    six = standing(tuple(run for s in "abcdef" for run in runs(1, session=s, noise=0.01)), None)
    assert six.resolution < one.resolution


def test_noise_that_the_tolerance_cannot_bear_is_said():
    noisy = runs(noise=0.05)
    assert standing(noisy, None).too_noisy
    assert not standing(noisy, 0.5).too_noisy
    assert standing(noisy, None).tolerance == Policy().tolerance
