"""Images and boxes in one padded batch: where they lie, how they are mirrored, how much room there is."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.workloads.data.buckets import BucketOrder, Resizing
from pytest_accel.workloads.data.detection import (
    DetectionFinish,
    DetectionReader,
    DetectionSampler,
    DetectionWanted,
    corners_px,
    empty_batch,
    image_mask,
    mirrored_boxes,
    put,
    room_for,
    shares,
)
from pytest_accel.workloads.data.formats.coco import open_coco
from pytest_accel.workloads.data.jpeg import decode_on_host
from pytest_accel.workloads.data.loader import HostBatches, Loading
from pytest_accel.workloads.data.readers import Problem
from tests.support.data_sets import jpeg
from tests.support.detection_sets import coco_annotations, write_coco

BUCKET = (64, 96)
RESIZING = Resizing(short_sides=(24, 32), longest=64, buckets=((32, 48), (32, 64), (48, 32), (64, 32)))


@pytest.fixture
def coco(tmp_path):
    write_coco(tmp_path)
    return open_coco(tmp_path, "train")


def wanted(*indices, sizes, chance=None, bucket=BUCKET):
    return DetectionWanted(step=0, bucket=bucket, indices=indices, sizes=sizes, chance=chance)


def chance_that(mirrors):
    """A seed whose image is mirrored, or is not."""
    return next(seed for seed in range(100) if (Random(seed).random() < 0.5) == mirrors)


def test_an_image_lies_at_the_top_left_of_its_bucket(coco):
    batch = DetectionReader(coco, max_gt=7)[wanted(3, 1, sizes=[(30, 90), (60, 40)])]
    assert [tuple(part.shape) for part in batch] == [(2, 3, 64, 96), (2, 2), (2, 7, 4), (2, 7), (2, 7)]
    assert batch.sizes.tolist() == [[30, 90], [60, 40]]
    whole = decode_on_host(torch.from_numpy(coco.read(3)), "it")
    assert torch.equal(batch.pixels[0, :, :30, :90], whole)  # asked for in its own size
    assert not batch.pixels[0, :, 30:].any()
    assert not batch.pixels[0, :, :, 90:].any()


def test_an_image_is_resized_to_what_is_wanted(coco):
    batch = DetectionReader(coco)[wanted(2, sizes=[(24, 24)])]
    whole = decode_on_host(
        torch.from_numpy(coco.read(2)), "it"
    ).float()  # 48 x 48, smooth but for where it wraps
    half = torch.nn.functional.avg_pool2d(whole, 2)
    near = (batch.pixels[0, :, :24, :24].float() - half).abs()
    assert near.median() <= 2
    assert not batch.pixels[0, :, 24:].any()


def test_boxes_are_shares_of_the_image_without_its_padding(coco):
    batch = DetectionReader(coco, max_gt=5)[wanted(0, 1, 2, sizes=[(20, 30), (30, 20), (24, 24)])]
    assert batch.valid.sum(dim=1).tolist() == [0, 1, 2]
    assert batch.valid[2].tolist() == [True, True, False, False, False]
    # 48 x 48: from (1.5, 2.25) to (6.5, 6.75), and from (2.5, 2.25) to (7.5, 7.75).
    expected = torch.tensor([[4.0, 4.5, 5.0, 4.5], [5.0, 5.0, 5.0, 5.5]]) / 48
    torch.testing.assert_close(batch.boxes[2, :2], expected)
    assert batch.labels[2, :2].tolist() == [0, 2]
    assert not batch.boxes[~batch.valid].any()
    assert not batch.labels[~batch.valid].any()


def test_a_mirrored_image_has_mirrored_boxes(coco):
    reader = DetectionReader(coco)
    size = [(48, 48)]
    straight = reader[wanted(2, sizes=size, chance=chance_that(False))]
    mirrored = reader[wanted(2, sizes=size, chance=chance_that(True))]
    plain = reader[wanted(2, sizes=size)]
    assert all(torch.equal(one, other) for one, other in zip(straight, plain, strict=True))
    assert torch.equal(mirrored.pixels[0, :, :48, :48], straight.pixels[0, :, :48, :48].flip(-1))
    assert not mirrored.pixels[0, :, :, 48:].any()  # padding stays where it was
    left, top, right, bottom = corners_px(straight.boxes, straight.sizes)[0, 0].tolist()
    expected = torch.tensor([48 - right, top, 48 - left, bottom])
    torch.testing.assert_close(corners_px(mirrored.boxes, mirrored.sizes)[0, 0], expected)
    assert torch.equal(mirrored.labels, straight.labels)


def test_about_half_of_the_images_are_mirrored_each_by_its_own_chance(coco):
    reader = DetectionReader(coco)
    many = reader[wanted(*[2] * 64, sizes=[(8, 8)] * 64, chance=5, bucket=(8, 8))]
    plain = reader[wanted(2, sizes=[(8, 8)], bucket=(8, 8))]
    straight = sum(torch.equal(each, plain.pixels[0]) for each in many.pixels)
    assert 16 < straight < 48


boxes_in_shares = st.lists(
    st.tuples(*[st.floats(0, 1, width=32)] * 2, *[st.floats(0, 1, width=32)] * 2), min_size=1, max_size=9
)


@given(boxes_in_shares)
def test_mirrored_twice_is_as_it_was(drawn):
    boxes = torch.tensor(drawn)
    torch.testing.assert_close(mirrored_boxes(mirrored_boxes(boxes)), boxes, rtol=0, atol=1e-6)
    pixels = torch.randint(256, (3, 5, 7), dtype=torch.uint8)
    once, twice = empty_batch(1, (6, 9), max_gt=9), empty_batch(1, (6, 9), max_gt=9)
    labels = torch.arange(len(boxes))
    put(once, 0, pixels, (boxes, labels), mirrored=True)
    again = once.pixels[0, :, :5, :7], (once.boxes[0, : len(boxes)], labels)
    put(twice, 0, *again, mirrored=True)
    straight = empty_batch(1, (6, 9), max_gt=9)
    put(straight, 0, pixels, (boxes, labels), mirrored=False)
    assert torch.equal(twice.pixels, straight.pixels)
    torch.testing.assert_close(twice.boxes, straight.boxes, rtol=0, atol=1e-6)


@given(st.data(), st.integers(1, 1333), st.integers(1, 1333), st.booleans())
def test_boxes_inside_stay_inside_and_come_back(data, height, width, mirrored):
    def side(extent):
        return sorted(data.draw(st.tuples(st.floats(0, extent, width=32), st.floats(0, extent, width=32))))

    (left, right), (top, bottom) = side(width), side(height)
    corners = torch.tensor([[left, top, right, bottom]])
    boxes = shares(corners, height, width)
    torch.testing.assert_close(
        corners_px(boxes[None], torch.tensor([[height, width]]))[0], corners, rtol=1e-5, atol=2e-3
    )
    boxes = mirrored_boxes(boxes) if mirrored else boxes
    low, high = boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
    assert (low >= -1e-6).all()
    assert (high <= 1 + 1e-6).all()


def test_the_mask_is_where_images_are():
    sizes = torch.tensor([[2, 3], [4, 1]])
    mask = image_mask(sizes, 4, 5)
    assert mask.sum(dim=(1, 2)).tolist() == [6, 4]
    assert mask[0, :2, :3].all()
    assert mask[1, :4, :1].all()


def test_a_finished_batch_is_normalised_and_zero_where_the_padding_is(coco):
    batch = DetectionReader(coco)[wanted(3, 1, sizes=[(30, 90), (60, 40)])]
    inputs = DetectionFinish(device=torch.device("cpu"), memory_format=torch.channels_last)(batch)
    assert inputs.images.is_contiguous(memory_format=torch.channels_last)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = (batch.pixels[1, :, 5, 7] / 255 - mean) / std
    torch.testing.assert_close(inputs.images[1, :, 5, 7], expected)
    assert not (inputs.images * ~image_mask(inputs.sizes, *BUCKET)[:, None]).any()
    assert inputs.images[:, :, 0, 0].all()
    assert torch.equal(inputs.boxes, batch.boxes)


def test_what_is_computed_depends_on_no_value(coco):
    """A graph without a break: nothing asks the device for a number, and no shape hangs on one."""
    batch = DetectionReader(coco)[wanted(3, 1, sizes=[(30, 90), (60, 40)])]
    finish = DetectionFinish(device=torch.device("cpu"))

    @torch.compile(fullgraph=True, backend="eager", dynamic=False)
    def whole(batch):
        inputs = finish(batch)
        return inputs.images, corners_px(inputs.boxes, inputs.sizes)

    images, corners = whole(batch)
    assert torch.equal(images, finish(batch).images)
    assert corners.shape == (2, 100, 4)


def test_more_boxes_than_room_are_refused(coco):
    DetectionReader(coco, max_gt=5)
    with pytest.raises(ValueError, match=rf"^max_gt: 4 are too few for {coco.name(5)}, which has 5 boxes"):
        DetectionReader(coco, max_gt=4)


@pytest.mark.parametrize(("most", "room"), [(5, 100), (93, 100), (100, 100), (101, 120), (120, 120)])
def test_there_is_room_for_the_fullest_image(coco, most, room):
    assert room_for(replace(coco, ends=np.cumsum([0, most, 3]))) == room


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b"not a JPEG", "does not decode"),
        (jpeg(40, 40), "40 x 40 pixels, and its boxes are for 48 x 48"),
        (None, "missing"),
    ],
)
def test_an_image_that_cannot_be_used_is_a_problem_with_its_name(coco, content, problem):
    if content is None:
        Path(coco.name(2)).unlink()
    else:
        Path(coco.name(2)).write_bytes(content)
    found = DetectionReader(coco)[wanted(1, 2, sizes=[(24, 24)] * 2)]
    assert isinstance(found, Problem)
    assert found.text.startswith(f"{coco.name(2)}: {problem}")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_brings_batches_of_one_bucket_and_the_same_ones_with_any_workers(tmp_path, workers):
    write_coco(tmp_path, coco_annotations(images=10))
    coco = open_coco(tmp_path, "train")
    order = BucketOrder(sizes=coco.sizes, resizing=RESIZING, batch_size=2, rank=1, world=2, seed=3)
    sampler = DetectionSampler(order, augment=True)
    reader = DetectionReader(coco, max_gt=10)
    loaded = HostBatches(reader, sampler, Loading(workers=workers), for_device=False)
    try:
        batches = list(islice(loaded, 6))
    finally:
        loaded.close()
    for step, (batch, ask) in enumerate(zip(batches, sampler, strict=False)):
        assert ask.step == step
        assert tuple(batch.pixels.shape[2:]) == ask.bucket
        assert batch.sizes.tolist() == [list(size) for size in ask.sizes]
        assert all(torch.equal(one, other) for one, other in zip(batch, reader[ask], strict=True))
    assert type(batches[0]).__name__ == "DetectionBatch"


def test_chances_follow_the_place_in_the_stream(coco):
    def chances(**options):
        order = BucketOrder(sizes=coco.sizes, resizing=RESIZING, batch_size=3, **options)
        return [ask.chance for ask in islice(DetectionSampler(order, augment=True), 3)]

    first = chances(world=2, rank=0, seed=1)
    assert [each - first[0] for each in first] == [0, 3, 6]
    assert len({*first, *chances(world=2, rank=1, seed=1), *chances(world=2, rank=0, seed=2)}) == 9
    order = BucketOrder(sizes=coco.sizes, resizing=RESIZING, batch_size=3)
    assert next(iter(DetectionSampler(order, augment=False))).chance is None
