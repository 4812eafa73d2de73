"""Segmentation data: Cityscapes, crops on the device, synthetic masks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.workloads.data.files import DataError, DataMissing
from pytest_accel.workloads.data.loader import BatchRequest
from pytest_accel.workloads.data.segmentation import (
    CLASS_OF_ID,
    SegmentationTransform,
    open_cityscapes,
    synthetic_segmentation,
)
from tests.support.detection_sets import png, write_cityscapes

CPU = torch.device("cpu")


MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def finish(**options):
    return SegmentationTransform(**{"crop": (24, 32), "device": CPU} | options)


def as_bytes(images):
    """Undo the normalisation."""
    return (images * STD.view(1, 3, 1, 1) + MEAN.view(1, 3, 1, 1)) * 255


def scene(count=4, size=(32, 64), seed=0):
    """Masks, and images that equal them in every channel."""
    masks = synthetic_segmentation(count, size, generator=torch.Generator().manual_seed(seed)).masks
    return masks[:, None].expand(-1, 3, -1, -1).contiguous(), masks


options = st.fixed_dictionaries(
    {
        "crop": st.tuples(st.integers(1, 50), st.integers(1, 80)),
        "scales": st.tuples(st.floats(0.3, 1), st.floats(1, 2.5)),
        "mirror": st.booleans(),
        "seed": st.integers(0, 2**40),
    }
)


@given(options)
def test_crop_has_one_shape_and_an_image_that_equals_its_mask_still_does(drawn):
    pixels, masks = scene()
    images, classes = finish(**drawn)(pixels, masks)
    assert (images.shape, images.dtype) == ((4, 3, *drawn["crop"]), torch.float32)
    assert (classes.shape, classes.dtype) == ((4, *drawn["crop"]), torch.int64)
    assert set(classes.unique().tolist()) <= {*masks.unique().tolist(), 255}
    assert torch.isfinite(images).all()
    # A bilinear value is of the nearest pixel and those around it: where they are of one class, it is that class.
    values = torch.nn.functional.pad(masks[:, None].float(), (1, 1, 1, 1), mode="replicate")
    highest = torch.nn.functional.max_pool2d(values, 3, stride=1)
    lowest = -torch.nn.functional.max_pool2d(-values, 3, stride=1)
    even = (highest == lowest)[:, 0]
    assert even.float().mean() > 0.5  # or little would be compared
    chosen = finish(**drawn)(pixels, even.to(torch.uint8))[1] == 1
    torch.testing.assert_close(as_bytes(images)[:, 0][chosen], classes[chosen].float(), rtol=0, atol=0.02)


@pytest.mark.parametrize(("scale", "height", "width"), [(0.5, 16, 32), (1.0, 32, 64), (1.2, 38, 77)])
def test_small_image_is_padded_at_the_right_and_at_the_bottom(scale, height, width):
    pixels = torch.full((6, 3, 32, 64), 200, dtype=torch.uint8)
    masks = torch.full((6, 32, 64), 4, dtype=torch.uint8)
    images, classes = finish(crop=(40, 80), scales=(scale, scale), seed=2)(pixels, masks)
    assert (classes[:, :height, :width] == 4).all()
    assert (classes == 255).sum() == 6 * (40 * 80 - height * width)
    expected = torch.full((6, 3, height, width), 200.0)
    torch.testing.assert_close(as_bytes(images)[:, :, :height, :width], expected)
    assert not images[:, :, height:].any()
    assert not images[:, :, :, width:].any()


def test_scales_reach_from_one_end_to_the_other():
    """A square of 16 pixels in the middle of an image is 8 to 32 pixels wide."""
    masks = torch.zeros(300, 64, 64, dtype=torch.uint8)
    masks[:, 24:40, 24:40] = 1
    pixels = torch.zeros(300, 3, 64, 64, dtype=torch.uint8)
    _, classes = finish(crop=(128, 128), seed=5)(pixels, masks)
    sides = (classes == 1).sum(dim=(1, 2)).float().sqrt()
    assert 7.5 < sides.min() < 9.5
    assert 30 < sides.max() < 32.5
    assert 19 < sides.mean() < 21
    aspect = (classes == 1).any(dim=1).sum(dim=1) / (classes == 1).any(dim=2).sum(dim=1)
    assert aspect.min() > 0.85  # scaled alike in both directions
    assert aspect.max() < 1.2


# Synthetic masks
def test_synthetic_masks_are_regions_and_no_noise():
    masks = synthetic_segmentation(8, (256, 512), generator=torch.Generator().manual_seed(0)).masks
    assert (masks.shape, masks.dtype) == ((8, 256, 512), torch.uint8)
    assert set(masks.unique().tolist()) == {*range(19), 255}
    for mask in masks:
        assert 4 <= len(mask.unique()) <= 20
    # Next to a pixel is mostly its own class: of noise it would be one in twenty.
    assert (masks[:, :, 1:] == masks[:, :, :-1]).float().mean() > 0.95
    assert (masks[:, 1:] == masks[:, :-1]).float().mean() > 0.95
    assert 0.01 < (masks == 255).float().mean() < 0.12


# Reading
@pytest.fixture
def written(tmp_path):
    return write_cityscapes(tmp_path / "cityscapes")


def test_images_come_with_their_classes(tmp_path, written):
    found = open_cityscapes(tmp_path, "train")
    assert len(found) == 3
    for index, (image, mask, pixels, ids) in enumerate(written):
        assert (found.paths[index], found.mask_path(index)) == (str(image), str(mask))
        read, classes = found.read(index)
        assert (read.dtype, classes.dtype) == (torch.uint8, torch.uint8)
        assert read.numpy().tolist() == pixels.tolist()
        assert classes.tolist() == [[CLASS_OF_ID[each].item() for each in row] for row in ids]
    batch = found[BatchRequest(indices=(2, 0))]
    for place, index in enumerate((2, 0)):
        assert torch.equal(batch.pixels[place], found.read(index)[0])
        assert torch.equal(batch.masks[place], found.read(index)[1])


def test_image_of_another_size_is_an_error_with_its_name(tmp_path, written):
    image, mask, pixels, ids = written[1]
    image.write_bytes(png(pixels[:, :, :30]))
    mask.write_bytes(png(ids[:, :30].astype(np.uint8)))
    with pytest.raises(DataError, match=f"^{image}: 16 x 30 pixels, and others are of another size"):
        open_cityscapes(tmp_path, "train")[BatchRequest(indices=(0, 1))]


def test_missing_cityscapes_is_reported_with_its_place(tmp_path):
    with pytest.raises(DataMissing, match=f"{tmp_path}/cityscapes/leftImg8bit"):
        open_cityscapes(tmp_path, "train")


def test_split_without_an_image_is_refused(tmp_path, written):
    folder = tmp_path / "cityscapes/leftImg8bit/val"
    with pytest.raises(DataError, match=rf"^{folder}: holds no <city>/\*_leftImg8bit.png\nExtract"):
        open_cityscapes(tmp_path, "test")


@pytest.mark.parametrize(
    ("which", "content", "problem"),
    [
        (0, lambda whole: whole[:60], "does not decode"),
        (1, lambda whole: whole[:60], "does not decode"),
        (0, lambda whole: b"", "empty"),
        (1, lambda whole: None, "missing"),
        (1, lambda whole: png(np.zeros((3, 16, 32), np.uint8)), "not one label id below 34"),
        (1, lambda whole: png(np.zeros((16, 30), np.uint8)), "not one label id below 34"),
        (1, lambda whole: png(np.full((16, 32), 34, np.uint8)), "not one label id below 34"),
    ],
)
def test_torn_or_wrong_file_is_named(tmp_path, written, which, content, problem):
    path = written[0][which]
    changed = content(path.read_bytes())
    path.unlink() if changed is None else path.write_bytes(changed)
    with pytest.raises(DataError, match=f"^{path}: {problem}.*\n."):
        open_cityscapes(tmp_path, "train").read(0)
