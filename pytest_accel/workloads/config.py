"""Keywords of `train`, `infer` and `converge`: their types, their defaults, and the checks that need no model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

import torch

from pytest_accel.measure.arguments import check_whole, unknown_value
from pytest_accel.measure.rounds import Alone, Ranks
from pytest_accel.stats.quantities import did_you_mean
from pytest_accel.workloads.precision import PRECISIONS, resolve_precision

Task = Literal["train", "infer"]
Model: TypeAlias = str | Callable[..., Any]
Loss: TypeAlias = Callable[[Any, Any], Any]  # (model output, targets) -> scalar
OptimizerFactory: TypeAlias = Callable[[Any], Any]  # parameters -> torch.optim.Optimizer
Size: TypeAlias = int | Mapping[float, int]  # or by GB of a device's memory: {40: 256, 16: 64}
# What defines a benchmark, stored with it
Configuration: TypeAlias = dict[str, str | int | float | bool | None]

SOURCES = ("auto", "synthetic", "resident", "loader")
DECODERS = ("auto", "host", "device")
MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
BATCH_SIZES = ("batch_size", "global_batch_size", "micro_batch_size")
SIZES = ("global_batch_size", "batch_size", "micro_batch_size", "num_classes", "image_size", "sequence", "vocabulary")  # fmt: skip


class StepOptions(TypedDict, total=False):
    """Keywords of every step. `StepConfig` has their defaults and meanings."""

    batch_size: Size | None
    global_batch_size: Size | None
    data: str | None
    precision: str
    image_size: int | None
    num_classes: int | None
    sequence: int | None
    vocabulary: int | None
    memory_format: str
    compile: str | bool | None
    replay: bool | None
    tuned: bool
    cudnn_benchmark: bool
    seed: int
    model_options: Mapping[str, Any]
    millions: float | None
    source: str
    workers: int | None
    prefetch: int
    cpus: int | None
    decode: str
    augment: bool


class TrainOptions(StepOptions, total=False):
    optimizer: str | OptimizerFactory
    lr: float | None
    weight_decay: float | None
    lr_scale: Mapping[str, float] | None
    clip: float | None
    loss: Loss | None
    label_smoothing: float
    micro_batch_size: Size | None
    ddp: bool
    sharding: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """One step as a benchmark asks for it; "auto" and None are resolved when it is built."""

    model: Model  # a name (torchvision's, `timm/NAME`, `zoo/NAME`), or any callable that returns a module
    task: Task = "train"
    batch_size: int  # of one rank; or by GB of memory, {40: 256, 16: 64}: the largest that the device has
    global_batch_size: int | None = None  # of all ranks, instead of batch_size: strong scaling; by memory too
    data: str | None = None  # a name of DATA_NAMES; None: the first that fits the model's task
    precision: str = "fp32"  # fp32, tf32, bf16, fp16; half: bf16, else fp16; single: tf32, else fp32
    image_size: int | None = None  # pixels; None: the model's own, else the data's
    num_classes: int | None = None  # None: the data's
    sequence: int | None = None  # tokens; None: the model's own
    vocabulary: int | None = None  # of a language model; None: the model's own
    memory_format: str = "auto"  # auto, contiguous, channels_last
    # auto; True: on the CPU too; None or False: eager; or a name of COMPILE_MODES
    compile: str | None = "auto"
    replay: bool | None = None  # record a step as a CUDA graph and replay it; None: where it is short
    tuned: bool = False  # replace slow layers of torchvision's ResNets by custom kernels, on NVIDIA GPUs
    cudnn_benchmark: bool = True  # let cuDNN try its algorithms on first use of a shape
    seed: int = 0  # of weights, batches and dropout
    model_options: Mapping[str, Any] = field(default_factory=dict)  # for the model's own builder
    millions: float | None = None  # of parameters that the model must have, as a study gives them: 25.6
    # The input pipeline. auto: arrays are kept on the device, files go through a loader; without real data batches
    # are synthetic, and go through a loader where workers are given.
    source: str = "auto"  # a name of SOURCES
    workers: int | None = None  # processes of the loader; None: as many as there are CPUs to spare
    prefetch: int = 2  # batches that each worker keeps ready
    cpus: int | None = None  # that the workers may run on; None: all
    decode: str = "auto"  # a name of DECODERS; auto: on the device, where it can
    augment: bool = True  # random crops and mirroring, in training; digits are not mirrored
    # Training
    optimizer: str | OptimizerFactory = "auto"  # auto, sgd, adam, adamw, or parameters -> a torch optimizer
    lr: float | None = None  # None: the named optimizer's
    weight_decay: float | None = None  # None: the named optimizer's
    # Factor of lr by prefix of a parameter's name, the longest match.
    lr_scale: Mapping[str, float] | None = None
    clip: float | None = None  # largest norm of all gradients together
    loss: Loss | None = None  # of what the model returned and the targets; None: the task's own
    label_smoothing: float = 0.0  # of classification and language models
    micro_batch_size: int | None = None  # take the batch in parts of this size and accumulate their gradients
    ddp: bool = True  # DistributedDataParallel over all ranks; False: every rank trains a model of its own
    sharding: str | None = None  # "fsdp": every rank has a part of the model
    # Set by the session
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    ranks: Ranks = field(default_factory=Alone)
    autocast: bool = True  # False: in training too, weights and inputs have the precision themselves
    data_root: Path | None = None  # of real data sets
    data_required: bool = False  # no real data is an error

    @classmethod
    def of(
        cls,
        task: Task,
        model: Model,
        options: Mapping[str, Any],
        *,
        ranks: Ranks,
        device: torch.device,
        memory_gb: float | None = None,
        **session: Any,
    ) -> StepConfig:
        """Check keywords that neither a model nor data is needed for, and resolve those of a device; ValueError."""
        is_instance = isinstance(model, torch.nn.Module)
        if is_instance or not (isinstance(model, str) or callable(model)):
            given = f"an instance of {type(model).__name__}" if is_instance else repr(model)
            raise ValueError(
                f"model: {given}. Pass a name, or a function that returns the module: every run builds its own, from a fixed "
                "seed, as train(lambda: torch.nn.Linear(4, 2), ...) does."
            )
        known = (TrainOptions if task == "train" else StepOptions).__annotations__
        for name in options:
            if name not in known:
                raise ValueError(
                    f"{name}: unknown keyword of {task}.{did_you_mean(name, known)} Arguments "
                    "of the model's own builder go into model_options={...}."
                )
        resolved = {name: size_for(name, options[name], memory_gb) for name in BATCH_SIZES if name in options}
        if "precision" in options:
            resolved["precision"] = resolve_precision(options["precision"], device)
        if isinstance(switch := options.get("compile"), bool):  # True: as auto, which is eager on the CPU
            resolved["compile"] = ("default" if device.type == "cpu" else "auto") if switch else None
        resolved = {**options, **resolved}
        resolved["batch_size"] = _rank_batch_size(resolved, ranks.size)
        return cls(model=model, task=task, ranks=ranks, device=device, **session, **resolved)

    def __post_init__(self) -> None:
        for name in (*SIZES, "prefetch", "cpus"):
            check_whole(name, getattr(self, name))
        known = {"source": SOURCES, "decode": DECODERS, "memory_format": ("auto", *MEMORY_FORMATS)}
        for name, valid in known.items():
            if getattr(self, name) not in valid:
                raise unknown_value(name, getattr(self, name), valid)
        allowed = len(os.sched_getaffinity(0))
        if self.cpus is not None and self.cpus > allowed:
            raise ValueError(f"cpus: {self.cpus} were requested, and this process may use {allowed}.")
        if self.workers is not None and (self.workers < 0 or self.source in {"synthetic", "resident"}):
            raise ValueError(
                f"workers: {self.workers} with source={self.source!r}. Valid: 0 or more, of a loader. Or leave them out."
            )
        if self.micro_batch_size is not None and self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"micro_batch_size: {self.micro_batch_size} does not divide the batch of {self.batch_size} that one device "
                "takes. Choose a divisor, or leave it out."
            )

    @property
    def name(self) -> str:
        return callable_name(self.model) if callable(self.model) else self.model

    @property
    def training(self) -> bool:
        return self.task == "train"

    @property
    def dtype(self) -> torch.dtype:
        """Of inputs, and in inference of weights: autocast would cast all of them in every step."""
        return torch.float32 if self.training and self.autocast else PRECISIONS[self.precision].dtype

    @property
    def micro_batches(self) -> int:
        return 1 if self.micro_batch_size is None else self.batch_size // self.micro_batch_size

    @property
    def forward_batch_size(self) -> int:
        return self.micro_batch_size or self.batch_size

    @property
    def distributed(self) -> bool:
        """Whether the ranks form a process group, of one rank too."""
        return not isinstance(self.ranks, Alone)


def size_for(name: str, size: Any, memory_gb: float | None) -> Any:
    """Return a size that is given by memory for a device of so many GB, by its data sheet; any other as it is."""
    if not isinstance(size, Mapping):
        return size
    fitting = [least_gb for least_gb in size if memory_gb is not None and least_gb <= memory_gb]
    if not fitting:
        raise ValueError(
            f"{name}: {dict(size)} has no entry for this device, of {memory_gb or 'unknown'} GB. Write an entry for it, one "
            "number, or memory_gb in the table of its platform."
        )
    return size[max(fitting)]


def _rank_batch_size(options: Mapping[str, Any], ranks: int) -> Any:
    """Return one rank's batch: as given, or its part of a global batch."""
    batch_size, global_batch_size = options.get("batch_size"), options.get("global_batch_size")
    if (batch_size is None) == (global_batch_size is None):
        raise ValueError(
            "batch_size, global_batch_size: give one. The first is of one device, the second of all together. No size is "
            "guessed, and none is reduced."
        )
    if global_batch_size is None:
        return batch_size
    check_whole("global_batch_size", global_batch_size)
    if global_batch_size % ranks:
        raise ValueError(
            f"global_batch_size: {global_batch_size} does not divide among {ranks} ranks. Choose a multiple."
        )
    return global_batch_size // ranks


def callable_name(function: object) -> str:
    """Return the name of a callable for configurations: the same in every process, without an address."""
    plain = getattr(function, "func", function)  # functools.partial
    if not hasattr(plain, "__qualname__"):
        plain = type(plain)
    return f"{plain.__module__}.{plain.__qualname__}"
