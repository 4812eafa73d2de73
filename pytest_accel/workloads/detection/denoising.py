"""Contrastive denoising: noisy copies of the true boxes as extra queries, in a number that never changes.

DINO (arXiv:2203.03605) puts as many groups of copies as fit `pairs` into a batch: max(1, pairs // the most boxes
of an image). Each box of a group has a positive copy, which is to be restored, and a negative one from further
away, which is to be rejected. Here the slots for copies are laid out first and the groups are dealt into them on
the device: how many boxes there are changes what the slots hold, not how many slots there are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pytest_accel.workloads.detection.batch import Targets
from pytest_accel.workloads.detection.boxes import to_centres, to_corners

MATCHING = (
    0  # the group of the queries that are matched; copies are in groups 1, 2, ..., and empty slots below 0
)
LABEL_FLIP = 0.25  # of the copies get a random label
BOX_NOISE = (
    1.0  # a positive's corners move by less than this many half sizes, a negative's by up to twice that
)


class Noise(NamedTuple):
    """The copies: (images, slots), positives in the first half of the slots, their negatives in the second."""

    labels: Tensor  # some of them flipped
    boxes: Tensor  # (images, slots, 4), centres
    group: Tensor  # of an empty slot: a negative number, which no other slot has
    target: Tensor  # which box of the image it is a copy of
    positive: Tensor  # to be restored
    active: Tensor  # not an empty slot


def make_noise(
    targets: Targets,
    *,
    pairs: int,
    num_classes: int,
    label_flip: float = LABEL_FLIP,
    box_noise: float = BOX_NOISE,
) -> Noise:
    """Copy the boxes into `2 * max(pairs, boxes)` slots, with noise."""
    labels, boxes, valid = targets.harmless()
    images, most = valid.shape
    slots = max(pairs, most)
    boxes_per_group = valid.sum(dim=1).amax().clamp(min=1)  # a tensor: its value stays on the device
    groups = (pairs // boxes_per_group).clamp(min=1)
    slot = torch.arange(slots, device=valid.device)
    group, target = slot // boxes_per_group, (slot % boxes_per_group).expand(images, -1)
    active = (group < groups) & valid.gather(1, target)
    target, active = target.repeat(1, 2), active.repeat(1, 2)
    positive = active & (torch.arange(2 * slots, device=valid.device) < slots)
    alone = -1 - torch.arange(2 * slots, device=valid.device)
    flipped = torch.rand_like(active, dtype=torch.float32) < label_flip
    copied = labels.gather(1, target)
    return Noise(
        labels=torch.where(flipped, torch.randint_like(copied, num_classes), copied),
        boxes=move_corners(boxes.gather(1, target[..., None].expand(-1, -1, 4)), positive, scale=box_noise),
        group=torch.where(active, 1 + group.repeat(2), alone),
        target=target,
        positive=positive,
        active=active,
    )


def move_corners(boxes: Tensor, positive: Tensor, *, scale: float) -> Tensor:
    """Move both corners of each box: by [0, scale) half sizes where it is positive, else by [scale, 2 scale)."""
    far = torch.rand_like(boxes) + (~positive)[..., None]
    sign = torch.where(torch.rand_like(boxes) < 0.5, -1.0, 1.0)
    half_sizes = boxes[..., 2:].repeat(1, 1, 2) / 2
    return to_centres((to_corners(boxes) + scale * far * sign * half_sizes).clamp(0, 1))


def may_see(group: Tensor) -> Tensor:
    """Return (images, queries, queries): whether a row may look at a column.

    Each sees its own group and the queries that are matched. So no copy of a true box is seen by a query that must
    find it, nor by another group; an empty slot is seen by itself alone, since a softmax over nothing is NaN.
    """
    row, column = group[:, :, None], group[:, None, :]
    return (row == column) | (column == MATCHING)
