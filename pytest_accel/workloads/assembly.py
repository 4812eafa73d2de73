"""What training and inference share: from a benchmark's arguments to a model and batches on the device."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pytest_accel.measure.device import is_nvidia, widen_device_queues
from pytest_accel.measure.errors import unknown_value
from pytest_accel.measure.ranks import Ranks
from pytest_accel.workloads.accumulating import check_micro_batches
from pytest_accel.workloads.asked import check_asked
from pytest_accel.workloads.choices import Choices
from pytest_accel.workloads.compiling import check_compile, settle_compile
from pytest_accel.workloads.data.sets import IMAGE_SETS, ImageSet
from pytest_accel.workloads.feeding import MEMORY_FORMATS, DataChoices, Destination, Facts, Feed, Task
from pytest_accel.workloads.fitting import batch_in_words, builds_whole, check_fits, state_of
from pytest_accel.workloads.flops import output_classes
from pytest_accel.workloads.layers import stand_in_for_slow_layers
from pytest_accel.workloads.models.build import ModelInfo, build_model, task_of
from pytest_accel.workloads.optimizers import callable_name
from pytest_accel.workloads.plan import Plan
from pytest_accel.workloads.precision import Precision
from pytest_accel.workloads.replaying import check_replay, why_not
from pytest_accel.workloads.tasks import check_data, plan_data

Configuration = Facts

# Raise it when the work of a step changes under the same arguments: baselines of the old one are stale. Not where the same work is
# done faster: that is to be judged against them.
DEFINITION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A model and the source of its batches, on the device, with every choice settled."""

    model: nn.Module
    info: ModelInfo
    plan: Plan
    feed: Feed
    feeding: DataChoices
    destination: Destination
    device: torch.device
    precision: Precision
    compile: str | None
    replay: bool
    cudnn_benchmark: bool
    configuration: Configuration
    seed: int
    ranks: Ranks
    batch: str  # what lies on the device at once, for errors
    micro_batches: int  # of a step; the plan and the source are those of one
    known_as: Hashable  # what counts of it are kept under; None: under nothing


def assemble(
    choices: Choices,
    *,
    task: Task,
    micro_batch_size: int | None = None,
    states: int | None = None,
    sharded: bool = False,
    foreign: bool = False,
) -> Parts:
    """Check every argument, then build the model and open the source of its batches, or of its micro-batches.

    `states` are the tensors that an optimizer keeps of each parameter. Where the model is to be `sharded` and a device has
    no room for all of it, it is built without contents. What is `foreign`, a loss or an optimizer of the caller's, may wait for the device.
    """
    device = torch.device(choices.device)
    if device.type == "cuda":
        widen_device_queues()
    precision = Precision.named(choices.precision, device=device)
    check_data(choices.data, batch_size=choices.batch_size)
    micro_batches = check_micro_batches(choices.batch_size, micro_batch_size)
    check_asked(choices, task=task, micro_batch_size=micro_batch_size)
    check_compile(choices.compile, micro_batches, sharded=sharded)
    check_replay(choices, precision, task=task, sharded=sharded)
    choices.feeding.check()
    if choices.memory_format not in {"auto", *MEMORY_FORMATS}:
        raise unknown_value("memory_format", choices.memory_format, ("auto", *MEMORY_FORMATS))
    options = _model_options(choices)
    shards = choices.ranks.size if sharded else 1
    state = state_of(choices.model, options, states=states, shards=shards)
    if state is not None:
        check_fits(str(choices.model), state, device)
    whole_here = not sharded or builds_whole(state, device)
    model, info = _build(choices, device if whole_here else torch.device("meta"), options)
    _check_parameters(choices.millions, info)
    plan = _plan(choices, model, info, batch_size=micro_batch_size or choices.batch_size)
    memory_format = _settle_memory_format(choices.memory_format, info, device, task=task)
    # Half weights for inference: autocast would cast all of them in every step.
    dtype = precision.dtype if task == "infer" else torch.float32
    model = model.to(memory_format=MEMORY_FORMATS[memory_format]).train(task == "train")
    model = model.to(dtype) if task == "infer" else model
    # Of the global batch where there is one, so that the number is the same on any number of ranks.
    whole = plan.of_batch(micro_batch_size or choices.global_batch_size or plan.batch_size)
    destination = Destination(
        device=device,
        dtype=dtype,
        memory_format=memory_format,
        seed=choices.seed,
        ranks=choices.ranks,
        rotation=whole.rotation(dtype, micro_batches),
    )
    fed = plan.feed(choices.feeding, destination, task=task)
    if choices.replay and fed.varied:
        fed.source.close()
        raise ValueError("replay: batches differ in shape here, and one is recorded. Leave replay out.")
    known_as = _known_as(choices, info)
    compile_mode, replays = settle_compile(
        choices,
        model,
        plan,
        task=task,
        threaded=fed.threaded,
        varied=fed.varied,
        known_as=known_as,
        micro_batches=micro_batches,
        recordable=not (foreign or info.own or why_not(choices, precision, task=task, sharded=sharded)),
    )
    if compile_mode is not None and memory_format == "channels_last" and is_nvidia(device.type):
        stand_in_for_slow_layers(model, precision.name)
    configuration: Configuration = {
        "definition": DEFINITION,
        "task": task,
        "model": info.name,
        "parameters": info.parameters,
        "data": plan.name,
        **_batch(choices, micro_batch_size),
        "input_shape": plan.input_shape,
        **plan.described,
        **fed.configuration,  # real data settles what its plan left open
        "precision": precision.name,
        "memory_format": memory_format,
        "compile": compile_mode,
        "cudnn_benchmark": choices.cudnn_benchmark,
        "seed": choices.seed,
    }
    if replays:
        configuration["replay"] = True
    configuration |= {f"model.{name}": _plain(value) for name, value in choices.model_options.items()}
    return Parts(
        model=model,
        info=info,
        plan=plan,
        feed=fed,
        feeding=choices.feeding,
        destination=destination,
        device=device,
        precision=precision,
        compile=compile_mode,
        replay=replays,
        cudnn_benchmark=choices.cudnn_benchmark,
        configuration=configuration,
        seed=choices.seed,
        ranks=choices.ranks,
        batch=batch_in_words(choices.batch_size, micro_batch_size),
        micro_batches=micro_batches,
        known_as=known_as,
    )


