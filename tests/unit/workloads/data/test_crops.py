"""A crop lies inside its photograph, whatever its size, and is the same for the same chance."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.workloads.data.crops import AREA, ASPECT, middle_crop, random_crop
from pytest_accel.workloads.data.jpeg import crop_for

SIDES = st.one_of(st.integers(1, 6), st.integers(1, 6000))


def assert_inside(crop, height, width):
    assert crop.height >= 1
    assert crop.width >= 1
    assert 0 <= crop.top <= height - crop.height
    assert 0 <= crop.left <= width - crop.width


@given(SIDES, SIDES, st.integers())
def test_a_random_crop_lies_inside(height, width, seed):
    assert_inside(random_crop(height, width, Random(seed)), height, width)


@given(SIDES, SIDES)
def test_the_middle_crop_is_a_square_in_the_middle(height, width):
    crop = middle_crop(height, width)
    assert_inside(crop, height, width)
    assert crop.height == crop.width
    assert not crop.mirrored
    assert abs((height - crop.height - crop.top) - crop.top) <= 1
    assert abs((width - crop.width - crop.left) - crop.left) <= 1


def test_the_middle_crop_takes_224_of_256_pixels():
    assert (middle_crop(256, 256).height, middle_crop(256, 400).width) == (224, 224)


@given(SIDES, SIDES, st.integers(0, 1000))
def test_one_chance_gives_one_crop(height, width, seed):
    assert random_crop(height, width, Random(seed)) == random_crop(height, width, Random(seed))


@given(st.integers(100, 2000), st.integers(100, 2000), st.integers(0, 1000))
def test_area_and_aspect_are_those_that_models_are_trained_with(height, width, seed):
    crop = random_crop(height, width, Random(seed))
    # To a pixel of rounding on each side.
    assert (crop.height + 1) * (crop.width + 1) >= AREA[0] * height * width or crop.height == crop.width
    assert ASPECT[0] <= (crop.width + 1) / (crop.height - 1)
    assert (crop.width - 1) / (crop.height + 1) <= ASPECT[1]


def test_crops_differ_in_place_size_and_side():
    random = Random(0)
    crops = [random_crop(300, 400, random) for _ in range(200)]
    for field in ("top", "left", "height", "width"):
        assert len({getattr(crop, field) for crop in crops}) > 50
    assert 60 < sum(crop.mirrored for crop in crops) < 140


def test_a_strip_that_no_draw_fits_into_gives_its_middle_square():
    crop = random_crop(10, 10_000, Random(0))
    assert (crop.top, crop.left, crop.height, crop.width) == (0, 4995, 10, 10)


@pytest.mark.parametrize("chance", [None, 5])
def test_there_is_chance_in_training_alone(chance):
    random = None if chance is None else Random(chance)
    expected = middle_crop(90, 70) if chance is None else random_crop(90, 70, Random(chance))
    assert crop_for(90, 70, random) == expected
