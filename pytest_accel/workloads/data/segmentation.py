"""Segmentation's augmentation on the device: each image scaled, cut and mirrored by its own chance, its mask alike.

Bytes of whole images cross to the device; what comes out has one shape whatever was drawn, and nothing waits.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

from pytest_accel.workloads.data.errors import DataError, unreadable
from pytest_accel.workloads.data.finish import factors
from pytest_accel.workloads.data.formats.cityscapes import CLASSES, IGNORE, CityscapesSet
from pytest_accel.workloads.data.readers import Problem, Wanted
from pytest_accel.workloads.data.sets import IMAGENET_MEAN, IMAGENET_STD

Tensor: TypeAlias = Any  # torch is untyped here

SCALES = (0.5, 2.0)  # as SegFormer and DeepLabV3+ are trained on Cityscapes
IMAGE_SIZE = (1024, 2048)  # of every image of Cityscapes
REGION_PX = 128  # how far the regions of synthetic masks reach, about
COARSE_PX = 4  # side of the squares that synthetic masks are made of: 1 of 16 pixels is computed


class SegmentationBatch(NamedTuple):
    """A batch as a worker makes it."""

    pixels: Tensor  # uint8 (batch, 3, height, width)
    masks: Tensor  # uint8 (batch, height, width): classes, or 255


class SegmentationReader:
    """What a loader's worker does for one batch: decode images and masks; a sample that cannot be read is named."""

    def __init__(self, images: CityscapesSet, *, size: tuple[int, int] = IMAGE_SIZE) -> None:
        self._images = images
        self._size = size

    def __getitem__(self, wanted: Wanted) -> SegmentationBatch | Problem:
        how_many = len(wanted.indices)
        pixels = torch.empty(how_many, 3, *self._size, dtype=torch.uint8)
        masks = torch.empty(how_many, *self._size, dtype=torch.uint8)
        try:
            for place, index in enumerate(wanted.indices):
                image, mask = self._images.read(index)
                self._check(mask, index)
                pixels[place], masks[place] = image, mask
        except DataError as error:
            return Problem(str(error))
        return SegmentationBatch(pixels, masks)

    def _check(self, mask: Tensor, index: int) -> None:
        if tuple(mask.shape) != self._size:
            raise unreadable(
                self._images.image_name(index),
                f"{mask.shape[0]} x {mask.shape[1]} pixels, and a batch is of {self._size[0]} x {self._size[1]}",
                "Images of one set have one size: resize it, or take it out.",
            )


class Draws(NamedTuple):
    """What chance decides for each image of a batch: float32 (batch,), each from 0 to 1."""

    scale: Tensor
    top: Tensor
    left: Tensor
    mirror: Tensor


