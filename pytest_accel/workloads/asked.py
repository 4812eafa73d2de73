"""Arguments that no model and no data can follow, refused before anything is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_accel.measure.errors import check_whole, did_you_mean
from pytest_accel.workloads.data.segmentation import IGNORE
from pytest_accel.workloads.models.build import task_of
from pytest_accel.workloads.models.catalogue import Asked, zoo_model
from pytest_accel.workloads.models.segmentation_layers import check_pooled_batch
from pytest_accel.workloads.optimizers import callable_name
from pytest_accel.workloads.tasks import task_of_data

if TYPE_CHECKING:
    from pytest_accel.workloads.choices import Choices
    from pytest_accel.workloads.feeding import Task
    from pytest_accel.workloads.plan import ModelTask

OF_IMAGES, OF_TOKENS = ("image_size",), ("sequence", "vocabulary")
SIZES = ("global_batch_size", "batch_size", "num_classes", *OF_IMAGES, *OF_TOKENS)
READ_TOKENS: tuple[ModelTask, ...] = ("language", "answering")
# What a model is built with whatever it is: a second value for one of them would be a TypeError.
NO_OPTIONS = ("device", "image_size", "model", "num_classes", "seed")


def check_asked(choices: Choices, *, task: Task, micro_batch_size: int | None) -> None:
    """Hold the arguments of a step against what is known of its model and its data."""
    for name in SIZES:
        check_whole(name, getattr(choices, name))
    reads = _task(choices)
    if reads is not None:
        _check_fitting_sizes(choices, reads)
    _check_options(choices)
    if isinstance(choices.model, str):
        # Of one device at once, under the name that the user has for it.
        argument = "batch_size" if micro_batch_size is None else "micro_batch_size"
        asked = Asked(
            image_size=choices.image_size,
            batch_size=micro_batch_size or choices.batch_size,
            batch_argument=argument,
            training=task == "train",
            options=choices.model_options,
        )
        _check_demands(choices.model, asked)


def _task(choices: Choices) -> ModelTask | None:
    """What the model is for; one of the user's own is for what its data is for."""
    if isinstance(choices.model, str):
        return task_of(choices.model)
    return task_of_data(choices.data)


def _check_fitting_sizes(choices: Choices, reads: ModelTask) -> None:
    name = callable_name(choices.model) if callable(choices.model) else choices.model
    what, others, own = (
        ("tokens", OF_IMAGES, "sequence=") if reads in READ_TOKENS else ("images", OF_TOKENS, "image_size=")
    )
    for argument in others:
        if getattr(choices, argument) is not None:
            raise ValueError(
                f"{argument}: {name} reads {what}, whose size is {own}. Leave {argument} out, or write {own} instead."
            )
    if reads == "segmentation" and (choices.num_classes or 0) > IGNORE:
        raise ValueError(
            f"num_classes: {choices.num_classes} are too many for masks of bytes, in which {IGNORE} says that a pixel "
            f"has no class. Valid: {IGNORE} or less."
        )


def _check_options(choices: Choices) -> None:
    """Hold model_options against the arguments of the model's builder, where it is one of the zoo's."""
    own = not isinstance(choices.model, str)
    for option, value in choices.model_options.items():
        if option in NO_OPTIONS:
            remedy = (
                f"Bind it: functools.partial(model, {option}={value!r})."
                if own
                else f"Write {option}={value!r} beside model_options."
            )
            raise ValueError(f"model_options: {option!r} is an argument of every step. {remedy}")
        if option in OF_TOKENS:
            check_whole(f"model_options: {option}", value)
    known_model = zoo_model(choices.model)
    if known_model is None:
        return
    valid = sorted(set(known_model.options) - set(NO_OPTIONS))
    for option in choices.model_options:
        if option not in valid:
            known = f"Valid: {', '.join(valid)}." if valid else "It has none."
            raise ValueError(
                f"model_options: {choices.model} does not take {option!r}.{did_you_mean(option, valid)} {known}"
            )


def _check_demands(model: str, asked: Asked) -> None:
    if (known := zoo_model(model)) is not None:
        known.check(asked)
    elif model.startswith("deeplabv3_") and asked.training:  # torchvision's
        check_pooled_batch(asked.batch_size, asked.batch_argument)
