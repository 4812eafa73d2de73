"""Sampling of decoded images, against a slow reference; the arithmetic is the same on a CPU and compiled for a GPU."""

from __future__ import annotations

from random import Random

import pytest
import torch

from pytest_accel.workloads.data.crops import Crop, random_crop
from pytest_accel.workloads.data.finish import Finish, ModelInput
from pytest_accel.workloads.data.sampling import Sampler
from tests.support.data_sets import decoded_jpeg


def wanted(size, **other):
    """Of this mean and deviation: pixels come out as they are."""
    plain = {
        "channels": 3,
        "device": torch.device("cpu"),
        "dtype": torch.float32,
        "memory_format": torch.channels_last,
        "mean": (0.0,) * 3,
        "std": (1 / 255,) * 3,
    }
    return ModelInput(size=size, **{**plain, **other})


def sampled(part, size, *, mirrored):
    """Bilinear, pixel by pixel: nothing beyond the edge of the part is looked at."""
    _, height, width = part.shape
    out = torch.zeros(3, size, size, dtype=torch.float64)
    for row in range(size):
        for column in range(size):
            y = min(max((row + 0.5) * height / size - 0.5, 0), height - 1)
            x = min(max((column + 0.5) * width / size - 0.5, 0), width - 1)
            top, left = int(y), int(x)
            bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
            above = part[:, top, left] * (1 - (x - left)) + part[:, top, right] * (x - left)
            below = part[:, bottom, left] * (1 - (x - left)) + part[:, bottom, right] * (x - left)
            out[:, row, column] = above * (1 - (y - top)) + below * (y - top)
    return out.flip(-1) if mirrored else out


def test_images_of_mixed_sizes_become_one_batch():
    sizes = [(40, 60), (70, 30), (12, 12), (1, 1), (3, 90), (33, 47), (1500, 2)]
    images = [decoded_jpeg(height, width, seed=each) for each, (height, width) in enumerate(sizes)]
    random = Random(0)
    crops = [random_crop(height, width, random) for height, width in sizes for _ in range(4)]
    crops += [Crop(top=0, left=0, height=h, width=w, mirrored=m) for h, w in sizes for m in (False, True)]
    images = [image for image in images for _ in range(4)] + [image for image in images for _ in range(2)]
    assert {crop.mirrored for crop in crops} == {False, True}
    found = Sampler(wanted(20))(images, crops)
    assert found.shape == (len(crops), 3, 20, 20)
    for each, image, crop in zip(found, images, crops, strict=True):
        part = image[:, crop.top : crop.top + crop.height, crop.left : crop.left + crop.width].double()
        reference = sampled(part, 20, mirrored=crop.mirrored)
        torch.testing.assert_close(each.double(), reference, atol=0.05, rtol=0, msg=str(crop))


def test_a_white_image_that_grows_has_no_dark_edge():
    white = [torch.full((3, side, side), 255, dtype=torch.uint8) for side in (5, 9)]
    crops = [Crop(top=0, left=0, height=side, width=side) for side in (5, 9)]
    assert Sampler(wanted(32))(white, crops).min() > 254.9


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_comes_out_is_what_the_model_reads(dtype, memory_format):
    chosen = wanted(8, dtype=dtype, memory_format=memory_format, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    image = decoded_jpeg(8, 8)
    found = Sampler(chosen)([image], [Crop(top=0, left=0, height=8, width=8)])
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=memory_format)
    torch.testing.assert_close(found, Finish(chosen)(image[None]), atol=0.02, rtol=0.01)


def test_as_many_crops_as_images():
    with pytest.raises(ValueError, match="zip"):
        Sampler(wanted(8))([decoded_jpeg(8, 8)] * 2, [Crop(top=0, left=0, height=8, width=8)])
