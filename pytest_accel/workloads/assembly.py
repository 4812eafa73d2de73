"""What training and inference share: from a benchmark's arguments to a model and batches on the device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import nn

from pytest_accel.data.sets import IMAGE_SETS, ImageSet
from pytest_accel.measure.device import is_nvidia, widen_device_queues
from pytest_accel.measure.ranks import Alone, Ranks
from pytest_accel.settings import COMPILE_MODES
from pytest_accel.workloads.accumulating import check_micro_batches
from pytest_accel.workloads.asked import check_asked
from pytest_accel.workloads.errors import check_whole, unknown_value
from pytest_accel.workloads.feeding import MEMORY_FORMATS, DataChoices, Destination, Feed, Task
from pytest_accel.workloads.fitting import batch_in_words, builds_whole, check_fits, state_of
from pytest_accel.workloads.flops import count, output_classes
from pytest_accel.workloads.layers import stand_in_for_slow_layers
from pytest_accel.workloads.models import ModelInfo, build_model, task_of
from pytest_accel.workloads.optimisers import callable_name
from pytest_accel.workloads.plan import Plan
from pytest_accel.workloads.precision import Precision
from pytest_accel.workloads.tasks import check_data, plan_data

Model = str | Callable[..., Any]
Configuration = dict[str, str | int | float | bool | None]

# Raise it when what a step does changes under the same arguments: baselines of the old one are stale.
DEFINITION = 1

CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")
# A step of less arithmetic than this waits for its launches: an H200 needs some 5 ms for it, and a step of a
# ResNet launches hundreds of kernels. The WideResNet at batch 32 (.46 TFLOP) trains 3,500 images/s eager there and
# 14,500 with its launches recorded.
LAUNCH_BOUND_FLOPS = 2e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The arguments that both kinds of step take; "auto" and None are settled in `assemble`."""

    model: Model  # a name (torchvision's, `timm/NAME`, `zoo/NAME`), or any callable that returns a module
    batch_size: int  # of one rank
    global_batch_size: int | None = None  # of all ranks together, instead of batch_size: strong scaling
    data: str | None = None  # a name of DATA_NAMES; None: the first that fits the model's task
    device: torch.device | str = "cpu"
    precision: str = "fp32"  # fp32, tf32, bf16, fp16
    image_size: int | None = None  # pixels; None: the model's own, else the data's
    num_classes: int | None = None  # None: the data's
    sequence: int | None = None  # tokens; None: the model's own
    vocabulary: int | None = None  # of a language model; None: the model's own
    memory_format: str = "auto"  # auto, contiguous, channels_last
    compile: str | None = "auto"  # auto, None (eager), or a name of COMPILE_MODES
    cudnn_benchmark: bool = True  # let cuDNN try its algorithms on first use of a shape
    seed: int = 0  # of weights, batches and dropout
    model_options: Mapping[str, Any] = field(default_factory=dict)  # for the model's own builder
    millions: float | None = None  # of parameters that the model must have, as a study gives them: 25.6
    feeding: DataChoices = field(default_factory=DataChoices)  # given as arguments of their own
    ranks: Ranks = field(default_factory=Alone)  # those that take the step together, each with its own data

    @classmethod
    def of(cls, model: Model, arguments: Mapping[str, Any]) -> Choices:
        """Make them of keyword arguments; one that is unknown gets a did-you-mean, not a traceback of ours."""
        of_data = [entry.name for entry in fields(DataChoices)]
        known = [entry.name for entry in fields(cls) if entry.name != "feeding"] + of_data
        for name in arguments:
            if name not in known:
                remedy = "Arguments of the model's own builder go into model_options={...}."
                raise unknown_value("argument", name, known, remedy=remedy)
        feeding = DataChoices(**{name: arguments[name] for name in of_data if name in arguments})
        own = {name: value for name, value in arguments.items() if name not in of_data}
        ranks = own.get("ranks") or Alone()
        whole = own.get("global_batch_size")
        if whole is not None:
            own["batch_size"] = share_of(whole, own, ranks.size)
        elif own.get("batch_size") is None:
            raise ValueError(
                "batch_size: missing. Write batch_size=N (or global_batch_size=N, for all devices together): "
                "no size is guessed, and none made smaller."
            )
        return cls(model=model, feeding=feeding, **own)


