"""A room for every task: what its batches are, where real ones come from, what is minimised.

Each file has a Plan. What fits which model is decided here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pytest_accel.measure.errors import check_whole, unknown_value
from pytest_accel.workloads.data.sets import IMAGE_SETS
from pytest_accel.workloads.tasks.images import ImagePlan
from pytest_accel.workloads.tasks.masks import plan_masks
from pytest_accel.workloads.tasks.questions import plan_questions
from pytest_accel.workloads.tasks.scenes import plan_scenes
from pytest_accel.workloads.tasks.tokens import TokenPlan

if TYPE_CHECKING:
    from pytest_accel.workloads.data.sources import Batch
    from pytest_accel.workloads.models.build import ModelInfo
    from pytest_accel.workloads.plan import ModelTask, Plan

# The names of data that a model of a task reads, the default first.
DATA_OF: dict[ModelTask, tuple[str, ...]] = {
    "classification": ("imagenet", *(name for name in IMAGE_SETS if name != "imagenet")),
    "reconstruction": ("imagenet", *(name for name in IMAGE_SETS if name != "imagenet")),
    "detection": ("coco",),
    "segmentation": ("cityscapes",),
    "language": ("tokens", "oscar"),
    "answering": ("squad",),
}
DATA_NAMES = tuple(dict.fromkeys(name for names in DATA_OF.values() for name in names))


def plan_data(
    data: str | None,
    info: ModelInfo,
    *,
    batch_size: int,
    num_classes: int | None = None,
    sequence: int | None = None,
    vocabulary: int | None = None,
) -> Plan:
    """Fit a named data set to a model: its input size, its channels, its vocabulary."""
    name = data or DATA_OF[info.task][0]
    check_data(name, batch_size=batch_size)
    task = _task(name, info)
    if task == "detection":
        return plan_scenes(
            name, batch_size=batch_size, model=info.name, image_size=info.image_size, classes=num_classes
        )
    if task == "segmentation":
        return plan_masks(
            name, batch_size=batch_size, image_size=info.image_size, crop=info.crop, labels=num_classes
        )
    if task == "language":
        return _tokens(name, info, batch_size=batch_size, sequence=sequence, vocabulary=vocabulary)
    if task == "answering":
        return plan_questions(
            name, batch_size=batch_size, model=info, sequence=sequence, vocabulary=vocabulary
        )
    images = IMAGE_SETS[name]
    size = info.image_size or images.image_size
    return ImagePlan(
        name=name,
        batch_size=batch_size,
        classes=num_classes or images.classes,
        shape=(info.channels or images.channels, size, size),
        reconstructs=info.task == "reconstruction",
    )


def check_data(name: str | None, *, batch_size: int) -> None:
    """Refuse an unknown data set or an impossible batch, before a model is built for it."""
    if name is not None and name not in DATA_NAMES:
        raise unknown_value(
            "data",
            name,
            DATA_NAMES,
            remedy="The name gives the shape of what a step reads, synthetic or not.",
        )
    check_whole("batch_size", batch_size)


def task_of_data(name: str | None) -> ModelTask | None:
    """Return what a data set is for; None of one that is not known."""
    return next((task for task, names in DATA_OF.items() if name in names), None)


def _task(name: str, info: ModelInfo) -> ModelTask:
    """Return the task that a data set is for; a model of the user's own has the one of its data."""
    if name in DATA_OF[info.task]:
        return info.task
    if info.own and (task := task_of_data(name)) is not None:
        return task
    valid = ", ".join(DATA_OF[info.task])
    raise ValueError(f"data: {name!r} does not fit {info.name}, a model for {info.task}. Valid: {valid}.")


def _tokens(
    name: str, info: ModelInfo, *, batch_size: int, sequence: int | None, vocabulary: int | None
) -> TokenPlan:
    sequence, vocabulary = sequence or info.sequence, vocabulary or info.vocabulary
    if not sequence or not vocabulary:
        raise ValueError(
            f"data: {name!r} for {info.name} needs sequence= and vocabulary=: the model does not say them."
        )
    return TokenPlan(name=name, batch_size=batch_size, vocabulary=vocabulary, sequence=sequence)


def make_batch(
    data: str,
    *,
    batch_size: int,
    device: torch.device,
    image_size: int | None = None,
    sequence: int | None = None,
    vocabulary: int | None = None,
    seed: int = 0,
    rank: int = 0,
) -> Batch:
    """Make one batch for a model of one's own: inputs and targets, in fp32 or as token numbers."""
    check_data(data, batch_size=batch_size)
    for argument, size in (("image_size", image_size), ("sequence", sequence), ("vocabulary", vocabulary)):
        check_whole(argument, size)
    plan: Plan
    if data in DATA_OF["language"]:
        if not (sequence and vocabulary):
            raise ValueError(f"data: {data!r} needs sequence= and vocabulary=.")
        plan = TokenPlan(name=data, batch_size=batch_size, vocabulary=vocabulary, sequence=sequence)
    elif data in DATA_OF["detection"]:
        plan = plan_scenes(data, batch_size=batch_size, image_size=image_size)
    elif data in DATA_OF["segmentation"]:
        plan = plan_masks(data, batch_size=batch_size, image_size=image_size)
    elif data in DATA_OF["answering"]:
        plan = plan_questions(data, batch_size=batch_size, sequence=sequence, vocabulary=vocabulary)
    else:
        images = IMAGE_SETS[data]
        size = image_size or images.image_size
        shape = (images.channels, size, size)
        plan = ImagePlan(name=data, batch_size=batch_size, classes=images.classes, shape=shape)
    return plan.make(0, seed=seed, rank=rank, device=device, dtype=torch.float32, memory_format="contiguous")
