"""Segmentation data: Cityscapes, random scale and crop on the device, synthetic masks.

Bytes of whole images cross to the device; each image and its mask are scaled, cropped and mirrored there. The result has
one shape whatever was drawn, and nothing waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.nn import functional as F

from pytest_accel.workloads.data.files import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Split,
    find_folder,
    read_bytes,
    reading,
    unreadable,
)
from pytest_accel.workloads.data.loader import BatchRequest
from pytest_accel.workloads.data.pixels import decode_on_host, scale_and_shift

Tensor: TypeAlias = Any  # torch is untyped here

CITYSCAPES_PARTS = {"train": "train", "test": "val"}  # the masks of the test images were never published
IMAGES, MASKS = "leftImg8bit", "gtFine"
IMAGE_END, MASK_END = "_leftImg8bit.png", "_gtFine_labelIds.png"
REMEDY = "Extract leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip again, both into one folder."
IGNORE = 255
LABEL_IDS = 34  # 0 to 33; the licence plates' -1 is never drawn
# Label ids of the 19 classes that are trained and evaluated, in their order: road, sidewalk, building, wall, fence,
# pole, traffic light, traffic sign, vegetation, terrain, sky, person, rider, car, truck, bus, train, motorcycle, bicycle.
TRAINED_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
CITYSCAPES_CLASSES = len(TRAINED_IDS)
CLASS_OF_ID = torch.full((LABEL_IDS,), IGNORE, dtype=torch.uint8)
CLASS_OF_ID[list(TRAINED_IDS)] = torch.arange(CITYSCAPES_CLASSES, dtype=torch.uint8)

SCALES = (0.5, 2.0)  # as SegFormer and DeepLabV3+ are trained on Cityscapes
REGION_PX = 128  # extent of the regions of synthetic masks, about
COARSE_PX = 4  # side of the squares that synthetic masks are made of: 1 of 16 pixels is computed


class SegmentationBatch(NamedTuple):
    """A batch as a worker makes it."""

    pixels: Tensor  # uint8 (batch, 3, height, width)
    masks: Tensor  # uint8 (batch, height, width): classes, or 255


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CityscapesSet:
    """The images of one split, in the order of their names; each has a mask. A loader's reader of their batches."""

    paths: tuple[str, ...]  # of the images

    def __len__(self) -> int:
        return len(self.paths)

    def mask_path(self, index: int) -> str:
        """Return the mask's path: `gtFine/train/aachen/..._labelIds.png` for `leftImg8bit/train/aachen/...`."""
        image = Path(self.paths[index])
        name = image.name.removesuffix(IMAGE_END) + MASK_END
        return str(image.parents[3] / MASKS / image.parent.relative_to(image.parents[2]) / name)

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        """Return an image, uint8 (3, height, width), and its classes, uint8 (height, width): 0 to 18, or 255."""
        path, mask_path = self.paths[index], self.mask_path(index)
        image = decode_on_host(read_bytes(path), path)
        ids = decode_on_host(read_bytes(mask_path), mask_path, mode="UNCHANGED")
        if ids.shape != (1, *image.shape[1:]) or int(ids.max()) >= LABEL_IDS:
            problem = f"not one label id below {LABEL_IDS} for each of the {image.shape[1]} x {image.shape[2]} pixels"
            raise unreadable(mask_path, problem, REMEDY)
        return image, CLASS_OF_ID[ids[0].to(torch.int64)]

    def __getitem__(self, wanted: BatchRequest) -> SegmentationBatch:
        images, masks = zip(*map(self.read, wanted.indices), strict=True)
        for index, image in zip(wanted.indices, images, strict=True):
            if image.shape != images[0].shape:
                problem = f"{image.shape[1]} x {image.shape[2]} pixels, and others are of another size"
                raise unreadable(self.paths[index], problem, "Resize it, or take it out.")
        return SegmentationBatch(torch.stack(images), torch.stack(masks))


def open_cityscapes(root: Path | None, split: Split) -> CityscapesSet:
    """Index one split under `root/cityscapes`; DataMissing where it holds no images."""
    folder = find_folder(root, "cityscapes", f"cityscapes/{IMAGES}") / CITYSCAPES_PARTS[split]
    with reading(folder):
        paths = sorted(map(str, folder.glob(f"*/*{IMAGE_END}")))
    if not paths:
        raise unreadable(folder, f"holds no <city>/*{IMAGE_END}", REMEDY)
    return CityscapesSet(paths=tuple(paths))


