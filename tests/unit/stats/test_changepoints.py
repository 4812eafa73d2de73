"""Where change points are found, and where none are, on plain values."""

import math
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_accel.stats import changepoints
from pytest_accel.stats.changepoints import (
    CRITICAL,
    MIN_NIGHTS,
    MIN_VALUES,
    WINDOW,
    ChangePoint,
    change_points,
    windows,
)

# Multiples of 1/1024 below 1: sums, shifts by whole numbers and powers of two stay exact, and so do comparisons.
FINE = st.integers(0, 1023).map(lambda number: number / 1024)


def found(values):
    return [point.index for point in change_points(values)]


def noise(length, seed=1, sd=0.01):
    draws = random.Random(seed)
    return [math.exp(draws.gauss(0, sd)) for _ in range(length)]


@given(st.floats(-1e30, 1e30), st.integers(0, 60))
def test_constant_series_has_none(value, length):
    assert change_points([value] * length) == ()


@given(st.lists(st.floats(-1e30, 1e30), max_size=MIN_VALUES - 1))
def test_fewer_than_the_least_values_have_none(values):
    assert change_points(values) == ()


@given(st.lists(st.floats(-1e30, 1e30), max_size=40))
def test_any_finite_values_give_ordered_points_apart_from_each_other(values):
    bounds = [0, *found(values), len(values)]
    if len(bounds) > 2:
        assert all(later - earlier >= MIN_NIGHTS for earlier, later in pairwise(bounds))


# In fewer nights their neighbours may by chance resemble each other so much that no step is beyond it: 1 of 600 at 8 and 12.
@given(st.integers(0, 10_000), st.integers(16, 40), st.integers(16, 40), st.sampled_from([0.01, 0.5, 2, 100]))
@settings(max_examples=60)
def test_huge_step_is_found_at_its_place(seed, before, after, factor):
    # The noise is uniform: its tails end, so that the two levels never touch.
    draws = random.Random(seed)
    values = [draws.uniform(1, 1.1) for _ in range(before)] + [
        factor * draws.uniform(1, 1.1) for _ in range(after)
    ]
    assert before in found(values)


@given(
    st.lists(FINE, min_size=6, max_size=20),
    st.lists(FINE, min_size=6, max_size=20),
    st.integers(-50, 50),
    st.sampled_from([2.0**-30, 0.25, 2.0, 1024.0, 2.0**40]),
)
def test_places_do_not_depend_on_origin_or_unit(before, after, origin, unit):
    values = before + [value + 0.5 for value in after]
    moved = [unit * (value + origin) for value in values]
    assert found(moved) == found(values)


def test_point_has_both_its_levels():
    values = [100.0] * 10 + [90.0, 95.0, 95.0, 95.0, 95.0, 950.0, 95.0, 95.0, 95.0, 95.0]
    assert change_points(values) == (ChangePoint(index=10, before=100.0, after=95.0),)
    assert change_points(values)[0].relative == pytest.approx(-0.05)


def test_levels_between_several_points_are_those_of_their_own_segments():
    values = [a * b for a, b in zip(noise(90), [1.0] * 30 + [1.1] * 30 + [1.3] * 30, strict=True)]
    points = change_points(values)
    assert [point.index for point in points] == [30, 60]
    assert points[0].after == points[1].before == pytest.approx(1.1, rel=0.01)
    assert points[1].relative == pytest.approx(1.3 / 1.1 - 1, abs=0.01)


def test_wild_nights_do_not_hide_a_new_level():
    values = [value * (1.05 if night >= 40 else 1) for night, value in enumerate(noise(60))]
    values[10] *= 50
    values[55] *= 20
    assert found(values) == [40]


def test_a_slow_week_in_a_long_history_has_both_its_ends():
    values = [value * (1.05 if 150 <= night < 165 else 1) for night, value in enumerate(noise(300))]
    assert found(values) == [150, 165]


def test_noise_that_neighbouring_nights_share_is_not_taken_for_levels():
    draws, values, level = random.Random(3), [], 0.0
    for _ in range(300):
        level = 0.6 * level + draws.gauss(0, 0.01)
        values.append(math.exp(level))
    independent = values[:]
    draws.shuffle(independent)
    assert found(independent) == []
    assert found(values) == []


def test_only_the_newest_values_are_searched_and_places_count_from_the_oldest(monkeypatch):
    values = [1.0, 2.0] * 10 + [10.0, 11.0] * 10 + [30.0, 31.0] * 10
    assert found(values) == [20, 40]
    monkeypatch.setattr(changepoints, "WINDOW", 30)
    assert found(values) == [40]
    assert change_points(values)[0].before == 10.5


def test_steep_stairs_are_halved_not_peeled(monkeypatch):
    # Peeled off four values at a time, a thousand of them would take a minute.
    stairs = [10.0 ** (night // 6) for night in range(240)]
    segments, limit = [], changepoints._limit
    monkeypatch.setattr(changepoints, "_limit", lambda length: segments.append(length) or limit(length))
    assert len(found(stairs)) >= 20
    assert sum(segments) <= 10 * len(stairs)


@given(st.integers(0, 10**6), st.integers(12, 2000))
def test_windows_cover_their_segment_and_stay_in_it(start, length):
    spans = list(windows(start, start + length))
    assert spans[0] == (start, start + length)
    assert all(start <= first < last <= start + length and last - first >= 12 for first, last in spans)
    smallest = min(last - first for first, last in spans)
    assert {start, start + length} <= {
        edge for span in spans if span[1] - span[0] <= smallest + 1 for edge in span
    }


def test_table_covers_every_length_that_is_searched():
    assert [length for length, _ in CRITICAL] == sorted(length for length, _ in CRITICAL)
    assert CRITICAL[0][0] == MIN_VALUES
    assert CRITICAL[-1][0] >= WINDOW


@given(st.lists(st.integers(0, 50), min_size=8, max_size=30))
def test_energies_are_those_of_the_definition(values):
    series = np.array(values, dtype=float)
    for offset, energy in enumerate(changepoints._energies(values)):
        left, right = np.split(series, [MIN_NIGHTS + offset])
        n, m = len(left), len(right)
        between = 2 * np.abs(left[:, None] - right).mean()
        inside = sum(
            np.abs(side[:, None] - side).sum() / (k * (k - 1)) for side, k in ((left, n), (right, m))
        )
        assert energy == pytest.approx(n * m / (n + m) * (between - inside), abs=1e-9)
