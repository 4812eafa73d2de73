"""News of the loss: what earlier runs lead to expect is none."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.results import LOSS_TOLERANCE, describe_loss_change

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
        ([2.5], math.nan, "2.5 -> nan"),
        ([2.5], math.inf, "2.5 -> inf"),
        ([math.nan, 2.5], 2.5, ""),
        ([math.nan], math.nan, ""),
        ([math.nan], 2.5, "nan -> 2.5"),
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