@dataclass(kw_only=True)
class SegmentationTransform:
    """Convert bytes (batch, 3, height, width) and masks (batch, height, width) to normalized crops and int64 classes.

    A crop larger than its image is padded: with zeros, which is ImageNet's mean, and with 255 in the mask.
    """

    crop: tuple[int, int]
    device: torch.device
    dtype: torch.dtype = torch.float32
    memory_format: torch.memory_format = torch.contiguous_format
    scales: tuple[float, float] = SCALES
    mirror: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        self._random = torch.Generator(self.device).manual_seed(self.seed)
        self._scale, self._shift = scale_and_shift(
            IMAGENET_MEAN, IMAGENET_STD, device=self.device, dtype=torch.float32
        )

    def __call__(self, pixels: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = self._places(len(pixels), pixels.shape[-2:])
        images, inside = sampled(pixels, rows, columns)
        images = torch.addcmul(self._shift, images, self._scale) * inside[:, None]
        classes = picked(masks, rows, columns, inside)
        return images.to(self.dtype, memory_format=self.memory_format), classes

    def _places(self, how_many: int, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Draw the source position of each row (batch, height) and column (batch, width) of the crops.

        In pixels from the edge: 0.5 is the center of the first one. Beyond the far edge there is padding.
        """
        draws = torch.rand(4, how_many, generator=self._random, device=self.device)
        low, high = self.scales
        scale = low + draws[0] * (high - low)
        rows = _along(scale, draws[1], source=size[0], wanted=self.crop[0])
        columns = _along(scale, draws[2], source=size[1], wanted=self.crop[1])
        if self.mirror:
            # The source is mirrored, not the crop: padding stays at the right.
            columns = torch.where(draws[3, :, None] < 0.5, size[1] - columns, columns)
        return rows, columns


def _along(scale: Tensor, draw: Tensor, *, source: int, wanted: int) -> Tensor:
    """Return the source positions of one side of a crop, which begins at a whole scaled pixel."""
    room = (scale * source - wanted).clamp(min=0).floor()
    begin = torch.minimum((draw * (room + 1)).floor(), room)
    centers = torch.arange(wanted, device=scale.device) + 0.5
    return (begin[:, None] + centers) / scale[:, None]


def sampled(pixels: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return float32 images, bilinear, at these positions, and where they are inside their source."""
    height, width = pixels.shape[-2:]
    # grid_sample's coordinates go from -1 to 1, edge to edge.
    x, y = columns * (2 / width) - 1, rows * (2 / height) - 1
    shape = (len(pixels), rows.shape[1], columns.shape[1])
    grid = torch.stack([x[:, None, :].expand(shape), y[:, :, None].expand(shape)], dim=3)
    images = F.grid_sample(
        pixels.to(torch.float32), grid, mode="bilinear", padding_mode="border", align_corners=False
    )
    within_rows, within_columns = (rows > 0) & (rows < height), (columns > 0) & (columns < width)
    return images, within_rows[:, :, None] & within_columns[:, None, :]


def picked(masks: Tensor, rows: Tensor, columns: Tensor, inside: Tensor) -> Tensor:
    """Return the classes of the nearest pixels, int64: never a mean of two classes."""
    height, width = masks.shape[-2:]
    row = rows.floor().clamp(0, height - 1).to(torch.int64)[:, :, None]
    column = columns.floor().clamp(0, width - 1).to(torch.int64)[:, None, :]
    each = torch.arange(len(masks), device=masks.device)[:, None, None]
    return torch.where(inside, masks[each, row, column].to(torch.int64), IGNORE)


def synthetic_segmentation(
    count: int, size: tuple[int, int], *, generator: torch.Generator, classes: int = CITYSCAPES_CLASSES
) -> SegmentationBatch:
    """Draw noise with masks of connected regions, on the generator's device.

    Every class has a smooth random field, and a pixel has the class whose field is highest. One more field is the
    ignored class, which Cityscapes has too.
    """
    device, (height, width) = generator.device, size
    pixels = torch.randint(256, (count, 3, *size), dtype=torch.uint8, generator=generator, device=device)
    coarse = (-(-height // COARSE_PX), -(-width // COARSE_PX))
    knots = (max(2, height // REGION_PX + 1), max(2, width // REGION_PX + 1))
    fields = torch.randn(count, classes + 1, *knots, generator=generator, device=device)
    smooth = F.interpolate(fields, size=coarse, mode="bicubic", align_corners=True)
    best = smooth.argmax(dim=1).to(torch.uint8)
    masks = best.repeat_interleave(COARSE_PX, dim=1).repeat_interleave(COARSE_PX, dim=2)[:, :height, :width]
    return SegmentationBatch(
        pixels, torch.where(masks == classes, IGNORE, masks).to(torch.uint8).contiguous()
    )
