"""Images with boxes as batches of static shape: pixels padded to a bucket, boxes padded to a fixed number.

Boxes are (centre x, centre y, width, height) as shares of the image WITHOUT its padding. So DINO wants them: its
references are shares of the image, and it turns them into shares of the padded pixels itself. What is padding is at the
right and at the bottom; the sizes say where it begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

from pytest_accel.workloads.data.buckets import Bucket, BucketOrder
from pytest_accel.workloads.data.errors import DataError, unreadable
from pytest_accel.workloads.data.finish import factors
from pytest_accel.workloads.data.formats.coco import CocoSet
from pytest_accel.workloads.data.jpeg import decode_on_host
from pytest_accel.workloads.data.readers import Problem
from pytest_accel.workloads.data.sets import IMAGENET_MEAN, IMAGENET_STD

Tensor: TypeAlias = Any  # torch is untyped here

MAX_GT = 100  # boxes of an image; COCO's evaluation looks at no more than 100 either
ROOM_STEP = 20  # boxes: sets that differ by a few have one shape


class DetectionBatch(NamedTuple):
    """A batch as a worker makes it. A plain tuple of tensors: torch pins it, and it crosses as it is."""

    pixels: Tensor  # uint8 (batch, 3, height, width); zeros where the padding is
    sizes: Tensor  # int64 (batch, 2): height and width of the image inside
    boxes: Tensor  # float32 (batch, max_gt, 4); zeros where there is none
    labels: Tensor  # int64 (batch, max_gt)
    valid: Tensor  # bool (batch, max_gt): which boxes are real; they come first


class DetectionInputs(NamedTuple):
    """A batch as a model reads it, on the device."""

    images: Tensor  # (batch, 3, height, width), normalised; zeros where the padding is
    sizes: Tensor
    boxes: Tensor
    labels: Tensor
    valid: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionWanted:
    """Samples of one rank and one step, their bucket, and the chance with which they are mirrored."""

    step: int
    bucket: Bucket
    indices: Sequence[int]
    sizes: Sequence[tuple[int, int]]  # to which each is resized
    chance: int | None = None  # the seed of the first, the next one has the next; None: no image is mirrored


class DetectionSampler:
    """The sampler of a training loader: every step's samples, their bucket, and the chance that mirrors them."""

    def __init__(self, order: BucketOrder, *, augment: bool) -> None:
        self._order = order
        self._augment = augment

    def __iter__(self) -> Iterator[DetectionWanted]:
        # As loader.TrainingBatches: of the sample's place in the stream of its rank, however many workers there are.
        begin = (self._order.seed << 64) + (self._order.rank << 40)
        for step, share in enumerate(self._order):
            yield DetectionWanted(
                step=step,
                bucket=share.bucket,
                indices=share.indices,
                sizes=share.sizes,
                chance=begin + step * self._order.batch_size if self._augment else None,
            )


class DetectionReader:
    """What a loader's worker does for one batch: decode, resize, mirror, pad; a sample that cannot be read is named."""

    def __init__(self, images: CocoSet, *, max_gt: int = MAX_GT) -> None:
        fullest = int(images.counts.argmax())
        if images.counts[fullest] > max_gt:
            raise ValueError(
                f"max_gt: {max_gt} are too few for {images.name(fullest)}, which has {images.counts[fullest]} boxes: those "
                "that are left out would be taught as background. Take room_for(images)."
            )
        self._images = images
        self._max_gt = max_gt

    def __getitem__(self, wanted: DetectionWanted) -> DetectionBatch | Problem:
        batch = empty_batch(len(wanted.indices), wanted.bucket, max_gt=self._max_gt)
        try:
            for place, (index, size) in enumerate(zip(wanted.indices, wanted.sizes, strict=True)):
                chance = wanted.chance
                mirrored = chance is not None and Random(chance + place).random() < 0.5  # noqa: S311 - no secret
                put(batch, place, self._pixels(index, size), self._objects(index), mirrored=mirrored)
        except DataError as error:
            return Problem(str(error))
        return batch

    def _pixels(self, index: int, size: tuple[int, int]) -> Tensor:
        images, name = self._images, self._images.name(index)
        pixels = decode_on_host(torch.from_numpy(images.read(index)), name)
        if tuple(pixels.shape[1:]) != tuple(images.sizes[index]):
            raise unreadable(
                name,
                f"{pixels.shape[1]} x {pixels.shape[2]} pixels, and its boxes are for "
                f"{images.sizes[index][0]} x {images.sizes[index][1]}",
                "Extract the image again: the annotations are for another one.",
            )
        return F.interpolate(pixels[None], size=size, mode="bilinear", align_corners=False, antialias=True)[0]

    def _objects(self, index: int) -> tuple[Tensor, Tensor]:
        corners, labels = self._images.objects(index)
        height, width = self._images.sizes[index].tolist()
        return shares(torch.tensor(corners), height, width), torch.tensor(labels)


