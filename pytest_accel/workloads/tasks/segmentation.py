"""Segmentation: a class for every pixel, synthetic or crops of Cityscapes in a random scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from pytest_accel.workloads.config import MEMORY_FORMATS, Configuration, Loss, StepConfig
from pytest_accel.workloads.data import files
from pytest_accel.workloads.data.loader import BatchRequest
from pytest_accel.workloads.data.pixels import decode_on_host, resize_on_host, scale_and_shift
from pytest_accel.workloads.data.sources import Batch, LoaderSource
from pytest_accel.workloads.input_pipeline import InputPipeline, ModelInfo, Plan, Sizes

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CityscapesSet:
    """The images of one split, in the order of their names; each has a mask."""

    paths: tuple[str, ...]  # of the images

    def __len__(self) -> int:
        return len(self.paths)

    def mask_path(self, index: int) -> str:
        """Return the mask's path: `gtFine/train/aachen/..._labelIds.png` for `leftImg8bit/train/aachen/...`."""
        root, _, name = self.paths[index].rpartition(f"/{IMAGES}/")
        return f"{root}/{MASKS}/{name.removesuffix(IMAGE_END)}{MASK_END}"

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        """Return an image, uint8 (3, height, width), and its classes, uint8 (height, width): 0 to 18, or 255."""
        path, mask_path = self.paths[index], self.mask_path(index)
        image = decode_on_host(files.read_bytes(path), path)
        ids = decode_on_host(files.read_bytes(mask_path), mask_path, mode="UNCHANGED")
        if ids.shape != (1, *image.shape[1:]) or int(ids.max()) >= LABEL_IDS:
            problem = f"not one label id below {LABEL_IDS} for each of the {image.shape[1]} x {image.shape[2]} pixels"
            raise files.unreadable(mask_path, problem, REMEDY)
        return image, CLASS_OF_ID[ids[0].to(torch.int64)]


def open_cityscapes(root: Path | None, split: files.Split) -> CityscapesSet:
    """Index one split under `root/cityscapes`; DataMissing where it holds no images."""
    folder = files.find_folder(root, "cityscapes", f"cityscapes/{IMAGES}") / CITYSCAPES_PARTS[split]
    with files.reading(folder):
        paths = sorted(map(str, folder.glob(f"*/*{IMAGE_END}")))
    if not paths:
        raise files.unreadable(folder, f"holds no <city>/*{IMAGE_END}", REMEDY)
    return CityscapesSet(paths=tuple(paths))


@dataclass(frozen=True, slots=True, kw_only=True)
class CropReader:
    """A loader's reader of crops of one size: uint8 (batch, 3, height, width) and classes (batch, height, width).

    A crop larger than its image is padded, right and bottom: with black, and with 255 in the mask.
    """

    images: CityscapesSet
    crop: tuple[int, int]  # height, width

    def __getitem__(self, wanted: BatchRequest) -> tuple[Tensor, Tensor]:
        pixels = torch.zeros(len(wanted.indices), 3, *self.crop, dtype=torch.uint8)
        masks = torch.full((len(wanted.indices), *self.crop), IGNORE, dtype=torch.uint8)
        for place, index in enumerate(wanted.indices):
            image, classes = self.images.read(index)
            random = None if wanted.seed is None else Random(wanted.seed + place)  # noqa: S311 - no secret
            scale = 1.0 if random is None else random.uniform(*SCALES)
            sides = zip(classes.shape, self.crop, strict=True)
            (rows, height), (columns, width) = (_part(*side, scale, random) for side in sides)
            image = resize_on_host(image[:, rows, columns], (height, width))
            classes = F.interpolate(classes[None, None, rows, columns], (height, width))[0, 0]
            if random is not None and random.random() < 0.5:
                image, classes = image.flip(-1), classes.flip(-1)
            pixels[place, :, :height, :width], masks[place, :height, :width] = image, classes
        return pixels, masks


def _part(extent: int, wanted: int, scale: float, random: Random | None) -> tuple[slice, int]:
    """Return the part of one side of an image that fills a crop, and its scaled extent; without a generator, the middle."""
    taken = min(extent, max(1, round(wanted / scale)))
    room = extent - taken
    begin = room // 2 if random is None else random.randint(0, room)
    filled = wanted if taken < extent else min(wanted, max(1, round(taken * scale)))
    return slice(begin, begin + taken), filled


