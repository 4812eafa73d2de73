"""Denoising deals copies of the boxes into slots that are always there, and lets nobody peep."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_accel.workloads.models.detection import (
    MATCHING,
    Targets,
    make_noise,
    may_see,
    move_corners,
    to_corners,
)

COUNTS = st.lists(st.integers(0, 14), min_size=1, max_size=3)
MOST = 14


def targets_of(counts, most=MOST):
    boxes = torch.rand(len(counts), most, 4) * 0.2 + 0.4
    labels = torch.randint(9, (len(counts), most))
    return Targets(labels, boxes, torch.arange(most) < torch.tensor(counts)[:, None])


@given(COUNTS)
def test_every_group_holds_every_box_once_as_a_positive_and_once_as_a_negative(counts):
    pairs, most = 10, max([*counts, 1])
    noise = make_noise(targets_of(counts), pairs=pairs, num_classes=9)
    groups = max(1, pairs // most)
    for image, count in enumerate(counts):
        for positive in (True, False):
            chosen = noise.active[image] & (noise.positive[image] == positive)
            dealt = list(
                zip(noise.group[image][chosen].tolist(), noise.target[image][chosen].tolist(), strict=True)
            )
            assert sorted(dealt) == [(1 + group, box) for group in range(groups) for box in range(count)]


@given(COUNTS)
def test_the_number_of_slots_does_not_depend_on_the_boxes(counts):
    noise = make_noise(targets_of(counts), pairs=10, num_classes=9)
    assert noise.active.shape == (len(counts), 2 * MOST)
    assert make_noise(targets_of([3], most=5), pairs=10, num_classes=9).active.shape == (1, 20)


@settings(max_examples=15)
@given(COUNTS)
def test_nobody_sees_a_copy_outside_of_its_group(counts):
    noise = make_noise(targets_of(counts), pairs=10, num_classes=9)
    images, slots = noise.group.shape
    group = torch.cat((noise.group, torch.full((images, 3), MATCHING)), dim=1)
    sees = may_see(group)
    assert not sees[:, slots:, :slots].any()  # those that are matched see no copy
    assert sees[:, :, slots:].all()  # and are seen by all
    assert sees.diagonal(dim1=1, dim2=2).all()  # a softmax over nothing is NaN
    for image in range(images):
        for row, column in torch.combinations(torch.arange(slots), 2).tolist():
            together = (
                bool(noise.active[image, [row, column]].all()) and group[image, row] == group[image, column]
            )
            assert sees[image, row, column] == sees[image, column, row] == together


def test_positives_move_by_less_than_half_a_size_and_negatives_by_more():
    boxes = torch.tensor([0.5, 0.5, 0.2, 0.1]).expand(1, 4000, 4)
    positive = torch.arange(4000) < 2000
    moved = to_corners(move_corners(boxes, positive[None], scale=1.0)) - to_corners(boxes)
    shares = (moved / torch.tensor([0.1, 0.05, 0.1, 0.05])).abs()[0]
    assert 0.98 < shares[positive].max() < 1.0001
    assert 0.9999 < shares[~positive].min() < 1.02
    assert 1.98 < shares[~positive].max() < 2.0001
    assert (moved > 0).float().mean() == pytest.approx(0.5, abs=0.03)


def test_noise_stays_in_the_image():
    boxes = torch.tensor([0.95, 0.05, 0.1, 0.1]).expand(1, 100, 4)
    corners = to_corners(move_corners(boxes, torch.zeros(1, 100, dtype=torch.bool), scale=1.0))
    assert corners.min() >= -1e-6
    assert corners.max() <= 1 + 1e-6


def test_a_quarter_of_the_labels_is_drawn_anew():
    targets = Targets(
        torch.full((1, 2000), 7), torch.full((1, 2000, 4), 0.5), torch.ones(1, 2000, dtype=torch.bool)
    )
    noise = make_noise(targets, pairs=2000, num_classes=91)
    changed = (noise.labels != 7).float().mean().item()
    assert changed == pytest.approx(0.25 * 90 / 91, abs=0.03)
    assert int(noise.labels.min()) >= 0
    assert int(noise.labels.max()) <= 90


def test_what_stands_in_the_padding_does_not_matter():
    plain = targets_of([3, 5])
    padding = ~plain.valid
    strange = plain._replace(
        labels=plain.labels.masked_fill(padding, -100),
        boxes=plain.boxes.masked_fill(padding[..., None], float("nan")),
    )
    torch.manual_seed(1)
    before = make_noise(plain, pairs=10, num_classes=9)
    torch.manual_seed(1)
    after = make_noise(strange, pairs=10, num_classes=9)
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one, other)
