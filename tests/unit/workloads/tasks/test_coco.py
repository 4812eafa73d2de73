"""Detection data: COCO is read exactly, images fit their buckets, boxes follow their images."""

import json
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_accel.workloads.data.files import DataError
from pytest_accel.workloads.data.loader import TrainingOrder
from pytest_accel.workloads.models.detection import corners_px
from pytest_accel.workloads.tasks.detection import (
    MANY_SCALES,
    BucketOrder,
    DetectionRequest,
    Resizing,
    as_scenes,
    open_coco,
    synthetic_detection,
)
from tests.support.damage import ABSENT, damaged
from tests.support.detection_sets import coco_annotations, write_coco

BUCKET = (64, 96)
SMALL = Resizing(
    short_sides=(8, 12, 16), longest=32, buckets=((12, 20), (16, 24), (16, 32), (24, 16), (32, 16))
)
ONE_SIDE = Resizing(short_sides=(16,), longest=32, buckets=((16, 24), (16, 32), (24, 16), (32, 16)))


@pytest.fixture
def content():
    return coco_annotations()


@pytest.fixture
def coco(tmp_path, content):
    return opened(tmp_path, content)


def opened(root, content):
    write_coco(root / "coco", content)
    return open_coco(root, "train")


def wanted(*indices, sizes, seed=None):
    return DetectionRequest(bucket=BUCKET, indices=indices, sizes=sizes, seed=seed)


def objects(coco, index):
    """The boxes of an image in pixels, left, top, right, bottom, and their labels."""
    batch = coco[wanted(index, sizes=[(20, 20)])]
    labels, boxes, valid = batch.targets
    corners = corners_px(boxes, torch.tensor(coco.sizes[[index]]))
    return corners[valid].tolist(), labels[valid].tolist()


def test_boxes_come_with_their_images(tmp_path, content):
    content["images"].reverse()  # images are ordered by id
    found = opened(tmp_path, content)
    assert found.sizes.tolist() == [[40, 60], [60, 40], [48, 48], [30, 90], [40, 60], [60, 40]]
    # The second and third annotation: left, top, width 5, heights 4.5 and 5.5; categories 1 and 90.
    boxes, labels = objects(found, 2)
    assert np.allclose(boxes, [[1.5, 2.25, 6.5, 6.75], [2.5, 2.25, 7.5, 7.75]])
    assert labels == [0, 2]
    assert [len(objects(found, index)[0]) for index in range(6)] == [0, 1, 2, 3, 4, 5]
    assert found.pixels(1).shape == (3, 60, 40)


def test_validation_images_are_the_test_split(tmp_path):
    write_coco(tmp_path / "coco", part="val2017")
    assert len(open_coco(tmp_path, "test")) == 6


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ({"iscrowd": 1}, None),
        ({"bbox": [-3, 2, 10, 5]}, [0, 2, 7, 7]),
        ({"bbox": [40, 40, 100, 100]}, [40, 40, 48, 48]),
        ({"bbox": [5, 5, 0, 4]}, None),
        ({"bbox": [50, 5, 4, 4]}, None),
        ({"bbox": [5, 5, float("nan"), 4]}, None),
    ],
)
def test_boxes_are_clipped_to_their_images_and_crowds_and_empty_ones_dropped(tmp_path, content, change, left):
    content["annotations"][1] |= change  # of an image of 48 x 48
    boxes = objects(opened(tmp_path, content), 2)[0]
    untouched = [2.5, 2.25, 7.5, 7.75]
    assert np.allclose(boxes, [untouched] if left is None else [left, untouched])


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        ("images", ABSENT, "has no 'images'"),
        ("images", [], "has no 11"),
        ("images[2].id", ABSENT, "has no 'id'"),
        ("images[2].id", "a", "not supported between"),
        ("images[2].height", 0, "a side below 1 pixel"),
        ("annotations[3].image_id", 7, "has no 7"),
        ("annotations[3].bbox", [1, 2, 3], "inhomogeneous"),
        ("annotations[0]", 7, "no attribute"),
    ],
)
def test_wrong_entry_is_reported_with_its_file(tmp_path, content, place, value, problem):
    path = write_coco(tmp_path / "coco", content)  # the images of the right one
    path.write_text(json.dumps(damaged(content, place, value)))
    with pytest.raises(DataError, match=rf"^{path}: .*({problem}).*\nDownload"):
        open_coco(tmp_path, "train")


