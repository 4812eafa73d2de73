"""Building of a step: from its keywords to a model and batches on the device, with every choice resolved."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pytest_accel.measure.arguments import check_whole, unknown_value
from pytest_accel.measure.device import widen_device_queues
from pytest_accel.workloads.compile import check_compile, compiled_apart, resolve_compile
from pytest_accel.workloads.config import MEMORY_FORMATS, Configuration, StepConfig, callable_name
from pytest_accel.workloads.data.files import IMAGE_SETS, ImageSet
from pytest_accel.workloads.data.images import open_images
from pytest_accel.workloads.data.sources import Batch
from pytest_accel.workloads.demand import check_fits, output_classes
from pytest_accel.workloads.input_pipeline import InputPipeline, ModelInfo, ModelTask, Plan, Sizes
from pytest_accel.workloads.kernels import check_tuned, replace_slow_layers
from pytest_accel.workloads.models.build import build_model, check_model_options, task_of
from pytest_accel.workloads.optimizers import check_updates
from pytest_accel.workloads.parallel import check_sharding
from pytest_accel.workloads.tasks.detection import ScenePlan, open_coco
from pytest_accel.workloads.tasks.images import ImagePlan
from pytest_accel.workloads.tasks.segmentation import MaskPlan, open_cityscapes
from pytest_accel.workloads.tasks.text import QuestionPlan, TokenPlan, open_tokens

# Data that a model of a task reads, the default first
_IMAGES = ("imagenet", *(name for name in IMAGE_SETS if name != "imagenet"))
PLANS: dict[ModelTask, tuple[type[Plan], tuple[str, ...]]] = {
    "classification": (ImagePlan, _IMAGES),
    "reconstruction": (ImagePlan, _IMAGES),
    "detection": (ScenePlan, ("coco",)),
    "segmentation": (MaskPlan, ("cityscapes",)),
    "language": (TokenPlan, ("tokens", "oscar")),
    "answering": (QuestionPlan, ("squad",)),
}
DATA_OF = {task: names for task, (_, names) in PLANS.items()}
DATA_NAMES = tuple(dict.fromkeys(name for names in DATA_OF.values() for name in names))
# Increase it when the work of a step changes under the same keywords, or the layers that do it: stored baselines are stale
# then. 2: models have the layers of their library.
DEFINITION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    config: StepConfig  # with every choice resolved
    model: nn.Module
    info: ModelInfo
    plan: Plan  # of a micro-batch, where a step takes several
    pipeline: InputPipeline
    configuration: Configuration


def assemble(config: StepConfig) -> Parts:
    device = config.device
    if device.type == "cuda":
        widen_device_queues()
    check_data(config.data)
    checks = (check_sharding, check_updates, _check_sizes, check_model_options, check_compile, check_tuned)
    for check in checks:
        check(config)
    options = _model_options(config)
    # Without room for all of it, a sharded model is built on the meta device and initialized shard by shard.
    on_device = check_fits(config, options) or config.sharding is None
    images, classes = _image_set(config), config.num_classes
    model, info = build_model(
        config.model,
        seed=config.seed,
        num_classes=images.classes if images and classes is None else classes,
        image_size=config.image_size,
        device=device if on_device else torch.device("meta"),
        **options,
    )
    _check_parameters(config.millions, info)
    plan = _plan(config, model, info)
    config = replace(config, memory_format=_memory_format(config, info))
    model = model.to(memory_format=MEMORY_FORMATS[config.memory_format]).train(config.training)
    if not (config.training and config.autocast):
        model = model.to(config.dtype)
    pipeline = plan.open(config)
    if config.replay and pipeline.varied:
        pipeline.source.close()
        raise ValueError("replay: batches differ in shape here, and one is recorded. Leave replay out.")
    mode, replay = resolve_compile(config, model, info, plan, pipeline)
    config = replace(config, compile=mode, replay=replay)
    if config.tuned:
        replace_slow_layers(model)
    configuration: Configuration = {
        "definition": DEFINITION,
        "task": config.task,
        "model": info.name,
        "parameters": info.parameters,
        "data": plan.name,
        **batch_configuration(config),
        "input_shape": plan.input_shape,
        **plan.described,
        **pipeline.configuration,
        "precision": config.precision,
        "memory_format": config.memory_format,
        "compile": mode,
        **({"compile_parts": True} if mode is not None and compiled_apart(model) is not None else {}),
        "cudnn_benchmark": config.cudnn_benchmark,
        "seed": config.seed,
        **({"replay": True} if replay else {}),
        **({"tuned": True} if config.tuned else {}),
        **{f"model.{name}": _plain(value) for name, value in config.model_options.items()},
    }
    return Parts(
        config=config, model=model, info=info, plan=plan, pipeline=pipeline, configuration=configuration
    )


def check_data(name: str | None) -> None:
    if name is not None and name not in DATA_NAMES:
        raise unknown_value("data", name, DATA_NAMES)


def task_of_data(name: str | None) -> ModelTask | None:
    return next((task for task, names in DATA_OF.items() if name in names), None)


def _check_sizes(config: StepConfig) -> None:
    task = task_of(config.model) if isinstance(config.model, str) else task_of_data(config.data)
    if task is None:
        return
    of_tokens = task in {"language", "answering"}
    for argument in ("image_size",) if of_tokens else ("sequence", "vocabulary"):
        if getattr(config, argument) is not None:
            reads, own = ("tokens", "sequence=") if of_tokens else ("images", "image_size=")
            raise ValueError(
                f"{argument}: {config.name} reads {reads}, whose size is {own}. Leave {argument} out."
            )


def _check_parameters(millions: float | None, info: ModelInfo) -> None:
    """Hold a model against a study's number of parameters, to the digits that it gives."""
    if millions is None:
        return
    digits = len(str(millions).partition(".")[2])
    if round(info.parameters / 1e6, digits) != millions:
        raise ValueError(
            f"millions: {info.name} has {info.parameters / 1e6:.{digits}f} million parameters, not {millions}. Does "
            "num_classes or image_size differ?"
        )


