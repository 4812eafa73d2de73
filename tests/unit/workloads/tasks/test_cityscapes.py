"""Segmentation data: Cityscapes, crops, synthetic masks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.workloads.data.files import DataError
from pytest_accel.workloads.data.loader import BatchRequest
from pytest_accel.workloads.tasks import segmentation as module
from pytest_accel.workloads.tasks.segmentation import (
    CLASS_OF_ID,
    CropReader,
    open_cityscapes,
    synthetic_segmentation,
)
from tests.support.detection_sets import png, write_cityscapes


class Given:
    """Images that are not read from disk, each with its classes."""

    def __init__(self, image, classes):
        self.read = lambda index: (image, classes)


def cropped(image, classes, crop, seeds):
    reader = CropReader(images=Given(image, classes), crop=crop)
    batches = [reader[BatchRequest(indices=[0], seed=seed)] for seed in seeds]
    return (torch.cat(parts) for parts in zip(*batches, strict=True))


@given(st.tuples(st.integers(1, 50), st.integers(1, 80)), st.none() | st.integers(0, 2**70))
def test_crop_has_one_shape_and_an_image_follows_its_mask(crop, seed):
    classes = torch.zeros(32, 64, dtype=torch.uint8)
    classes[:, 32:] = 10
    pixels, masks = cropped((classes * 20)[None].expand(3, -1, -1), classes, crop, [seed])
    assert (pixels.shape, pixels.dtype) == ((1, 3, *crop), torch.uint8)
    assert (masks.shape, masks.dtype) == ((1, *crop), torch.uint8)
    assert set(masks.unique().tolist()) <= {0, 10, 255}
    assert not pixels[:, 0][masks == 255].any()
    # They differ only around the edge between the classes, where an image is interpolated.
    different = (pixels[:, 0] != masks * 20) & (masks != 255)
    assert different.any(dim=1).sum() <= 6


def test_large_image_fills_every_crop():
    image, classes = torch.zeros((3, 96, 128), dtype=torch.uint8), torch.zeros((96, 128), dtype=torch.uint8)
    _, masks = cropped(image, classes, (41, 53), range(300))
    assert not (masks == 255).any()


@pytest.mark.parametrize("seed", [None, 3])
def test_small_image_is_padded_at_the_right_and_at_the_bottom(seed, monkeypatch):
    monkeypatch.setattr(module, "SCALES", (1.0, 1.0))
    image, classes = (
        torch.full((3, 32, 64), 200, dtype=torch.uint8),
        torch.full((32, 64), 4, dtype=torch.uint8),
    )
    pixels, masks = cropped(image, classes, (40, 80), [seed])
    assert (pixels[:, :, :32, :64] == 200).all()
    assert (masks[:, :32, :64] == 4).all()
    assert (masks == 255).sum() == 40 * 80 - 32 * 64


def test_scales_reach_from_one_end_to_the_other():
    """A square of 16 pixels in the middle of an image is 8 to 32 pixels wide."""
    classes = torch.zeros(64, 64, dtype=torch.uint8)
    classes[24:40, 24:40] = 1
    _, masks = cropped(torch.zeros(3, 64, 64, dtype=torch.uint8), classes, (128, 128), range(300))
    sides = (masks == 1).sum(dim=(1, 2)).float().sqrt()
    assert 7.5 < sides.min() < 9.5
    assert 30 < sides.max() < 32.5
    assert 19 < sides.mean() < 21


def test_synthetic_masks_are_regions_and_no_noise():
    masks = synthetic_segmentation(8, (256, 512), generator=torch.Generator().manual_seed(0))[1]
    assert (masks.shape, masks.dtype) == ((8, 256, 512), torch.uint8)
    assert set(masks.unique().tolist()) == {*range(19), 255}
    for mask in masks:
        assert 4 <= len(mask.unique()) <= 20
    # Next to a pixel is mostly its own class: of noise it would be one in twenty.
    assert (masks[:, :, 1:] == masks[:, :, :-1]).float().mean() > 0.95
    assert (masks[:, 1:] == masks[:, :-1]).float().mean() > 0.95
    assert 0.01 < (masks == 255).float().mean() < 0.12


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
        (1, lambda whole: None, "not readable"),
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
