"""From bytes to what a model reads: normalised, widened, resized; shifted and mirrored, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

from pytest_accel.workloads.data.finish import SHIFT_SHARE, Finish, ModelInput, cut, flipped
from pytest_accel.workloads.data.sets import IMAGE_SETS

MEAN, STD = (0.5, 0.25, 0.1), (0.2, 0.3, 0.4)


def some_pixels(count, channels=3, height=8, width=8, seed=0):
    random = torch.Generator().manual_seed(seed)
    shape = (count, channels, height, width)
    return torch.randint(1, 256, shape, dtype=torch.uint8, generator=random)  # no black: that is the outside


def wanted(**changes):
    plain = {
        "channels": 3,
        "size": 8,
        "device": torch.device("cpu"),
        "dtype": torch.float32,
        "memory_format": torch.contiguous_format,
        "mean": MEAN,
        "std": STD,
    }
    return ModelInput(**plain | changes)


def normalised(pixels, mean=MEAN, std=STD):
    mean, std = (torch.tensor(each, dtype=torch.float64).view(1, -1, 1, 1) for each in (mean, std))
    return (pixels.double() / 255 - mean) / std


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 6e-2)]
)
def test_values_are_normalised_by_channel(dtype, tolerance):
    pixels = torch.arange(256, dtype=torch.uint8).repeat(3, 1).reshape(1, 3, 16, 16)
    found = Finish(wanted(size=16, dtype=dtype))(pixels)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), normalised(pixels), atol=tolerance, rtol=0)


@pytest.mark.parametrize("name", IMAGE_SETS)
def test_every_set_comes_out_with_its_own_mean_and_deviation(name):
    known = IMAGE_SETS[name]
    pixels = some_pixels(4, known.channels)
    found = Finish(wanted(channels=known.channels, mean=known.mean, std=known.std))(pixels)
    torch.testing.assert_close(found.double(), normalised(pixels, known.mean, known.std), atol=1e-5, rtol=0)


def test_grey_becomes_as_many_channels_as_the_model_reads():
    pixels = some_pixels(2, channels=1)
    found = Finish(wanted(mean=(0.3,), std=(0.4,)))(pixels)
    assert found.shape == (2, 3, 8, 8)
    for channel in range(3):
        torch.testing.assert_close(
            found[:, channel : channel + 1].double(), normalised(pixels, (0.3,), (0.4,)), atol=1e-5, rtol=0
        )


@pytest.mark.parametrize("size", [5, 8, 20])
def test_images_are_resized_to_what_the_model_reads(size):
    pixels = some_pixels(2)
    reference = F.interpolate(pixels.double(), size=(size, size), mode="bilinear", align_corners=False)
    found = Finish(wanted(size=size))(pixels)
    torch.testing.assert_close(found.double(), normalised(reference), atol=1e-4, rtol=0)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize(("channels", "size"), [(3, 8), (1, 8), (3, 16)])
def test_images_lie_in_memory_as_asked_for(memory_format, augment, channels, size):
    mean, std = ((0.3,), (0.4,)) if channels == 1 else (MEAN, STD)
    finish = Finish(wanted(size=size, memory_format=memory_format, mean=mean, std=std), augment=augment)
    found = finish(some_pixels(2, channels))
    assert found.is_contiguous(memory_format=memory_format)


def shifted(image, top, left):
    """An image moved by whole pixels, one after another; black where nothing comes in."""
    channels, height, width = image.shape
    moved = torch.zeros_like(image)
    for channel in range(channels):
        for row in range(height):
            for column in range(width):
                if 0 <= row + top < height and 0 <= column + left < width:
                    moved[channel, row, column] = image[channel, row + top, column + left]
    return moved


@pytest.mark.parametrize(("height", "width", "margin"), [(16, 16, 2), (8, 12, 1), (5, 5, 1)])
def test_a_cut_is_its_image_shifted_by_an_eighth_at_most(height, width, margin):
    pixels = some_pixels(30, 1, height, width)
    found = cut(pixels, torch.Generator().manual_seed(1))
    assert found.shape == pixels.shape
    assert found.dtype == torch.uint8
    shifts = []
    for image, after in zip(pixels, found, strict=True):
        possible = range(-margin, margin + 1)
        matches = [
            (top, left)
            for top in possible
            for left in possible
            if torch.equal(shifted(image, top, left), after)
        ]
        assert len(matches) == 1
        shifts += matches
    for axis in (0, 1):  # all of them come, and not the two axes together
        assert {shift[axis] for shift in shifts} == set(range(-margin, margin + 1))
    assert any(top != left for top, left in shifts)


def test_cifar_is_shifted_by_the_four_pixels_it_is_trained_with():
    assert 32 // SHIFT_SHARE == 4


def test_some_images_are_mirrored_and_none_is_changed_otherwise():
    pixels = some_pixels(64)
    found = flipped(pixels, torch.Generator().manual_seed(0))
    mirrored = [torch.equal(after, before.flip(-1)) for before, after in zip(pixels, found, strict=True)]
    kept = [torch.equal(after, before) for before, after in zip(pixels, found, strict=True)]
    assert all(one != other for one, other in zip(mirrored, kept, strict=True))
    assert 16 < sum(mirrored) < 48


def test_without_augmentation_every_pixel_stays_where_it_is():
    pixels = some_pixels(4)
    torch.testing.assert_close(Finish(wanted())(pixels).double(), normalised(pixels), atol=1e-5, rtol=0)


def test_a_set_whose_images_must_not_be_mirrored_is_only_shifted():
    pixels = some_pixels(40, height=16, width=16)
    found = Finish(wanted(size=16, mirrors=False), augment=True)(pixels)
    only_cut = cut(pixels, torch.Generator().manual_seed(0))
    torch.testing.assert_close(found.double(), normalised(only_cut), atol=1e-5, rtol=0)
    assert [each.name for each in IMAGE_SETS.values() if not each.mirrors] == ["mnist", "digits"]


def test_one_seed_augments_alike_and_batch_after_batch_otherwise():
    pixels = some_pixels(8)
    one, same, other = (Finish(wanted(), augment=True, seed=seed) for seed in (3, 3, 4))
    first = one(pixels)
    assert torch.equal(first, same(pixels))
    assert not torch.equal(first, other(pixels))
    assert not torch.equal(first, one(pixels))


def test_the_pixels_that_came_in_are_left_as_they_were():
    pixels = some_pixels(4)
    before = pixels.clone()
    Finish(wanted(), augment=True)(pixels)
    assert torch.equal(pixels, before)