def batch_configuration(config: StepConfig) -> Configuration:
    """Return one rank's batch (weak scaling), or that of all (strong), without the number of ranks.

    Runs on 1, 2 and 4 devices are compared by an equal configuration.
    """
    given: Configuration = {"batch_size": config.batch_size}
    if config.global_batch_size is not None:
        given = {"global_batch_size": config.global_batch_size, "scaling": "strong"}
    if config.micro_batch_size is not None:
        given["micro_batch_size"] = config.micro_batch_size
    return given


def _model_options(config: StepConfig) -> dict[str, Any]:
    options = dict(config.model_options)
    if task_of(config.model) == "language":
        sizes = {"sequence": config.sequence, "vocabulary": config.vocabulary}
        options |= {name: size for name, size in sizes.items() if size is not None}
    elif (images := _image_set(config)) and config.name.startswith("zoo/"):
        options = {"channels": images.channels} | options
    return options


def _image_set(config: StepConfig) -> ImageSet | None:
    if task_of(config.model) not in {"classification", "reconstruction"}:
        return None
    return IMAGE_SETS.get(config.data or "imagenet")


def _memory_format(config: StepConfig, info: ModelInfo) -> str:
    if config.memory_format != "auto":
        return config.memory_format
    # Tensor cores convolve channels last. CPUs gain in inference and lose in training: on a Xeon (torch 2.10, one
    # thread, CPU time) ResNet50 infers in 133 against 157 ms, and ResNet18 trains in 179 against 146 ms.
    faster = info.convolutional and (config.device.type != "cpu" or not config.training)
    return "channels_last" if faster else "contiguous"


def _plain(value: object) -> str | int | float | bool | None:
    """Return a model option as a configuration holds it, without an address."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return callable_name(value) if callable(value) else repr(value)


def _plan(config: StepConfig, model: nn.Module, info: ModelInfo) -> Plan:
    given = {name: getattr(config, name) for name in Sizes._fields}
    name = config.data or DATA_OF[info.task][0]
    plan = make_plan(name, info, batch_size=config.forward_batch_size, **given)
    # A label outside the model's classes is a device-side assertion on CUDA, which ends the process.
    classes = output_classes(model, plan) if info.own and plan.classes is not None else None
    if classes is not None and classes < (plan.classes or 0):
        raise ValueError(
            f"num_classes: {info.name} returns {classes} classes, and data={name!r} has {plan.classes}. Pass "
            f"num_classes={classes}, or give the model {plan.classes}."
        )
    return plan


def make_plan(name: str, info: ModelInfo, *, batch_size: int, **given: Any) -> Plan:
    """Fit a data set to a model; a user's own model has the task of its data."""
    task = task_of_data(name) if info.own else info.task
    if task is None or name not in DATA_OF[task]:
        valid = ", ".join(DATA_OF[info.task])
        raise ValueError(f"data: {name!r} does not fit {info.name}, a model for {info.task}. Valid: {valid}.")
    info = replace(info, task=task)
    return PLANS[info.task][0].fit(name, batch_size, info, Sizes(**given))


def make_batch(data: str, *, device: torch.device, seed: int = 0, rank: int = 0, **sizes: Any) -> Batch:
    """Make one synthetic batch: inputs and targets, in fp32 or as token numbers.

    `sizes` are `batch_size`, and where they apply `image_size`, `sequence` and `vocabulary`.
    """
    check_data(data)
    for argument, size in sizes.items():
        check_whole(argument, size)
    task, image_size = task_of_data(data) or "classification", sizes.pop("image_size", None)
    info = ModelInfo(name="the model", task=task, image_size=image_size, own=True)
    return make_plan(data, info, **sizes).make(0, seed=seed, rank=rank, device=device)


def find_set(root: Path | None, name: str) -> None:
    """Raise DataMissing where a set is not under the root, DataError where it cannot be read; read no more than needed."""
    check_data(name)
    match name:
        case "coco":
            open_coco(root, "test")
        case "cityscapes":
            open_cityscapes(root, "test")
        case "oscar":
            open_tokens(root, length=1, vocabulary=1)
        case _:
            open_images(root, name, "test")