def share_of(whole: int, arguments: Mapping[str, Any], size: int) -> int:
    """Return one rank's part of a global batch; a remainder would give ranks different work."""
    if arguments.get("batch_size") is not None:
        raise ValueError(
            "batch_size and global_batch_size: give one. The first is of one device and the second of all together."
        )
    check_whole("global_batch_size", whole)
    if whole % size:
        raise ValueError(
            f"global_batch_size: {whole} does not divide among {size} ranks. Choose a multiple of {size}."
        )
    return whole // size


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
) -> Parts:
    """Check every argument, then build the model and open the source of its batches, or of its micro-batches.

    `states` are the tensors that an optimiser keeps of each parameter. Where the model is to be `sharded` and a device has
    no room for all of it, it is built without contents.
    """
    device = torch.device(choices.device)
    if device.type == "cuda":
        widen_device_queues()
    precision = Precision.named(choices.precision, device=device)
    check_data(choices.data, batch_size=choices.batch_size)
    micro_batches = check_micro_batches(choices.batch_size, micro_batch_size)
    check_asked(choices, task=task, micro_batch_size=micro_batch_size)
    _check_compile(choices.compile, micro_batches, sharded=sharded)
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
    # Half weights for inference: ResNet50 on an H200, bf16, compiled, infers 24,296 images/s with them;
    # timm's benchmark.py, which autocasts, 14,863 (another harness, so not the cast alone).
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
    known_as = _known_as(choices, info)
    compile_mode = _settle_compile(
        choices,
        model,
        plan,
        task=task,
        threaded=fed.threaded,
        known_as=known_as,
        micro_batches=micro_batches,
    )
    if compile_mode is not None and memory_format == "channels_last" and is_nvidia(device.type):
        stand_in_for_slow_layers(model, precision.name)
    configuration: Configuration = {
        "definition": DEFINITION,
        "task": task,
        "model": info.name,
        "parameters": info.parameters,
        "data": plan.name,
        **fed.configuration,
        **_batch(choices, micro_batch_size),
        "input_shape": plan.input_shape,
        **plan.described,
        "precision": precision.name,
        "memory_format": memory_format,
        "compile": compile_mode,
        "cudnn_benchmark": choices.cudnn_benchmark,
        "seed": choices.seed,
    }
    configuration |= fed.configuration  # again: real data settles what its plan left open
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
    if info.own and plan.classes and (output_classes(model, plan) or plan.classes) < plan.classes:
        classes = output_classes(model, plan)
        raise ValueError(
            f"num_classes: {info.name} returns {classes} classes, and data={plan.name!r} has {plan.classes}. "
            f"Pass num_classes={classes}, or give the model {plan.classes}."
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


def _check_compile(mode: str | None, micro_batches: int, *, sharded: bool) -> None:
    if mode in CUDA_GRAPH_MODES and sharded:
        raise ValueError(
            f"compile: {mode!r} replays CUDA graphs, and the weights of shards lie elsewhere every time. Write 'default'."
        )
    if mode in CUDA_GRAPH_MODES and micro_batches > 1:
        # A replay writes its gradients where the last one did, and would overwrite what it has to be added to.
        raise ValueError(
            f"compile: {mode!r} replays CUDA graphs, which cannot add up gradients. Write 'default'."
        )
    if mode is not None and mode not in {"auto", *COMPILE_MODES}:
        raise unknown_value("compile", mode, ("auto", *COMPILE_MODES), remedy="None leaves the model eager.")


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


def _settle_compile(
    choices: Choices,
    model: nn.Module,
    plan: Plan,
    *,
    task: Task,
    threaded: bool,
    known_as: Hashable,
    micro_batches: int,
) -> str | None:
    """Compile on accelerators, where it is 1.4 x for ResNet50 and 2 x for Swin-T (H200); not on CPUs.

    Where a step is short of arithmetic its launches are recorded and replayed as well, and where threads decode beside
    them: launching one by one takes Python's lock for 29 of the 37 ms of a step (ResNet50, H200), replaying for 8. Not in
    a gang: there the collectives of DDP run between the pieces of what is compiled. Nor where gradients are added up.
    """
    device = torch.device(choices.device)
    if choices.compile != "auto":
        return choices.compile
    if device.type == "cpu":
        return None
    passes = 3 if task == "train" else 1  # backward is twice forward
    counted = count(model, plan, known_as=known_as)
    flops = passes * (counted.flops if counted else LAUNCH_BOUND_FLOPS)
    pays = threaded or flops < LAUNCH_BOUND_FLOPS
    return (
        "reduce-overhead"
        if pays and device.type == "cuda" and isinstance(choices.ranks, Alone) and micro_batches == 1
        else "default"
    )


def _settle_memory_format(memory_format: str, info: ModelInfo, device: torch.device, *, task: str) -> str:
    if memory_format != "auto":
        return memory_format
    # Tensor cores convolve channels last. CPUs gain in inference and lose in training: on a Xeon (torch 2.10,
    # one thread, alternating, CPU time) ResNet50 infers in 133 against 157 ms contiguous, and ResNet18
    # trains in 179 against 146 ms.
    pays = info.convolutional and (device.type != "cpu" or task == "infer")
    return "channels_last" if pays else "contiguous"