@pytest.mark.parametrize("broken", [b"", b"[]", b"\xff", b'{"images": ['])
def test_torn_annotations_are_reported(tmp_path, broken):
    path = write_coco(tmp_path / "coco", broken)
    with pytest.raises(DataError, match=f"^{path}: "):
        open_coco(tmp_path, "train")


def test_image_with_more_boxes_than_a_batch_has_room_for_is_refused(tmp_path, content):
    content["annotations"] += [content["annotations"][0]] * 100
    with pytest.raises(DataError, match="more than 100 boxes"):
        opened(tmp_path, content)


@pytest.mark.parametrize(
    ("broken", "problem"), [(b"", "empty"), (b"not a JPEG", "does not decode"), (None, "not readable")]
)
def test_unusable_image_is_an_error_with_its_name(coco, broken, problem):
    path = Path(coco.folder, coco.names[2])
    path.unlink()
    if broken is not None:
        path.write_bytes(broken)
    with pytest.raises(DataError, match=f"^{path}: {problem}"):
        coco[wanted(1, 2, sizes=[(24, 24)] * 2)]


@st.composite
def worlds(draw, resizings=(SMALL, ONE_SIDE)):
    """The orders of all ranks."""
    sides = st.integers(1, 100)
    sizes = np.array(draw(st.lists(st.tuples(sides, sides), min_size=1, max_size=40)))
    world = draw(st.integers(1, 5))
    resizing = draw(st.sampled_from(resizings))
    common = {"batch_size": draw(st.integers(1, 9)), "world": world, "seed": draw(st.integers(0, 2**40))}
    return [order_of(sizes, resizing, rank=rank, **common) for rank in range(world)]


def order_of(sizes, resizing, **share):
    return BucketOrder(sizes=sizes, resizing=resizing, share=TrainingOrder(length=len(sizes), **share))


