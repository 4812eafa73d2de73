"""Segmentation: a class for every pixel, synthetic or crops of Cityscapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch.nn import functional as F

from pytest_accel.workloads.config import MEMORY_FORMATS, Configuration, Loss, StepConfig
from pytest_accel.workloads.data.files import IMAGENET_MEAN, IMAGENET_STD, Split
from pytest_accel.workloads.data.pixels import scale_and_shift
from pytest_accel.workloads.data.segmentation import (
    CITYSCAPES_CLASSES,
    IGNORE,
    CityscapesSet,
    CropReader,
    open_cityscapes,
    synthetic_segmentation,
)
from pytest_accel.workloads.data.sources import Batch
from pytest_accel.workloads.input_pipeline import (
    InputPipeline,
    Plan,
    Sizes,
    files_configuration,
    no_smoothing,
    through_loader,
)

if TYPE_CHECKING:
    from pytest_accel.workloads.models.build import ModelInfo

CROP = (512, 1024)  # where neither the model nor the user says one: the smaller of those of the studies
AUXILIARY_WEIGHT = 0.4  # of a second head's loss, as DeepLabV3+ is trained


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskPlan(Plan):
    """Crops of one size, with a class for each pixel or none."""

    name: str
    batch_size: int
    crop: tuple[int, int] = CROP  # height, width
    labels: int = CITYSCAPES_CLASSES  # not `classes`: the last dimension of the output is a width
    sources: ClassVar[tuple[str, ...]] = ("auto", "synthetic", "loader")
    decoders: ClassVar[tuple[str, ...]] = ("auto", "host")

    @classmethod
    def fit(cls, name: str, batch_size: int, info: ModelInfo, given: Sizes) -> Self:
        labels = given.num_classes or CITYSCAPES_CLASSES
        if labels > IGNORE:
            raise ValueError(
                f"num_classes: {labels} are too many for masks of bytes, in which {IGNORE} says that a pixel has no class. "
                f"Valid: {IGNORE} or less."
            )
        crop = (info.image_size, info.image_size) if info.image_size else info.crop or CROP
        return cls(name=name, batch_size=batch_size, crop=crop, labels=labels)

    @property
    def described(self) -> Configuration:
        return {"num_classes": self.labels, "ignored": IGNORE}

    def draw(self, random: torch.Generator, dtype: torch.dtype, memory_format: str) -> Batch:
        drawn = synthetic_segmentation(self.batch_size, self.crop, generator=random, classes=self.labels)
        return _normalizing(random.device, dtype, memory_format)(drawn)

    def loss(self, label_smoothing: float) -> tuple[str, Loss]:
        no_smoothing(label_smoothing, "segmentation")
        return "pixel_cross_entropy", _both_heads(self.labels)

    def find(self, root: Path | None, split: Split) -> CityscapesSet:
        return open_cityscapes(root, split)

    def read(self, config: StepConfig, data: CityscapesSet) -> InputPipeline:
        if self.labels < CITYSCAPES_CLASSES:
            raise ValueError(
                f"num_classes: {self.labels} are too few for {self.name}, whose masks have {CITYSCAPES_CLASSES}. "
                "Leave it out."
            )
        order = self.order(config, length=len(data))
        sampler = order.requests(augment=config.augment and config.training)
        arrive = _normalizing(config.device, config.dtype, config.memory_format)
        return InputPipeline(
            source=through_loader(config, CropReader(images=data, crop=self.crop), sampler, arrive),
            configuration=files_configuration(config, images=len(data)),
            order=order,
        )


def _normalizing(
    device: torch.device, dtype: torch.dtype, memory_format: str
) -> Callable[[tuple[Any, Any]], Batch]:
    """Return a function that turns bytes and classes on a device into images and targets."""
    scale, shift = scale_and_shift(IMAGENET_MEAN, IMAGENET_STD, device=device, dtype=torch.float32)

    def arrive(batch: tuple[Any, Any]) -> Batch:
        images = torch.addcmul(shift, batch[0].to(torch.float32), scale)
        return images.to(dtype, memory_format=MEMORY_FORMATS[memory_format]), batch[1].to(torch.int64)

    return arrive


def _both_heads(labels: int) -> Loss:
    def pixel_cross_entropy(output: Any, masks: Any) -> Any:
        main, auxiliary = _heads(output)
        loss = _cross_entropy(main, masks, labels)
        return (
            loss if auxiliary is None else loss + AUXILIARY_WEIGHT * _cross_entropy(auxiliary, masks, labels)
        )

    return pixel_cross_entropy


def _heads(output: Any) -> tuple[Any, Any]:
    """Return the logits of the main head and of the auxiliary one, or None."""
    if isinstance(output, torch.Tensor):
        return output, None
    if isinstance(output, Mapping) and "out" in output:  # torchvision's
        return output["out"], output.get("aux")
    if isinstance(output, tuple) and len(output) == 2:
        return output[0], output[1]
    raise TypeError(
        f"the model returned {type(output).__name__}, and segmentation needs logits (batch, classes, height, width), or "
        "a tuple of the main head's and an auxiliary one's. Pass loss=, a callable of what it returned and the masks."
    )


def _cross_entropy(logits: Any, masks: Any, labels: int) -> Any:
    """Return the mean over the pixels that have a class; 0, and not NaN, where none has.

    Over dimension 1: flattened like a classifier's, the largest tensor of a step would be copied to bring classes last.
    """
    wanted = (len(masks), *masks.shape[1:])
    if logits.dim() != 4 or (len(logits), *logits.shape[2:]) != wanted or logits.shape[1] < labels:
        raise ValueError(
            f"the model returned logits of {tuple(logits.shape)} for masks of {wanted} with {labels} classes. Valid: "
            "(batch, classes, height, width), as large as the input and with as many classes or more."
        )
    total = F.cross_entropy(logits, masks, ignore_index=IGNORE, reduction="sum")
    return total / (masks != IGNORE).sum().clamp(min=1)
