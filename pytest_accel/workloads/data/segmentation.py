"""Segmentation data: Cityscapes, random scale and crop on the device, synthetic masks.

Bytes of whole images cross to the device; each image and its mask are scaled, cropped and mirrored there. The result has
one shape whatever was drawn, and nothing waits for the device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.nn import functional as F

from pytest_accel.workloads.data.encoded import PackedNames, pack, read_whole
from pytest_accel.workloads.data.errors import DataError, Split, missing, reading, unreadable
from pytest_accel.workloads.data.loader import ReadProblem
from pytest_accel.workloads.data.order import BatchRequest
from pytest_accel.workloads.data.pixels import decode_on_host, scale_and_shift
from pytest_accel.workloads.data.sets import IMAGENET_MEAN, IMAGENET_STD

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
IMAGE_SIZE = (1024, 2048)  # of every image of Cityscapes
REGION_PX = 128  # extent of the regions of synthetic masks, about
COARSE_PX = 4  # side of the squares that synthetic masks are made of: 1 of 16 pixels is computed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CityscapesSet:
    """The images of one split and their masks, in the order of their names."""

    folder: str
    part: str
    names: PackedNames  # "<city>/<city>_<sequence>_<frame>": what an image and its mask have in common

    def __len__(self) -> int:
        return len(self.names)

    def image_name(self, index: int) -> str:
        return str(Path(self.folder, IMAGES, self.part, self.names[index] + IMAGE_END))

    def mask_name(self, index: int) -> str:
        return str(Path(self.folder, MASKS, self.part, self.names[index] + MASK_END))

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        """Return an image, uint8 (3, height, width), and its classes, uint8 (height, width): 0 to 18, or 255."""
        image_name, mask_name = self.image_name(index), self.mask_name(index)
        image = decode_on_host(read_whole(image_name), image_name)
        ids = _label_ids(mask_name)
        if image.shape[1:] != ids.shape:
            size = f"{image.shape[1]} x {image.shape[2]}"
            problem = f"{ids.shape[0]} x {ids.shape[1]} pixels for an image of {size}"
            raise unreadable(mask_name, problem, REMEDY)
        return image, CLASS_OF_ID[ids.to(torch.int64)]


def _label_ids(name: str) -> Tensor:
    """Decode a mask unchanged: one channel, whose bytes are label ids."""
    from torchvision.io import ImageReadMode, decode_image

    try:
        ids = decode_image(read_whole(name), mode=ImageReadMode.UNCHANGED)
    except RuntimeError as error:
        if isinstance(error, DataError):
            raise
        problem = next(iter(str(error).splitlines()), "no reason given")
        raise unreadable(name, f"does not decode: {problem}", REMEDY) from None
    if ids.dim() != 3 or ids.shape[0] != 1 or ids.dtype != torch.uint8:
        raise unreadable(name, "not a PNG with one channel of 8 bits", "Valid: the *_labelIds.png of gtFine.")
    if (highest := int(ids.max())) >= LABEL_IDS:
        remedy = f"Valid: 0 to {LABEL_IDS - 1}. *_labelTrainIds.png has another numbering."
        raise unreadable(name, f"the label id {highest} is not known", remedy)
    return ids[0]


def open_cityscapes(root: Path, split: Split) -> CityscapesSet:
    """Index one split under `root/cityscapes`, or under the root itself; DataMissing where neither holds images.

    Each image must have its mask, and each mask its image.
    """
    folder = next((each for each in (root / "cityscapes", root) if (each / IMAGES).is_dir()), None)
    if folder is None:
        searched = [root / "cityscapes" / IMAGES, root / IMAGES]
        raise missing("cityscapes", searched, "Extract its archives there, or name another root.")
    part = CITYSCAPES_PARTS[split]
    images = set(_stems(folder / IMAGES / part, IMAGE_END))
    masks = set(_stems(folder / MASKS / part, MASK_END))
    if not images:
        raise unreadable(folder / IMAGES / part, f"holds no <city>/*{IMAGE_END}", REMEDY)
    for alone, here, there, end in (
        (images - masks, f"the image {IMAGES}", MASKS, MASK_END),
        (masks - images, f"the mask {MASKS}", IMAGES, IMAGE_END),
    ):
        if alone:
            first = min(alone)
            more = f", and so are {len(alone) - 1} more" if len(alone) > 1 else ""
            path = folder / there / part / (first + end)
            raise unreadable(path, f"missing{more}; {here}/{part}/{first}* is there", REMEDY)
    return CityscapesSet(folder=str(folder), part=part, names=pack(sorted(images)))


def _stems(folder: Path, end: str) -> Iterator[str]:
    """Yield "<city>/<name without its end>" of every file with this end."""
    with reading(folder), os.scandir(folder) as entries:
        cities = sorted(entry.name for entry in entries if entry.is_dir())
    for city in cities:
        with reading(folder / city), os.scandir(folder / city) as entries:
            names = [entry.name for entry in entries]
        yield from (f"{city}/{name.removesuffix(end)}" for name in names if name.endswith(end))


class SegmentationBatch(NamedTuple):
    """A batch as a worker makes it."""

    pixels: Tensor  # uint8 (batch, 3, height, width)
    masks: Tensor  # uint8 (batch, height, width): classes, or 255


class SegmentationReader:
    """Reads one batch in a loader's worker: decodes images and masks; errors name the sample."""

    def __init__(self, images: CityscapesSet, *, size: tuple[int, int] = IMAGE_SIZE) -> None:
        self._images = images
        self._size = size

    def __getitem__(self, wanted: BatchRequest) -> SegmentationBatch | ReadProblem:
        how_many = len(wanted.indices)
        pixels = torch.empty(how_many, 3, *self._size, dtype=torch.uint8)
        masks = torch.empty(how_many, *self._size, dtype=torch.uint8)
        try:
            for place, index in enumerate(wanted.indices):
                image, mask = self._images.read(index)
                self._check(mask, index)
                pixels[place], masks[place] = image, mask
        except DataError as error:
            return ReadProblem(str(error))
        return SegmentationBatch(pixels, masks)

    def _check(self, mask: Tensor, index: int) -> None:
        if tuple(mask.shape) != self._size:
            raise unreadable(
                self._images.image_name(index),
                f"{mask.shape[0]} x {mask.shape[1]} pixels, and a batch is of {self._size[0]} x {self._size[1]}",
                "Images of one set have one size: resize it, or take it out.",
            )


