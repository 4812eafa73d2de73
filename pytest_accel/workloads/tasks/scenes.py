"""Detection: images with boxes, synthetic with the statistics of COCO, or COCO itself through a loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import torch

from pytest_accel.workloads.config import MEMORY_FORMATS, Configuration, StepConfig
from pytest_accel.workloads.data.detection import (
    COCO_CLASSES,
    MANY_SCALES,
    MAX_GT,
    ONE_SCALE,
    Bucket,
    BucketOrder,
    CocoSet,
    DetectionBatch,
    DetectionReader,
    DetectionTransform,
    Resizing,
    max_gt_of,
    open_coco,
    synthetic_detection,
)
from pytest_accel.workloads.data.errors import existing_root
from pytest_accel.workloads.data.sources import Batch
from pytest_accel.workloads.input_pipeline import (
    Destination,
    InputPipeline,
    NamedLoss,
    Plan,
    check_pipeline,
    check_synthetic,
    files_configuration,
    no_smoothing,
    open_real_data,
    split_of,
    through_loader,
)
from pytest_accel.workloads.models.detection import DinoLoss, Predictions, Scenes, Targets

_DINO_LOSS = DinoLoss()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenePlan(Plan):
    """Images padded to a few shapes, each with its boxes padded to one number."""

    name: str
    batch_size: int
    resizing: Resizing  # of photographs; its largest landscape bucket is the shape of synthetic images
    classes: int = COCO_CLASSES  # labels are in range(classes)
    max_gt: int = MAX_GT
    unit: ClassVar[str] = "images"

    @property
    def bucket(self) -> Bucket:
        landscape = [bucket for bucket in self.resizing.buckets if bucket[0] <= bucket[1]]
        return max(landscape, key=prod)

    @property
    def work(self) -> int:
        return self.batch_size

    @property
    def input_shape(self) -> str:
        return _shape(3, *self.bucket)

    @property
    def described(self) -> Configuration:
        return {
            "bucket": _shape(*self.bucket),
            "labels": self.classes,  # a model may tell more apart
            "max_gt": self.max_gt,
        }

    def draw(self, random: torch.Generator, dtype: torch.dtype, memory_format: str) -> Batch:
        drawn = synthetic_detection(
            self.batch_size, self.bucket, max_gt=self.max_gt, generator=random, classes=self.classes
        )
        return as_scenes(random.device, dtype, memory_format)(drawn)

    def on_meta(self) -> Batch:
        size = (self.batch_size, self.max_gt)
        with torch.device("meta"):
            targets = Targets(
                labels=torch.empty(size, dtype=torch.long),
                boxes=torch.empty(*size, 4),
                valid=torch.empty(size, dtype=torch.bool),
            )
            images = torch.empty(self.batch_size, 3, *self.bucket)
            return Scenes(images, torch.empty(self.batch_size, 2, dtype=torch.long), targets), targets

    def batch_bytes(self, dtype: torch.dtype) -> int:
        return self.batch_size * 3 * prod(self.bucket) * dtype.itemsize

    def loss(self, label_smoothing: float) -> NamedLoss:
        no_smoothing(label_smoothing, "detection")
        return NamedLoss("detection", detection_loss)

    def open(self, config: StepConfig, to: Destination) -> InputPipeline:
        check_pipeline(config, self.name, sources=("auto", "synthetic", "loader"), decoders=("auto", "host"))
        images = open_real_data(config, lambda root: open_coco(existing_root(root, "coco"), split_of(config)))
        if images is not None:
            return _real(config, self, to, images)
        check_synthetic(config, self.name)
        return self.synthetic(to)


def plan_scenes(
    name: str,
    *,
    batch_size: int,
    model: str | None = None,
    image_size: int | None = None,
    classes: int | None = None,
) -> ScenePlan:
    """Return the plan of photographs in the sizes that a model is trained on, or in squares of `image_size` pixels.

    DINO has its own sizes. All others have those of torchvision's detectors, a user's own too.
    """
    resizing = MANY_SCALES if model is not None and model.startswith("zoo/dino-") else ONE_SCALE
    if image_size is not None:
        square = (image_size, image_size)
        resizing = Resizing(short_sides=(image_size,), longest=image_size, buckets=(square,))
    return ScenePlan(
        name=name,
        batch_size=batch_size,
        resizing=resizing,
        classes=classes or COCO_CLASSES,
    )


def detection_loss(output: Any, targets: Targets) -> torch.Tensor:
    """DINO's loss of Predictions; of a model that returns its losses by name, as torchvision's do in training, their sum."""
    if isinstance(output, Predictions):
        return _DINO_LOSS(output, targets)
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
    """Return a function that turns bytes and boxes on a device into what a detector reads."""
    finish = DetectionTransform(device=device, dtype=dtype, memory_format=MEMORY_FORMATS[memory_format])

    def arrive(batch: DetectionBatch) -> Batch:
        images, sizes, boxes, labels, valid = finish(batch)
        targets = Targets(labels=labels, boxes=boxes, valid=valid)
        # Copies for the loss: compiled code is guarded on whether two arguments are the same tensor.
        return Scenes(images, sizes, targets), Targets(*(each.clone() for each in targets))

    return arrive


def _real(config: StepConfig, plan: ScenePlan, to: Destination, images: CocoSet) -> InputPipeline:
    _check_labels(images, plan)
    resizing = plan.resizing
    if not config.training:  # as detectors are evaluated
        resizing = replace(resizing, short_sides=(max(resizing.short_sides),))
    order = BucketOrder(
        sizes=images.sizes,
        resizing=resizing,
        batch_size=plan.batch_size,
        rank=to.ranks.rank,
        world=to.ranks.size,
        seed=to.seed,
    )
    max_gt = max_gt_of(images)
    reader, sampler = (
        DetectionReader(images, max_gt=max_gt),
        order.requests(augment=config.augment and config.training),
    )
    arrive = as_scenes(to.device, to.dtype, to.memory_format)
    configuration = files_configuration(config, images=len(images)) | {
        "short_sides": f"{min(resizing.short_sides)} to {max(resizing.short_sides)}",
        "input_shape": " ".join(_shape(3, *bucket) for bucket in resizing.buckets),
        "bucket": " ".join(_shape(*bucket) for bucket in resizing.buckets),
        "max_gt": max_gt,
    }
    return InputPipeline(
        source=through_loader(config, to, reader, sampler, arrive),
        configuration=configuration,
        order=plan.order(to, length=len(images)),  # for the length of an epoch alone
        varied=len(resizing.buckets) > 1,
    )


def _check_labels(images: CocoSet, plan: ScenePlan) -> None:
    """Refuse labels that the model has no class for: on CUDA a device-side assertion, which ends the process."""
    most = int(images.labels.max(initial=0))
    if most >= plan.classes:
        raise ValueError(
            f"num_classes: {plan.classes} are too few for {plan.name}, whose boxes here have labels up to {most}. "
            f"Leave num_classes out: the set has {COCO_CLASSES}."
        )


def _shape(*sizes: int) -> str:
    return "x".join(map(str, sizes))
