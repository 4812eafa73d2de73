"""Tasks: one module each with the plan of its batches, its loss and its real data."""

from __future__ import annotations

from pytest_accel.measure.errors import unknown_value
from pytest_accel.workloads.data.sets import IMAGE_SETS
from pytest_accel.workloads.input_pipeline import ModelTask

_IMAGES = ("imagenet", *(name for name in IMAGE_SETS if name != "imagenet"))
# Data that a model of a task reads, the default first
DATA_OF: dict[ModelTask, tuple[str, ...]] = {
    "classification": _IMAGES,
    "reconstruction": _IMAGES,
    "detection": ("coco",),
    "segmentation": ("cityscapes",),
    "language": ("tokens", "oscar"),
    "answering": ("squad",),
}
DATA_NAMES = tuple(dict.fromkeys(name for names in DATA_OF.values() for name in names))


def check_data(name: str | None) -> None:
    if name is not None and name not in DATA_NAMES:
        remedy = "The name gives the shape of what a step reads, synthetic or not."
        raise unknown_value("data", name, DATA_NAMES, remedy=remedy)


def task_of_data(name: str | None) -> ModelTask | None:
    """Return the task of a data set; None of one that is not known."""
    return next((task for task, names in DATA_OF.items() if name in names), None)
