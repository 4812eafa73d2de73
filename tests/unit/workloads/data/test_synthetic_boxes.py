"""Synthetic boxes have the statistics that are published of COCO's, and are boxes."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from pytest_accel.workloads.data.detection import synthetic_detection, synthetic_targets


class Drawn(NamedTuple):
    """What is drawn, by name."""

    boxes: torch.Tensor
    labels: torch.Tensor
    valid: torch.Tensor


def drawn(count, seed=0, **options):
    return Drawn(*synthetic_targets(count, generator=torch.Generator().manual_seed(seed), **options))


@pytest.fixture(scope="module")
def many():
    return drawn(30_000)


def test_shapes_and_types_are_static():
    boxes, labels, valid = drawn(3, max_gt=11)
    assert (boxes.shape, boxes.dtype) == ((3, 11, 4), torch.float32)
    assert (labels.shape, labels.dtype) == ((3, 11), torch.int64)
    assert (valid.shape, valid.dtype) == ((3, 11), torch.bool)


def test_the_same_seed_draws_the_same():
    assert all(torch.equal(one, other) for one, other in zip(drawn(5), drawn(5), strict=True))
    assert not torch.equal(drawn(5).boxes, drawn(5, seed=1).boxes)


def test_boxes_lie_inside_the_image_and_are_not_empty(many):
    centre, size = many.boxes.split(2, dim=2)
    assert (centre - size / 2 >= -1e-6).all()
    assert (centre + size / 2 <= 1 + 1e-6).all()
    assert (size[many.valid] > 0).all()
    assert not many.boxes[~many.valid].any()
    assert not many.labels[~many.valid].any()
    assert many.labels.unique().tolist() == list(range(80))


def test_real_boxes_come_first(many):
    assert (many.valid[:, :-1] >= many.valid[:, 1:]).all()


def test_objects_in_an_image_are_as_published(many):
    counts = many.valid.sum(dim=1).float()
    assert counts.mean() == pytest.approx(849_949 / 118_287, rel=0.03)
    assert counts.median() == 4
    assert 30 <= counts.quantile(0.99) <= 42  # published: 33
    assert (counts == 0).float().mean() == pytest.approx(1_021 / 118_287, abs=0.002)


def test_sizes_are_as_published(many):
    sides = many.boxes[many.valid][:, 2:] * torch.tensor([640.0, 480.0])
    area = sides.prod(dim=1)
    assert (area < 32**2).float().mean() == pytest.approx(0.41, abs=0.01)
    assert ((area >= 32**2) & (area < 96**2)).float().mean() == pytest.approx(0.34, abs=0.01)
    assert area.min() >= 15.9


def test_a_small_room_is_filled_and_not_overrun():
    valid = drawn(500, max_gt=3).valid
    assert valid.sum(dim=1).unique().tolist() == [0, 1, 2, 3]


def test_a_batch_fills_its_bucket():
    batch = synthetic_detection(2, (64, 96), max_gt=9, generator=torch.Generator().manual_seed(0), classes=7)
    assert (batch.pixels.shape, batch.pixels.dtype) == ((2, 3, 64, 96), torch.uint8)
    assert batch.sizes.tolist() == [[64, 96]] * 2
    assert (batch.boxes.shape, batch.labels.max() < 7) == ((2, 9, 4), True)