class Draws(NamedTuple):
    """Uniform draws for each image of a batch: float32 (batch,)."""

    scale: Tensor
    top: Tensor
    left: Tensor
    mirror: Tensor


class SegmentationTransform:
    """Convert bytes (batch, 3, height, width) and masks (batch, height, width) to normalized crops and int64 classes.

    A crop larger than its image is padded: with zeros, which is ImageNet's mean, and with 255 in the mask.
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
        self._crop = crop
        self._dtype = dtype
        self._memory_format = memory_format
        self._scales = scales
        self._mirror = mirror
        self._random = torch.Generator(device).manual_seed(seed)
        self._scale, self._shift = scale_and_shift(
            IMAGENET_MEAN, IMAGENET_STD, device=device, dtype=torch.float32
        )

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
        """Return the source position of each row (batch, height) and column (batch, width) of the crops.

        In pixels from the edge: 0.5 is the center of the first one. Beyond the far edge there is padding.
        """
        low, high = self._scales
        scale = low + draws.scale * (high - low)
        rows = _along(scale, draws.top, source=size[0], wanted=self._crop[0])
        columns = _along(scale, draws.left, source=size[1], wanted=self._crop[1])
        if self._mirror:
            # The source is mirrored, not the crop: padding stays at the right.
            columns = torch.where(draws.mirror[:, None] < 0.5, size[1] - columns, columns)
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
    count: int, size: tuple[int, int], *, generator: torch.Generator, classes: int = CITYSCAPES_CLASSES
) -> Tensor:
    """Draw masks of connected regions, uint8 (count, height, width), on the generator's device.

    Every class has a smooth random field, and a pixel has the class whose field is highest. One more field is the
    ignored class, which Cityscapes has too.
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
    count: int, size: tuple[int, int], *, generator: torch.Generator, classes: int = CITYSCAPES_CLASSES
) -> SegmentationBatch:
    """Draw a batch of noise with masks of regions, on the generator's device."""
    shape = (count, 3, *size)
    pixels = torch.randint(256, shape, dtype=torch.uint8, generator=generator, device=generator.device)
    return SegmentationBatch(pixels, synthetic_masks(count, size, generator=generator, classes=classes))
