"""Boxes with the statistics of COCO's: a step costs what it costs on COCO where it depends on its targets.

What is published, and relied on here:
- images and objects: 118,287 training images of 2017 hold 849,949 objects that are no crowds (github.com/cocodataset/
  cocoapi, issue 117), 1,021 images none (issue 76);
- objects in an image: half of the images have at most 4, 99 in 100 between 1 and 33 (the 2014 training images; the
  dataset notes of github.com/Lextal/SotA-CV);
- sizes: 41 % of the objects are small (below 32 x 32 pixels), 34 % medium, 24 % large (from 96 x 96), by the area of
  their outlines (cocodataset.org, detection evaluation). Here it is the area of their boxes.
What is not published is plain: within a class of sizes the logarithm of the side is uniform, so is that of the aspect
between 1:2 and 2:1, and so are places and labels.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch

from pytest_accel.workloads.data.buckets import Bucket
from pytest_accel.workloads.data.detection import MAX_GT, DetectionBatch
from pytest_accel.workloads.data.formats.coco import CLASSES

Tensor: TypeAlias = Any  # torch is untyped here

EMPTY_SHARE = 1_021 / 118_287
# 1 + a Weibull's whole part: of four million draws the mean is 7.27 (published: 7.25 of images that are not empty), the
# median 4, and 99 in 100 are at most 39. tests/unit/workloads/data/test_synthetic_boxes.py measures it again.
COUNT_SHAPE, COUNT_SCALE = 0.83, 6.1
SMALL_SHARE, MEDIUM_SHARE = 0.41, 0.34
SIDES_PX = (4.0, 32.0, 96.0, 480.0)  # where the classes of sizes end; of a photograph of 480 x 640
PHOTOGRAPH_PX = (480, 640)
WIDEST = 2.0  # width over height, or height over width


def synthetic_targets(
    count: int, *, max_gt: int = MAX_GT, generator: torch.Generator, classes: int = CLASSES
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw the boxes, labels and which of them are real, as in a DetectionBatch, of `count` images on the generator's device.

    Images with more than max_gt objects have max_gt.
    """

    def chance(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=generator.device)

    sizes = box_sizes(chance(count, max_gt), chance(count, max_gt), chance(count, max_gt))
    centres = sizes / 2 + chance(count, max_gt, 2) * (1 - sizes)
    numbers = object_counts(chance(count), chance(count))
    valid = torch.arange(max_gt, device=generator.device) < numbers[:, None]
    labels = torch.randint(classes, (count, max_gt), generator=generator, device=generator.device)
    boxes = torch.cat([centres, sizes], dim=2) * valid[..., None]
    return boxes, labels * valid, valid


def object_counts(chance: Tensor, empty: Tensor) -> Tensor:
    """Return numbers of objects for numbers of chance from 0 to 1."""
    some = 1 + (COUNT_SCALE * (-torch.log1p(-chance)) ** (1 / COUNT_SHAPE)).floor()
    return torch.where(empty < EMPTY_SHARE, 0, some).to(torch.int64)


def box_sizes(kind: Tensor, size: Tensor, aspect: Tensor) -> Tensor:
    """Return widths and heights as shares of a photograph's, in a last dimension, for numbers of chance from 0 to 1."""
    logs = [math.log(side) for side in SIDES_PX]
    small, medium = kind < SMALL_SHARE, kind < SMALL_SHARE + MEDIUM_SHARE
    lower = torch.where(small, logs[0], torch.where(medium, logs[1], logs[2]))
    upper = torch.where(small, logs[1], torch.where(medium, logs[2], logs[3]))
    side = torch.exp(lower + size * (upper - lower))
    stretch = torch.exp((aspect - 0.5) * math.log(WIDEST))  # of one side; the other shrinks by as much
    height, width = PHOTOGRAPH_PX
    return torch.stack([side * stretch / width, side / stretch / height], dim=-1).clamp(max=1)


def synthetic_detection(
    count: int, bucket: Bucket, *, max_gt: int = MAX_GT, generator: torch.Generator, classes: int = CLASSES
) -> DetectionBatch:
    """Draw a batch whose images fill their bucket, on the generator's device."""
    device = generator.device
    targets = synthetic_targets(count, max_gt=max_gt, generator=generator, classes=classes)
    shape = (count, 3, *bucket)
    pixels = torch.randint(256, shape, dtype=torch.uint8, generator=generator, device=device)
    sizes = torch.tensor(bucket, device=device).expand(count, 2).contiguous()
    return DetectionBatch(pixels, sizes, *targets)
