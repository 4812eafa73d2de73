"""The set loss is that of the definition, term by term, and padding has no part in it."""

from __future__ import annotations

import math

import pytest
import torch

from pytest_accel.workloads.models.detection import (
    UNMATCHED,
    DinoLoss,
    Predictions,
    Targets,
    generalized_iou,
    make_noise,
    match,
    to_corners,
)

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
    costs = DinoLoss().costs(predictions, targets)
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
    loss = DinoLoss()
    matched = match(loss.costs(predictions, targets))
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
    assert loss(predictions, targets).item() == pytest.approx(by_hand / 3, rel=1e-5)  # three real boxes


def test_denoising_teaches_positives_their_box_and_negatives_nothing(predictions, targets):
    loss = DinoLoss()
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
    whole = loss(predictions._replace(denoised_logits=logits, denoised_boxes=boxes, noise=noise), targets)
    assert (whole - loss(predictions, targets)).item() == pytest.approx(by_hand / positives, rel=1e-4)


def test_what_stands_in_the_padding_does_not_matter(predictions, targets):
    padding = ~targets.valid
    strange = Targets(
        targets.labels.masked_fill(padding, 10**6),
        targets.boxes.masked_fill(padding[..., None], float("nan")),
        targets.valid,
    )
    assert DinoLoss()(predictions, targets).equal(DinoLoss()(predictions, strange))


def test_images_without_objects_have_a_finite_loss(predictions, targets):
    empty = targets._replace(valid=torch.zeros_like(targets.valid))
    assert torch.isfinite(DinoLoss()(predictions, empty))


def test_a_step_that_diverged_ends_in_a_loss_that_is_not_finite(predictions, targets):
    broken = predictions._replace(boxes=predictions.boxes * float("nan"))
    assert torch.isnan(DinoLoss()(broken, targets))


def test_better_boxes_cost_less(predictions, targets):
    loss = DinoLoss()
    matched = torch.tensor([0, 1, UNMATCHED, UNMATCHED, UNMATCHED]).expand(2, 2, 5).clone()
    matched[:, 1, 1] = UNMATCHED
    right = predictions.boxes.clone()
    right[:, :, :2] = targets.boxes[:, :2]
    right[:, 1, 1] = predictions.boxes[:, 1, 1]
    better = predictions._replace(boxes=right)
    assert loss.loss(better, targets, matched) < loss.loss(predictions, targets, matched)