def steps(orders, epochs):
    """What all ranks take at each step, until every image must have come `epochs` times."""
    order = orders[0]
    per_step, buckets = order.share.world * order.share.batch_size, len(order.resizing.buckets)
    # Up to a step less one image waits in each bucket, and may wait for many epochs where its bucket is rare.
    most = -(-(epochs + per_step) * len(order.sizes) // per_step) + buckets
    return zip(*(islice(each.requests(augment=False), most) for each in orders), strict=True)


@settings(max_examples=20)
@given(worlds(resizings=(ONE_SIDE,)))
def test_every_image_comes_once_an_epoch_in_batches_of_one_bucket(orders):
    """With one scale an image has one bucket: a bucket's stream is one permutation of its images after another."""
    came = {}
    for ranks in steps(orders, 3):
        assert len({share.bucket for share in ranks}) == 1
        assert {len(each) for share in ranks for each in (share.indices, share.sizes)} == {
            orders[0].share.batch_size
        }
        came.setdefault(ranks[0].bucket, []).extend(index for share in ranks for index in share.indices)
    for stream in came.values():
        members = set(stream)
        for start in range(0, len(stream), len(members)):
            part = stream[start : start + len(members)]
            assert len(set(part)) == len(part)
    assert sum(len(set(stream)) for stream in came.values()) == len(orders[0].sizes)


@settings(max_examples=20)
@given(worlds())
def test_images_keep_their_shape_in_the_smallest_bucket_that_holds_them(orders):
    resizing = orders[0].resizing
    for share in islice(orders[0].requests(augment=False), 10):
        for index, (height, width) in zip(share.indices, share.sizes, strict=True):
            fitting = [each for each in resizing.buckets if height <= each[0] and width <= each[1]]
            assert share.bucket in fitting
            assert share.bucket[0] * share.bucket[1] == min(one * other for one, other in fitting)
            was_high, was_wide = orders[0].sizes[index].tolist()
            scale = max(height, width) / max(was_high, was_wide)
            assert abs(min(height, width) - max(1, min(was_high, was_wide) * scale)) <= 1
            assert max(height, width) == resizing.longest or min(height, width) in resizing.short_sides


def test_order_follows_the_seed_and_every_short_side_is_drawn():
    sizes = np.array([(30, 40)] * 60)

    def batch(seed, epoch, resizing=ONE_SIDE):
        order = order_of(sizes, resizing, batch_size=60, seed=seed)
        return next(islice(order.requests(augment=False), epoch, None))

    ways = [batch(*each).indices for each in ((0, 0), (1, 0), (0, 1), (2**32, 0))]
    assert len(set(ways)) == 4
    assert batch(3, 1).indices == batch(3, 1).indices
    assert {min(size) for step in range(9) for size in batch(0, step, SMALL).sizes} == {8, 12, 16}


@pytest.mark.parametrize(
    ("size", "short", "expected"),
    [
        ((480, 640), 800, (800, 1067)),
        ((640, 480), 800, (1067, 800)),
        ((360, 640), 800, (750, 1333)),  # the long side decides
        ((612, 612), 480, (480, 480)),
    ],
)
def test_resized_sizes_are_the_published_ones(size, short, expected):
    assert MANY_SCALES.resized(np.array([size]), np.array([short])).tolist() == [list(expected)]


def test_image_is_at_the_top_left_of_its_bucket_and_normalized(coco):
    batch = coco[wanted(3, 1, sizes=[(30, 90), (60, 40)])]
    assert [tuple(part.shape) for part in (*batch[:2], *batch.targets)] == [
        *((2, 3, *BUCKET), (2, 2)),
        *((2, 100), (2, 100, 4), (2, 100)),
    ]
    assert torch.equal(batch.images[0, :, :30, :90], coco.pixels(3))  # in its own size
    mask = torch.zeros(2, *BUCKET, dtype=torch.bool)
    mask[0, :30, :90] = mask[1, :60, :40] = True
    scenes, _ = as_scenes(torch.device("cpu"), torch.float32, "channels_last")(batch)
    assert scenes.images.is_contiguous(memory_format=torch.channels_last)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(scenes.images[1, :, 5, 7], (batch.images[1, :, 5, 7] / 255 - mean) / std)
    for padded in (batch.images, scenes.images):
        assert not (padded * ~mask[:, None]).any()


def test_boxes_are_shares_of_the_image_without_its_padding(coco):
    labels, boxes, valid = coco[wanted(0, 1, 2, sizes=[(20, 30), (30, 20), (24, 24)])].targets
    assert valid.sum(dim=1).tolist() == [0, 1, 2]
    assert valid[2].tolist() == [True, True] + [False] * 98
    # 48 x 48: from (1.5, 2.25) to (6.5, 6.75), and from (2.5, 2.25) to (7.5, 7.75).
    expected = torch.tensor([[4.0, 4.5, 5.0, 4.5], [5.0, 5.0, 5.0, 5.5]]) / 48
    torch.testing.assert_close(boxes[2, :2], expected)
    assert not boxes[~valid].any()
    assert not labels[~valid].any()


def test_mirrored_image_has_mirrored_boxes(coco):
    seeds = {(Random(seed).random() < 0.5): seed for seed in range(20)}
    plain, straight, mirrored = (
        coco[wanted(2, sizes=[(48, 48)], seed=seed)] for seed in (None, seeds[False], seeds[True])
    )
    for one, other in zip((*straight[:2], *straight.targets), (*plain[:2], *plain.targets), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(mirrored.images[0, :, :48, :48], straight.images[0, :, :48, :48].flip(-1))
    assert not mirrored.images[0, :, :, 48:].any()  # padding stays where it was
    left, top, right, bottom = corners_px(straight.targets.boxes, straight.sizes)[0, 0].tolist()
    expected = torch.tensor([48 - right, top, 48 - left, bottom])
    torch.testing.assert_close(corners_px(mirrored.targets.boxes, mirrored.sizes)[0, 0], expected)
    assert torch.equal(mirrored.targets.labels, straight.targets.labels)


def test_synthetic_boxes_have_the_published_counts_and_sizes():
    drawn = synthetic_detection(20_000, (1, 1), generator=torch.Generator().manual_seed(0))
    labels, boxes, valid = drawn.targets
    real = boxes[valid]
    assert (real[:, :2] - real[:, 2:] / 2 >= -1e-6).all()
    assert (real[:, :2] + real[:, 2:] / 2 <= 1 + 1e-6).all()
    assert (real[:, 2:] > 0).all()
    assert not boxes[~valid].any()
    assert set(labels[valid].tolist()) == set(range(80))
    assert (valid[:, :-1] >= valid[:, 1:]).all()
    counts = valid.sum(dim=1)
    assert (counts == 0).float().mean() == pytest.approx(1021 / 118_287, abs=0.002)
    assert counts[counts > 0].float().mean() == pytest.approx(7.25, abs=0.2)
    assert counts.median() == 4
    area = real[:, 2] * 640 * real[:, 3] * 480
    assert (area < 32**2).float().mean() == pytest.approx(0.41, abs=0.01)
    assert (area >= 96**2).float().mean() == pytest.approx(0.25, abs=0.01)