def synthetic_segmentation(
    count: int, size: tuple[int, int], *, generator: torch.Generator, classes: int = CITYSCAPES_CLASSES
) -> tuple[Tensor, Tensor]:
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
    return pixels, torch.where(masks == classes, IGNORE, masks).to(torch.uint8).contiguous()


CROP = (512, 1024)  # where neither the model nor the user specifies one: the smaller of those of the studies
AUXILIARY_WEIGHT = 0.4  # of a second head's loss, as DeepLabV3+ is trained


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskPlan(Plan):
    """Crops of one size, with a class for each pixel or none."""

    crop: tuple[int, int] = CROP  # height, width
    labels: int = CITYSCAPES_CLASSES  # not `classes`: the last dimension of the output is a width
    sources: ClassVar[tuple[str, ...]] = ("auto", "synthetic", "loader")
    decoders: ClassVar[tuple[str, ...]] = ("auto", "host")

    @classmethod
    def fit(cls, name: str, batch_size: int, info: ModelInfo, given: Sizes) -> Self:
        labels = given.num_classes or CITYSCAPES_CLASSES
        crop = (info.image_size, info.image_size) if info.image_size else info.crop or CROP
        return cls(name=name, batch_size=batch_size, crop=crop, labels=labels)

    @property
    def described(self) -> Configuration:
        return {"num_classes": self.labels, "ignored": IGNORE}

    def draw(self, random: torch.Generator, dtype: torch.dtype, memory_format: str) -> Batch:
        drawn = synthetic_segmentation(self.batch_size, self.crop, generator=random, classes=self.labels)
        return _normalizing(random.device, dtype, memory_format)(drawn)

    def loss(self, label_smoothing: float) -> tuple[str, Loss]:
        self.no_smoothing(label_smoothing, "segmentation")
        return "pixel_cross_entropy", _both_heads(self.labels)

    find = staticmethod(open_cityscapes)

    def read(self, config: StepConfig, data: CityscapesSet) -> InputPipeline:
        self.check_labels(self.labels, 0, CITYSCAPES_CLASSES - 1)
        order = self.order(config, length=len(data))
        sampler = order.requests(augment=config.augment and config.training)
        arrive = _normalizing(config.device, config.dtype, config.memory_format)
        batches = self.host_batches(config, CropReader(images=data, crop=self.crop), sampler)
        return InputPipeline(
            source=LoaderSource(batches, arrive, config.device),
            configuration=self.configuration(config, "files", images=len(data)),
            order=order,
        )


def _normalizing(
    device: torch.device, dtype: torch.dtype, memory_format: str
) -> Callable[[tuple[Any, Any]], Batch]:
    """Return a function that turns bytes and classes on a device into images and targets."""
    scale, shift = scale_and_shift(
        files.IMAGENET_MEAN, files.IMAGENET_STD, device=device, dtype=torch.float32
    )

    def arrive(batch: tuple[Any, Any]) -> Batch:
        images = torch.addcmul(shift, batch[0].to(torch.float32), scale)
        return images.to(dtype, memory_format=MEMORY_FORMATS[memory_format]), batch[1].to(torch.int64)

    return arrive


def _both_heads(labels: int) -> Loss:
    def pixel_cross_entropy(output: Any, masks: Any) -> Any:
        if isinstance(output, Mapping):  # torchvision's
            output = output.get("out"), output.get("aux")
        main, auxiliary = output if isinstance(output, tuple) and len(output) == 2 else (output, None)
        loss = _cross_entropy(main, masks, labels)
        return (
            loss if auxiliary is None else loss + AUXILIARY_WEIGHT * _cross_entropy(auxiliary, masks, labels)
        )

    return pixel_cross_entropy


def _cross_entropy(logits: Any, masks: Any, labels: int) -> Any:
    """Return the mean over the pixels that have a class; 0, and not NaN, where none has.

    Over dimension 1: flattened like a classifier's, the largest tensor of a step would be copied to bring classes last.
    """
    shape = tuple(getattr(logits, "shape", ()))
    if len(shape) != 4 or (shape[0], *shape[2:]) != tuple(masks.shape) or shape[1] < labels:
        raise TypeError(
            f"the model returned {type(logits).__name__} of {shape} for masks of {tuple(masks.shape)}, and segmentation needs "
            f"logits (batch, {labels} classes or more, height, width), or a tuple of the main head's and an auxiliary "
            "one's. Pass loss=, a callable of what it returned and the masks."
        )
    total = F.cross_entropy(logits, masks, ignore_index=IGNORE, reduction="sum")
    return total / (masks != IGNORE).sum().clamp(min=1)
