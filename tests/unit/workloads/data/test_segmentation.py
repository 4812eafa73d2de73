"""Image and mask go the same way; masks keep their classes; padding is ignored; a seed repeats it all."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.workloads.data.loader import (
    BatchRequest,
    HostBatches,
    LoaderConfig,
    ReadProblem,
    TrainingBatches,
)
from pytest_accel.workloads.data.order import TrainingOrder
from pytest_accel.workloads.data.segmentation import (
    SegmentationReader,
    SegmentationTransform,
    open_cityscapes,
    picked,
    sampled,
    synthetic_masks,
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
    masks = synthetic_masks(count, size, generator=torch.Generator().manual_seed(seed))
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
def test_an_image_that_equals_its_mask_still_does(drawn):
    pixels, masks = scene()
    images, classes = finish(**drawn)(pixels, masks)
    # A bilinear value is of the nearest pixel and those around it: where they are of one class, it is that class.
    values = torch.nn.functional.pad(masks[:, None].float(), (1, 1, 1, 1), mode="replicate")
    highest = torch.nn.functional.max_pool2d(values, 3, stride=1)
    lowest = -torch.nn.functional.max_pool2d(-values, 3, stride=1)
    even = (highest == lowest)[:, 0]
    assert even.float().mean() > 0.5  # or little would be compared
    chosen = finish(**drawn)(pixels, even.to(torch.uint8))[1] == 1
    expected = classes[chosen].float()
    torch.testing.assert_close(as_bytes(images)[:, 0][chosen], expected, rtol=0, atol=0.02)


@given(options)
def test_shapes_are_static_and_masks_keep_their_classes(drawn):
    pixels, masks = scene()
    images, classes = finish(**drawn)(pixels, masks)
    assert (images.shape, images.dtype) == ((4, 3, *drawn["crop"]), torch.float32)
    assert (classes.shape, classes.dtype) == ((4, *drawn["crop"]), torch.int64)
    assert set(classes.unique().tolist()) <= {*masks.unique().tolist(), 255}
    assert torch.isfinite(images).all()


@given(options)
def test_a_seed_repeats_the_way_and_another_takes_another(drawn):
    batch = synthetic_segmentation(4, (32, 64), generator=torch.Generator().manual_seed(1))

    def way(**changed):
        one = finish(**drawn | {"crop": (24, 32)} | changed)
        return [one(*batch) for _ in range(2)]

    first, again, other = way(), way(), way(seed=drawn["seed"] + 1)
    for one, same in zip(first, again, strict=True):
        assert torch.equal(one[0], same[0])
        assert torch.equal(one[1], same[1])
    assert not torch.equal(first[0][0], first[1][0])  # the next batch is cut otherwise
    assert not torch.equal(first[0][0], other[0][0])


@given(st.integers(0, 2**40))
def test_at_its_own_scale_a_crop_is_a_part_of_the_image(seed):
    batch = synthetic_segmentation(2, (32, 64), generator=torch.Generator().manual_seed(1))
    images, classes = finish(scales=(1.0, 1.0), seed=seed)(*batch)
    found = as_bytes(images).round().to(torch.uint8)
    for image, mask, pixels, source in zip(found, classes, *batch, strict=True):
        places = [
            (top, left, mirrored)
            for top in range(32 - 24 + 1)
            for left in range(64 - 32 + 1)
            for mirrored in (False, True)
            if torch.equal(
                image, (pixels.flip(-1) if mirrored else pixels)[:, top : top + 24, left : left + 32]
            )
        ]
        assert len(places) == 1
        top, left, mirrored = places[0]
        part = (source.flip(-1) if mirrored else source)[top : top + 24, left : left + 32]
        assert torch.equal(mask, part.long())


def test_a_mirrored_way_is_the_way_over_the_mirrored_image():
    pixels, masks = synthetic_segmentation(8, (32, 64), generator=torch.Generator().manual_seed(1))
    straight = finish(mirror=False, seed=3)(pixels, masks)
    mirrored = finish(mirror=False, seed=3)(pixels.flip(-1), masks.flip(-1))
    either = finish(mirror=True, seed=3)(pixels, masks)
    kinds = set()
    for place in range(8):
        kind = [torch.equal(either[1][place], way[1][place]) for way in (straight, mirrored)]
        assert any(kind)
        chosen = (straight, mirrored)[kind.index(True)]
        torch.testing.assert_close(either[0][place], chosen[0][place], rtol=0, atol=1e-2)
        kinds.add(kind.index(True))
    assert kinds == {0, 1}


def test_mirrored_twice_is_as_it_was():
    pixels, masks = synthetic_segmentation(2, (8, 12), generator=torch.Generator().manual_seed(1))
    rows = torch.arange(8).expand(2, -1) + 0.5
    columns = torch.arange(12).expand(2, -1) + 0.5

    def mirrored(pixels, masks):
        images, inside = sampled(pixels, rows, 12 - columns)
        assert inside.all()
        return images.round().to(torch.uint8), picked(masks, rows, 12 - columns, inside).to(torch.uint8)

    once = mirrored(pixels, masks)
    assert torch.equal(once[0], pixels.flip(-1))
    assert torch.equal(once[1], masks.flip(-1))
    twice = mirrored(*once)
    assert torch.equal(twice[0], pixels)
    assert torch.equal(twice[1], masks)


@pytest.mark.parametrize(("scale", "height", "width"), [(0.5, 16, 32), (1.0, 32, 64), (1.2, 38, 77)])
def test_a_small_image_is_padded_at_the_right_and_at_the_bottom(scale, height, width):
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


def test_crops_reach_every_corner():
    rows = torch.arange(32, dtype=torch.uint8)[:, None].expand(32, 64)
    columns = torch.arange(64, dtype=torch.uint8).expand(32, 64)
    pixels = torch.zeros(500, 3, 32, 64, dtype=torch.uint8)
    for masks, last in ((rows, 31), (columns, 63)):
        _, classes = finish(scales=(1.0, 1.0), mirror=False)(pixels, masks.expand(500, -1, -1))
        assert classes.min() == 0
        assert classes.max() == last


def test_the_type_and_the_memory_format_are_the_models():
    batch = synthetic_segmentation(2, (32, 64), generator=torch.Generator().manual_seed(1))
    images, _ = finish(dtype=torch.bfloat16, memory_format=torch.channels_last)(*batch)
    assert images.dtype == torch.bfloat16
    assert images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("scales", [(0, 1), (2, 1), (-1, 1)])
def test_impossible_scales_are_named(scales):
    with pytest.raises(ValueError, match=r"^scales: "):
        finish(scales=scales)


def test_what_is_computed_depends_on_no_value():
    """A graph without a break: nothing asks the device for a number, and no shape hangs on one."""
    pixels, masks = scene()
    rows, columns = torch.rand(4, 24) * 40, torch.rand(4, 32) * 70

    @torch.compile(fullgraph=True, backend="eager", dynamic=False)
    def both(pixels, masks, rows, columns):
        images, inside = sampled(pixels, rows, columns)
        return images, picked(masks, rows, columns, inside)

    images, classes = both(pixels, masks, rows, columns)
    assert (images.shape, classes.shape) == ((4, 3, 24, 32), (4, 24, 32))
    assert (classes == 255).any()


# Synthetic masks


def test_synthetic_masks_are_regions_and_no_noise():
    masks = synthetic_masks(8, (256, 512), generator=torch.Generator().manual_seed(0))
    assert (masks.shape, masks.dtype) == ((8, 256, 512), torch.uint8)
    assert set(masks.unique().tolist()) == {*range(19), 255}
    for mask in masks:
        assert 4 <= len(mask.unique()) <= 20
    # Next to a pixel is mostly its own class: of noise it would be one in twenty.
    assert (masks[:, :, 1:] == masks[:, :, :-1]).float().mean() > 0.95
    assert (masks[:, 1:] == masks[:, :-1]).float().mean() > 0.95
    assert 0.01 < (masks == 255).float().mean() < 0.12


@pytest.mark.parametrize("size", [(1, 1), (5, 7), (130, 250)])
def test_synthetic_masks_have_any_size_and_repeat(size):
    first, again = (synthetic_masks(2, size, generator=torch.Generator().manual_seed(4)) for _ in range(2))
    assert first.shape == (2, *size)
    assert torch.equal(first, again)


# Reading


def wanted(*indices):
    return BatchRequest(step=0, indices=indices)


def test_a_batch_has_the_images_asked_for(tmp_path):
    write_cityscapes(tmp_path)
    images = open_cityscapes(tmp_path, "train")
    batch = SegmentationReader(images, size=(16, 32))[wanted(2, 0)]
    for place, index in enumerate((2, 0)):
        pixels, mask = images.read(index)
        assert torch.equal(batch.pixels[place], pixels)
        assert torch.equal(batch.masks[place], mask)


def test_an_image_of_another_size_is_a_problem_with_its_name(tmp_path):
    write_cityscapes(tmp_path)
    images = open_cityscapes(tmp_path, "train")
    found = SegmentationReader(images)[wanted(1)]
    assert isinstance(found, ReadProblem)
    assert found.text.startswith(f"{images.image_name(1)}: 16 x 32 pixels, and a batch is of 1024 x 2048\n")


def test_an_unknown_id_is_a_problem_with_its_name(tmp_path):
    _, mask, _, ids = write_cityscapes(tmp_path)[1]
    mask.write_bytes(png((ids + 5).astype("uint8")))
    found = SegmentationReader(open_cityscapes(tmp_path, "train"), size=(16, 32))[wanted(0, 1)]
    assert isinstance(found, ReadProblem)
    assert found.text.startswith(f"{mask}: the label id 38 is not known")


def test_a_loader_brings_batches_to_the_finish(tmp_path):
    write_cityscapes(tmp_path)
    reader = SegmentationReader(open_cityscapes(tmp_path, "train"), size=(16, 32))
    sampler = TrainingBatches(TrainingOrder(length=3, batch_size=2), augment=False)
    loaded = HostBatches(reader, sampler, LoaderConfig(workers=1), for_device=False)
    try:
        for batch in islice(loaded, 3):
            images, classes = finish(crop=(8, 8))(*batch)
            assert (images.shape, classes.shape) == ((2, 3, 8, 8), (2, 8, 8))
    finally:
        loaded.close()