def room_for(images: CocoSet) -> int:
    """Return how many boxes an image of a batch has room for: MAX_GT, or as many more as the fullest needs."""
    most = int(images.counts.max(initial=0))
    return max(MAX_GT, -(-most // ROOM_STEP) * ROOM_STEP)


def empty_batch(how_many: int, bucket: Bucket, *, max_gt: int) -> DetectionBatch:
    """Return a batch of padding alone, to be filled by `put`."""
    return DetectionBatch(
        pixels=torch.zeros(how_many, 3, *bucket, dtype=torch.uint8),
        sizes=torch.zeros(how_many, 2, dtype=torch.int64),
        boxes=torch.zeros(how_many, max_gt, 4),
        labels=torch.zeros(how_many, max_gt, dtype=torch.int64),
        valid=torch.zeros(how_many, max_gt, dtype=torch.bool),
    )


def put(
    batch: DetectionBatch, place: int, pixels: Tensor, objects: tuple[Tensor, Tensor], *, mirrored: bool
) -> None:
    """Lay one image and its boxes into a batch."""
    boxes, labels = objects
    height, width = pixels.shape[1:]
    batch.pixels[place, :, :height, :width] = pixels.flip(-1) if mirrored else pixels
    batch.sizes[place] = torch.tensor((height, width))
    batch.boxes[place, : len(boxes)] = mirrored_boxes(boxes) if mirrored else boxes
    batch.labels[place, : len(boxes)] = labels
    batch.valid[place, : len(boxes)] = True


def shares(corners: Tensor, height: int, width: int) -> Tensor:
    """Turn (left, top, right, bottom) in pixels into (centre x, centre y, width, height) as shares of the image."""
    corners = corners / torch.tensor((width, height, width, height))
    return torch.cat([(corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]], dim=1)


def corners_px(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Turn shares (batch, n, 4) of images of these sizes (batch, 2) into (left, top, right, bottom) in pixels."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    extent = sizes.flip(-1).to(boxes.dtype)[:, None].repeat(1, 1, 2)
    return torch.cat([centre - half, centre + half], dim=-1) * extent


def mirrored_boxes(boxes: Tensor) -> Tensor:
    return torch.cat([1 - boxes[..., :1], boxes[..., 1:]], dim=-1)


def image_mask(sizes: Tensor, height: int, width: int) -> Tensor:
    """Return where the images are: bool (batch, height, width), on the device of the sizes and without waiting."""
    rows = torch.arange(height, device=sizes.device) < sizes[:, :1]
    columns = torch.arange(width, device=sizes.device) < sizes[:, 1:]
    return rows[:, :, None] & columns[:, None, :]


class DetectionFinish:
    """Host batch -> the model's inputs, on the device and without waiting for it; shapes depend on the bucket alone."""

    def __init__(
        self,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self._device = device
        self._memory_format = memory_format
        self._scale, self._shift = factors(IMAGENET_MEAN, IMAGENET_STD, device=device, dtype=dtype)

    def __call__(self, batch: DetectionBatch) -> DetectionInputs:
        pixels, sizes, boxes, labels, valid = (tensor.to(self._device, non_blocking=True) for tensor in batch)
        mask = image_mask(sizes, *pixels.shape[-2:])
        images = torch.addcmul(self._shift, pixels.to(self._scale.dtype), self._scale)
        images = (images * mask[:, None]).contiguous(memory_format=self._memory_format)
        return DetectionInputs(images, sizes, boxes, labels, valid)
