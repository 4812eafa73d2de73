"""Boxes, matching, denoising and the set loss of DINO against their definitions."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.ops import generalized_box_iou

from pytest_accel.workloads.models.detection import (
    UNMATCHED,
    Predictions,
    Targets,
    dino_loss,
    generalized_iou,
    make_noise,
    match,
    matching_costs,
    move_corners,
    to_corners,
)

# Boxes.


def test_generalized_iou_equals_torchvisions():
    random = torch.Generator().manual_seed(0)
    boxes, others = (to_corners(torch.rand(50, 4, generator=random)) for _ in range(2))
    torch.testing.assert_close(generalized_iou(boxes[:, None], others), generalized_box_iou(boxes, others))


def test_box_without_an_area_has_a_finite_overlap_and_gradient():
    point = torch.full((4,), 0.5, requires_grad=True)
    overlap = generalized_iou(point, torch.full((4,), 0.5))
    overlap.backward()
    assert torch.isfinite(overlap)
    assert torch.isfinite(point.grad).all()


# Matching.


INFINITY = float("inf")


def test_padding_is_never_matched():
    costs = torch.randn(1, 2, 4, 6)
    costs[0, 0, 1:] = INFINITY
    costs[0, 1] = INFINITY
    matched = match(costs)
    assert sorted(matched[0, 0].tolist()) == [UNMATCHED] * 5 + [0]
    assert matched[0, 0, costs[0, 0, 0].argmin()] == 0
    assert sorted(match(torch.randn(1, 1, 3, 5))[0, 0].tolist()) == [UNMATCHED] * 2 + [0, 1, 2]
    assert matched[0, 1].tolist() == [UNMATCHED] * 6


# Denoising.


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
def test_number_of_slots_does_not_depend_on_the_boxes(counts):
    noise = make_noise(targets_of(counts), pairs=10, num_classes=9)
    assert noise.active.shape == (len(counts), 2 * MOST)
    assert make_noise(targets_of([3], most=5), pairs=10, num_classes=9).active.shape == (1, 20)


def test_positives_move_by_less_than_half_a_size_and_negatives_by_more():
    boxes = torch.tensor([0.5, 0.5, 0.2, 0.1]).expand(1, 4000, 4)
    positive = torch.arange(4000) < 2000
    moved = to_corners(move_corners(boxes, positive[None])) - to_corners(boxes)
    shares = (moved / torch.tensor([0.1, 0.05, 0.1, 0.05])).abs()[0]
    assert 0.98 < shares[positive].max() < 1.0001
    assert 0.9999 < shares[~positive].min() < 1.02
    assert 1.98 < shares[~positive].max() < 2.0001
    assert (moved > 0).float().mean() == pytest.approx(0.5, abs=0.03)


def test_quarter_of_the_labels_is_random():
    targets = Targets(
        torch.full((1, 2000), 7), torch.full((1, 2000, 4), 0.5), torch.ones(1, 2000, dtype=torch.bool)
    )
    noise = make_noise(targets, pairs=2000, num_classes=91)
    changed = (noise.labels != 7).float().mean().item()
    assert changed == pytest.approx(0.25 * 90 / 91, abs=0.03)
    assert int(noise.labels.min()) >= 0
    assert int(noise.labels.max()) <= 90


# Loss.


CLASSES = 4


def focal_by_hand(logit, truth):
    probability = 1 / (1 + math.exp(-logit))
    right, alpha = (probability, 0.25) if truth else (1 - probability, 0.75)
    return -alpha * (1 - right) ** 2 * math.log(right)


def boxes_by_hand(found, wanted):
    l1 = sum(abs(a - b) for a, b in zip(found.tolist(), wanted.tolist(), strict=True))
    return l1, generalized_iou(to_corners(found), to_corners(wanted)).item()


@pytest.fixture
def targets():
    torch.manual_seed(3)
    valid = torch.tensor([[True, True, False], [True, False, False]])
    return Targets(torch.randint(CLASSES, (2, 3)), torch.rand(2, 3, 4) * 0.3 + 0.3, valid)


@pytest.fixture
def predictions():
    torch.manual_seed(4)
    return Predictions(torch.randn(2, 2, 5, CLASSES), torch.rand(2, 2, 5, 4) * 0.4 + 0.2)


def test_costs_are_two_five_two(predictions, targets):
    costs = matching_costs(predictions, targets)
    assert costs.shape == (2, 2, 3, 5)
    for layer, image, box, query in [(0, 0, 0, 0), (1, 0, 1, 4), (1, 1, 0, 2)]:
        logit = predictions.logits[layer, image, query, targets.labels[image, box]].item()
        focal = focal_by_hand(logit, truth=True) - focal_by_hand(logit, truth=False)
        l1, giou = boxes_by_hand(predictions.boxes[layer, image, query], targets.boxes[image, box])
        assert costs[layer, image, box, query].item() == pytest.approx(
            2 * focal + 5 * l1 - 2 * giou, abs=1e-5
        )
    assert torch.isinf(costs).all(dim=-1).equal((~targets.valid).expand(2, 2, 3))


def test_losses_are_one_five_two_over_the_number_of_boxes(predictions, targets):
    matched = match(matching_costs(predictions, targets))
    by_hand = 0.0
    for layer in range(2):
        for image in range(2):
            for query in range(5):
                box = int(matched[layer, image, query])
                label = int(targets.labels[image, box]) if box != UNMATCHED else None
                for each in range(CLASSES):
                    logit = predictions.logits[layer, image, query, each].item()
                    by_hand += focal_by_hand(logit, truth=each == label)
                if box != UNMATCHED:
                    l1, giou = boxes_by_hand(
                        predictions.boxes[layer, image, query], targets.boxes[image, box]
                    )
                    by_hand += 5 * l1 + 2 * (1 - giou)
    assert dino_loss(predictions, targets).item() == pytest.approx(by_hand / 3, rel=1e-5)  # three real boxes


def test_denoising_teaches_positives_their_box_and_negatives_nothing(predictions, targets):
    noise = make_noise(targets, pairs=4, num_classes=CLASSES)
    slots = noise.active.shape[1]
    logits, boxes = torch.randn(1, 2, slots, CLASSES), torch.rand(1, 2, slots, 4) * 0.4 + 0.2
    by_hand, positives = 0.0, 0
    for image in range(2):
        for slot in range(slots):
            if not noise.active[image, slot]:
                continue
            box, positive = int(noise.target[image, slot]), bool(noise.positive[image, slot])
            for each in range(CLASSES):
                truth = positive and each == int(targets.labels[image, box])
                by_hand += focal_by_hand(logits[0, image, slot, each].item(), truth=truth)
            if positive:
                positives += 1
                l1, giou = boxes_by_hand(boxes[0, image, slot], targets.boxes[image, box])
                by_hand += 5 * l1 + 2 * (1 - giou)
    assert positives == 2 * 3  # two groups of three boxes
    whole = dino_loss(
        predictions._replace(denoised_logits=logits, denoised_boxes=boxes, noise=noise), targets
    )
    assert (whole - dino_loss(predictions, targets)).item() == pytest.approx(by_hand / positives, rel=1e-4)


def test_images_without_objects_have_a_finite_loss(predictions, targets):
    empty = targets._replace(valid=torch.zeros_like(targets.valid))
    assert torch.isfinite(dino_loss(predictions, empty))


def test_diverged_boxes_give_a_loss_that_is_not_finite(predictions, targets):
    broken = predictions._replace(boxes=predictions.boxes * float("nan"))
    assert torch.isnan(dino_loss(broken, targets))