def _batch(choices: Choices, micro_batch_size: int | None) -> Configuration:
    """What stays the same when devices are added: one rank's batch (weak scaling), or that of all (strong).

    The number of ranks is not in it: runs on 1, 2 and 4 devices are compared by an equal configuration.
    """
    micro: Configuration = {} if micro_batch_size is None else {"micro_batch_size": micro_batch_size}
    if choices.global_batch_size is not None:
        return {"global_batch_size": choices.global_batch_size, "scaling": "strong", **micro}
    return {"batch_size": choices.batch_size, **micro}


def _model_options(choices: Choices) -> dict[str, Any]:
    """What the model's own builder is told."""
    options = dict(choices.model_options)
    task = task_of(choices.model)
    if task == "language":
        sizes = {"sequence": choices.sequence, "vocabulary": choices.vocabulary}
        options |= {name: size for name, size in sizes.items() if size is not None}
    elif (images := _images(choices)) and str(choices.model).startswith("zoo/"):
        options = {"channels": images.channels} | options
    return options


def _images(choices: Choices) -> ImageSet | None:
    if task_of(choices.model) not in {"classification", "reconstruction"}:
        return None
    return IMAGE_SETS.get(choices.data or "imagenet")


def _build(choices: Choices, device: torch.device, options: Mapping[str, Any]) -> tuple[nn.Module, ModelInfo]:
    images, classes = _images(choices), choices.num_classes
    return build_model(
        choices.model,
        seed=choices.seed,
        num_classes=images.classes if images and classes is None else classes,
        image_size=choices.image_size,
        device=device,
        **options,
    )


def _plan(choices: Choices, model: nn.Module, info: ModelInfo, *, batch_size: int) -> Plan:
    plan = plan_data(
        choices.data,
        info,
        batch_size=batch_size,
        num_classes=choices.num_classes,
        sequence=choices.sequence,
        vocabulary=choices.vocabulary,
    )
    # A label outside the model's classes is a device-side assertion on CUDA, which ends the process.
    least = plan.classes if info.own else None
    if least is not None and (classes := output_classes(model, plan)) is not None and classes < least:
        raise ValueError(
            f"num_classes: {info.name} returns {classes} classes, and data={plan.name!r} has {least}. "
            f"Pass num_classes={classes}, or give the model {least}."
        )
    return plan


def _known_as(choices: Choices, info: ModelInfo) -> Hashable:
    """Say what a model's shapes do not; None where a name and plain options do not say it: it is the user's own."""
    options = choices.model_options
    if info.own or not all(isinstance(value, str | int | float | None) for value in options.values()):
        return None
    return info.name, tuple(sorted(options.items()))


def _plain(value: object) -> str | int | float | bool | None:
    """Return a model option as a configuration can hold it; no address in it, so that it is stable."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return callable_name(value) if callable(value) else repr(value)


def _check_parameters(millions: float | None, info: ModelInfo) -> None:
    """The model of a study is the one that has as many parameters as the study says, to the digits that it gives."""
    if millions is None:
        return
    digits = len(str(millions).partition(".")[2])
    if round(info.parameters / 1e6, digits) != millions:
        raise ValueError(
            f"millions: {info.name} has {info.parameters / 1e6:.{digits}f} million parameters, not {millions}: it is "
            "not the model that was meant. Does num_classes or image_size differ?"
        )


def _settle_memory_format(memory_format: str, info: ModelInfo, device: torch.device, *, task: str) -> str:
    if memory_format != "auto":
        return memory_format
    # Tensor cores convolve channels last. CPUs gain in inference and lose in training: on a Xeon (torch 2.10,
    # one thread, alternating, CPU time) ResNet50 infers in 133 against 157 ms contiguous, and ResNet18
    # trains in 179 against 146 ms.
    pays = info.convolutional and (device.type != "cpu" or task == "infer")
    return "channels_last" if pays else "contiguous"