class SegmentationFinish:
    """Bytes (batch, 3, height, width) and masks (batch, height, width) -> normalised crops and int64 classes.

    Outside of a small image its crop is padding: zeros, which is ImageNet's mean, and 255 in the mask.
    """

    def __init__(
        self,
        *,
        crop: tuple[int, int],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
        scales: tuple[float, float] = SCALES,
        mirror: bool = True,
        seed: int = 0,
    ) -> None:
        if not 0 < scales[0] <= scales[1]:
            raise ValueError(f"scales: {scales} are not two positive factors, the smaller one first.")
        self._crop = crop
        self._dtype = dtype
        self._memory_format = memory_format
        self._scales = scales
        self._mirror = mirror
        self._random = torch.Generator(device).manual_seed(seed)
        self._scale, self._shift = factors(IMAGENET_MEAN, IMAGENET_STD, device=device, dtype=torch.float32)

    def __call__(self, pixels: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        device = self._random.device
        pixels = pixels.to(device, non_blocking=True)
        masks = masks.to(device, non_blocking=True)
        draws = Draws(*torch.rand(4, len(pixels), generator=self._random, device=device))
        rows, columns = self._places(draws, pixels.shape[-2:])
        images, inside = sampled(pixels, rows, columns)
        images = torch.addcmul(self._shift, images, self._scale) * inside[:, None]
        classes = picked(masks, rows, columns, inside)
        return images.to(self._dtype, memory_format=self._memory_format), classes

    def _places(self, draws: Draws, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return where in its source each row (batch, height) and column (batch, width) of the crops lies.

        In pixels from the edge: 0.5 is the middle of the first one. Beyond the far edge there is padding.
        """
        low, high = self._scales
        scale = low + draws.scale * (high - low)
        rows = _along(scale, draws.top, source=size[0], wanted=self._crop[0])
        columns = _along(scale, draws.left, source=size[1], wanted=self._crop[1])
        if self._mirror:
            # The source is mirrored, and not the crop: padding stays at the right.
            columns = torch.where(draws.mirror[:, None] < 0.5, size[1] - columns, columns)
        return rows, columns


def _along(scale: Tensor, chance: Tensor, *, source: int, wanted: int) -> Tensor:
    """Return where the pixels of one side of a crop lie in the source; the crop begins at a whole scaled pixel."""
    room = (scale * source - wanted).clamp(min=0).floor()
    begin = torch.minimum((chance * (room + 1)).floor(), room)
    middles = torch.arange(wanted, device=scale.device) + 0.5
    return (begin[:, None] + middles) / scale[:, None]


def sampled(pixels: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return float32 images, bilinear, at these places, and where they are inside their source."""
    height, width = pixels.shape[-2:]
    # The whole of an image goes from -1 to 1, edge to edge.
    x, y = columns * (2 / width) - 1, rows * (2 / height) - 1
    shape = (len(pixels), rows.shape[1], columns.shape[1])
    grid = torch.stack([x[:, None, :].expand(shape), y[:, :, None].expand(shape)], dim=3)
    images = F.grid_sample(
        pixels.to(torch.float32), grid, mode="bilinear", padding_mode="border", align_corners=False
    )
    return images, _within(rows, height)[:, :, None] & _within(columns, width)[:, None, :]


def picked(masks: Tensor, rows: Tensor, columns: Tensor, inside: Tensor) -> Tensor:
    """Return the classes of the nearest pixels, int64: never a mean of two classes."""
    height, width = masks.shape[-2:]
    row = rows.floor().clamp(0, height - 1).to(torch.int64)[:, :, None]
    column = columns.floor().clamp(0, width - 1).to(torch.int64)[:, None, :]
    each = torch.arange(len(masks), device=masks.device)[:, None, None]
    return torch.where(inside, masks[each, row, column].to(torch.int64), IGNORE)


def _within(places: Tensor, extent: int) -> Tensor:
    return (places > 0) & (places < extent)


def synthetic_masks(
    count: int, size: tuple[int, int], *, generator: torch.Generator, classes: int = len(CLASSES)
) -> Tensor:
    """Draw masks of connected regions, uint8 (count, height, width), on the generator's device.

    Every class has a smooth random field, and a pixel has the class whose field is highest; one field more is the
    ignored one, so that losses and scores meet what they meet in Cityscapes.
    """
    height, width = size
    coarse = (-(-height // COARSE_PX), -(-width // COARSE_PX))
    knots = (max(2, height // REGION_PX + 1), max(2, width // REGION_PX + 1))
    fields = torch.randn(count, classes + 1, *knots, generator=generator, device=generator.device)
    smooth = F.interpolate(fields, size=coarse, mode="bicubic", align_corners=True)
    best = smooth.argmax(dim=1).to(torch.uint8)
    masks = best.repeat_interleave(COARSE_PX, dim=1).repeat_interleave(COARSE_PX, dim=2)[:, :height, :width]
    return torch.where(masks == classes, IGNORE, masks).to(torch.uint8).contiguous()


def synthetic_segmentation(
    count: int, size: tuple[int, int], *, generator: torch.Generator, classes: int = len(CLASSES)
) -> SegmentationBatch:
    """Draw a batch of noise with masks of regions, on the generator's device."""
    shape = (count, 3, *size)
    pixels = torch.randint(256, shape, dtype=torch.uint8, generator=generator, device=generator.device)
    return SegmentationBatch(pixels, synthetic_masks(count, size, generator=generator, classes=classes))
