"""Images with boxes: synthetic ones with the statistics of COCO's, or COCO itself through a loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import torch

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
from pytest_accel.workloads.data.errors import Split, existing_root
from pytest_accel.workloads.data.sources import Batch
from pytest_accel.workloads.detection.batch import Scenes, Targets
from pytest_accel.workloads.detection.loss import DinoLoss, Predictions
from pytest_accel.workloads.feeding import (
    MEMORY_FORMATS,
    DataChoices,
    Destination,
    Facts,
    Feed,
    Task,
    files_facts,
    loaded,
    opened,
    split_of,
)
from pytest_accel.workloads.plan import NamedLoss, Plan, no_smoothing

DATA = "coco"
_OVER_SETS = DinoLoss()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenePlan(Plan):
    """Images padded to a few shapes, each with its boxes padded to one number."""

    name: str
    batch_size: int
    resizing: Resizing  # of photographs; its largest bucket that lies is the shape of synthetic images
    classes: int = COCO_CLASSES  # labels are in range(classes)
    max_gt: int = MAX_GT
    unit: ClassVar[str] = "images"

    @property
    def bucket(self) -> Bucket:
        lying = [bucket for bucket in self.resizing.buckets if bucket[0] <= bucket[1]]
        return max(lying, key=prod)

    @property
    def work(self) -> int:
        return self.batch_size

    @property
    def input_shape(self) -> str:
        return _shape(3, *self.bucket)

    @property
    def described(self) -> Facts:
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

    def feed(self, choices: DataChoices, to: Destination, *, task: Task) -> Feed:
        _check(choices)
        images = opened(choices, lambda root: _open(root, split_of(task)))
        if images is None:
            if choices.source == "loader" or choices.workers is not None:
                raise ValueError(
                    f"source: a loader reads files, and {self.name} is not here. Name its root with --accel-data, "
                    "or leave source and workers out."
                )
            if choices.decode != "auto":
                raise ValueError(
                    "decode: synthetic images are not encoded. Leave it out, or give --accel-data."
                )
            return self.synthetic(to)
        return _loaded(choices, self, to, images, task=task)


def plan_scenes(
    name: str,
    *,
    batch_size: int,
    model: str | None = None,
    image_size: int | None = None,
    classes: int | None = None,
) -> ScenePlan:
    """Plan for photographs in the sizes that a model is trained on, or in squares of `image_size` pixels.

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


def detection_loss(output: Any, targets: Targets) -> torch.Tensor:  # noqa: ANN401 - whatever a model returns
    """DINO's loss of Predictions; of a model that returns its losses by name, as torchvision's do in training, their sum."""
    if isinstance(output, Predictions):
        return _OVER_SETS(output, targets)
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
    """Return what turns bytes and boxes on a device into what a detector reads."""
    finish = DetectionTransform(device=device, dtype=dtype, memory_format=MEMORY_FORMATS[memory_format])

    def arrive(batch: DetectionBatch) -> Batch:
        images, sizes, boxes, labels, valid = finish(batch)
        targets = Targets(labels=labels, boxes=boxes, valid=valid)
        # Copies for the loss: compiled code is guarded on two arguments being one, and they are not always.
        return Scenes(images, sizes, targets), Targets(*(each.clone() for each in targets))

    return arrive


def _check(choices: DataChoices) -> None:
    if choices.source == "resident":
        raise ValueError("source: photographs are too large to be resident on a device. Leave source out.")
    if choices.decode == "device":
        raise ValueError(
            "decode: detection's images are decoded by the loader, on the host. Write 'host', or leave it out."
        )


def _open(root: Path | None, split: Split) -> CocoSet:
    return open_coco(existing_root(root, DATA), split)


def _loaded(choices: DataChoices, plan: ScenePlan, to: Destination, images: CocoSet, *, task: Task) -> Feed:
    _check_labels(images, plan)
    augment = choices.augment and task == "train"
    resizing = plan.resizing
    if task == "infer":  # as detectors are tested
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
    reader, sampler = DetectionReader(images, max_gt=max_gt), order.requests(augment=augment)
    arrive = as_scenes(to.device, to.dtype, to.memory_format)
    facts = files_facts(choices, images=len(images), task=task)
    facts["short_sides"] = f"{min(resizing.short_sides)} to {max(resizing.short_sides)}"
    # The plan names the largest bucket, and room for boxes that it guessed.
    facts["input_shape"] = " ".join(_shape(3, *bucket) for bucket in resizing.buckets)
    facts["bucket"] = " ".join(_shape(*bucket) for bucket in resizing.buckets)
    facts["max_gt"] = max_gt
    return Feed(
        source=loaded(choices, to, reader, sampler, arrive),
        configuration=facts,
        order=plan.order(to, length=len(images)),  # for the length of an epoch alone
        varied=len(resizing.buckets) > 1,
    )


def _check_labels(images: CocoSet, plan: ScenePlan) -> None:
    """A label outside the model's classes is a device-side assertion on CUDA, which ends the process."""
    most = int(images.labels.max(initial=0))
    if most >= plan.classes:
        raise ValueError(
            f"num_classes: {plan.classes} are too few for {plan.name}, whose boxes here have labels up to {most}. "
            f"Leave num_classes out: the set has {COCO_CLASSES}."
        )


def _shape(*sizes: int) -> str:
    return "x".join(map(str, sizes))
