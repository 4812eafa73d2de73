"""Detection: images with boxes, synthetic with the statistics of COCO, or COCO itself through a loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from pytest_accel.workloads.config import MEMORY_FORMATS, Configuration, Loss, StepConfig
from pytest_accel.workloads.data.detection import (
    COCO_CLASSES,
    MANY_SCALES,
    MAX_GT,
    ONE_SCALE,
    Bucket,
    BucketOrder,
    CocoSet,
    DetectionBatch,
    Resizing,
    open_coco,
    synthetic_detection,
)
from pytest_accel.workloads.data.files import IMAGENET_MEAN, IMAGENET_STD, Split
from pytest_accel.workloads.data.pixels import scale_and_shift
from pytest_accel.workloads.data.sources import Batch
from pytest_accel.workloads.input_pipeline import (
    InputPipeline,
    Plan,
    Sizes,
    files_configuration,
    no_smoothing,
    shape_name,
    through_loader,
)
from pytest_accel.workloads.models.detection import Predictions, Scenes, Targets, dino_loss

if TYPE_CHECKING:
    from pytest_accel.workloads.models.build import ModelInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenePlan(Plan):
    """Images padded to a few shapes, each with its boxes padded to one number."""

    name: str
    batch_size: int
    resizing: Resizing  # of photographs; its largest landscape bucket is the shape of synthetic images
    labels: int = COCO_CLASSES  # labels are in range(labels); a model may tell more apart
    max_gt: int = MAX_GT
    sources: ClassVar[tuple[str, ...]] = ("auto", "synthetic", "loader")
    decoders: ClassVar[tuple[str, ...]] = ("auto", "host")

    @classmethod
    def fit(cls, name: str, batch_size: int, info: ModelInfo, given: Sizes) -> Self:
        resizing = resizing_of(info.name, info.image_size)
        labels = given.num_classes or COCO_CLASSES
        return cls(name=name, batch_size=batch_size, resizing=resizing, labels=labels)

    @property
    def bucket(self) -> Bucket:
        landscape = [bucket for bucket in self.resizing.buckets if bucket[0] <= bucket[1]]
        return max(landscape, key=prod)

    @property
    def described(self) -> Configuration:
        return {"bucket": shape_name(*self.bucket), "labels": self.labels, "max_gt": self.max_gt}

    def draw(self, random: torch.Generator, dtype: torch.dtype, memory_format: str) -> Batch:
        drawn = synthetic_detection(
            self.batch_size, self.bucket, max_gt=self.max_gt, generator=random, classes=self.labels
        )
        return as_scenes(random.device, dtype, memory_format)(drawn)

    def loss(self, label_smoothing: float) -> tuple[str, Loss]:
        no_smoothing(label_smoothing, "detection")
        return "detection", detection_loss

    def find(self, root: Path | None, split: Split) -> CocoSet:
        return open_coco(root, split)

    def read(self, config: StepConfig, data: CocoSet) -> InputPipeline:
        most = int(data.labels.max(initial=0))
        if most >= self.labels:  # on CUDA a device-side assertion, which ends the process
            raise ValueError(
                f"num_classes: {self.labels} are too few for {self.name}, whose boxes here have labels up to {most}. "
                f"Leave num_classes out: the set has {COCO_CLASSES}."
            )
        resizing = self.resizing
        if not config.training:  # as detectors are evaluated
            resizing = replace(resizing, short_sides=(max(resizing.short_sides),))
        order = BucketOrder(
            sizes=data.sizes,
            resizing=resizing,
            batch_size=self.batch_size,
            rank=config.ranks.rank,
            world=config.ranks.size,
            seed=config.seed,
        )
        sampler = order.requests(augment=config.augment and config.training)
        arrive = as_scenes(config.device, config.dtype, config.memory_format)
        return InputPipeline(
            source=through_loader(config, data, sampler, arrive),
            configuration=files_configuration(config, images=len(data))
            | {
                "short_sides": f"{min(resizing.short_sides)} to {max(resizing.short_sides)}",
                "input_shape": " ".join(shape_name(3, *bucket) for bucket in resizing.buckets),
                "bucket": " ".join(shape_name(*bucket) for bucket in resizing.buckets),
                "max_gt": data.max_gt,
            },
            order=self.order(config, length=len(data)),  # for the length of an epoch alone
            varied=len(resizing.buckets) > 1,
        )


def resizing_of(model: str, image_size: int | None = None) -> Resizing:
    """Return DINO's own sizes, those of torchvision's detectors for all others, or squares of `image_size` pixels."""
    if image_size is not None:
        return Resizing(short_sides=(image_size,), longest=image_size, buckets=((image_size, image_size),))
    return MANY_SCALES if model.startswith("zoo/dino-") else ONE_SCALE


def detection_loss(output: Any, targets: Targets) -> torch.Tensor:
    """DINO's loss of Predictions; of a model that returns its losses by name, as torchvision's do in training, their sum."""
    if isinstance(output, Predictions):
        return dino_loss(output, targets)
    losses = list(output.values()) if isinstance(output, Mapping) else []
    if losses and all(isinstance(each, torch.Tensor) for each in losses):
        return torch.stack([each.float() for each in losses]).sum()
    raise TypeError(
        f"the model returned {type(output).__name__}, and detection needs a mapping of losses, each a scalar, or "
        "Predictions. Pass loss=, a callable of what it returned and the targets."
    )


def as_scenes(
    device: torch.device, dtype: torch.dtype, memory_format: str
) -> Callable[[DetectionBatch], Batch]:
    """Return a function that turns bytes and boxes on a device into what a detector reads, without waiting."""
    scale, shift = scale_and_shift(IMAGENET_MEAN, IMAGENET_STD, device=device, dtype=dtype)

    def arrive(batch: DetectionBatch) -> Batch:
        pixels, sizes, boxes, labels, valid = batch
        rows, columns = (torch.arange(extent, device=device) for extent in pixels.shape[-2:])
        inside = (rows < sizes[:, :1])[:, :, None] & (columns < sizes[:, 1:])[:, None, :]
        images = torch.addcmul(shift, pixels.to(dtype), scale) * inside[:, None]  # zeros in the padding
        targets = Targets(labels=labels, boxes=boxes, valid=valid)
        scenes = Scenes(images.contiguous(memory_format=MEMORY_FORMATS[memory_format]), sizes, targets)
        # Copies for the loss: compiled code is guarded on whether two arguments are the same tensor.
        return scenes, Targets(*(each.clone() for each in targets))

    return arrive
