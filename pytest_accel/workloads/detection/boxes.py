"""Boxes as detectors compare them: two notations, and the generalised overlap of two boxes.

Centres: (centre x, centre y, width, height). Corners: (left, top, right, bottom).
"""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST_AREA = 1e-7  # of an image: what stands for the area of a box that has none, where one is divided by


def to_corners(centres: Tensor) -> Tensor:
    centre, size = centres.split(2, dim=-1)
    return torch.cat((centre - size / 2, centre + size / 2), dim=-1)


def to_centres(corners: Tensor) -> Tensor:
    first, last = corners.split(2, dim=-1)
    return torch.cat(((first + last) / 2, last - first), dim=-1)


def generalised_iou(corners: Tensor, others: Tensor) -> Tensor:
    """Return the GIoU (arXiv:1902.09630) of boxes given by their corners: 1 where they are one, -1 at the worst.

    Shapes are broadcast: `generalised_iou(a[:, None], b[None])` has all pairs.
    """
    overlap = _area(
        torch.maximum(_first(corners), _first(others)), torch.minimum(_last(corners), _last(others))
    )
    hull = _area(torch.minimum(_first(corners), _first(others)), torch.maximum(_last(corners), _last(others)))
    union = _area(_first(corners), _last(corners)) + _area(_first(others), _last(others)) - overlap
    return overlap / union.clamp(min=SMALLEST_AREA) - (hull - union) / hull.clamp(min=SMALLEST_AREA)


def _first(corners: Tensor) -> Tensor:
    return corners[..., :2]


def _last(corners: Tensor) -> Tensor:
    return corners[..., 2:]


def _area(first: Tensor, last: Tensor) -> Tensor:
    return (last - first).clamp(min=0).prod(dim=-1)
