"""Input pipelines: the data plan of a task, the source of its batches, and synthetic batches."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from itertools import count
from math import gcd
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

import torch
from torch.utils._pytree import tree_leaves, tree_map

from pytest_accel.workloads.config import SOURCES, Configuration, Loss, StepConfig
from pytest_accel.workloads.data.files import DataError, DataMissing, Split, SyntheticDataWarning
from pytest_accel.workloads.data.loader import HostBatches, TrainingOrder, spare_cpus
from pytest_accel.workloads.data.sources import Batch, BatchSource, RotatingSource

ModelTask: TypeAlias = Literal[
    "classification", "reconstruction", "language", "detection", "segmentation", "answering"
]

ALWAYS_SYNTHETIC = ("tokens", "squad")
# Distinct synthetic batches: a single one would stay in a CPU's cache, and a model memorizes it within ten steps.
ROTATION = 4
ROTATION_BYTES = 2 * 1024**3  # fewer batches where they take more memory
# Ranks draw from seeds this far apart. Within 32 bits: a CPU's generator ignores the rest of a seed.
RANK_STRIDE = 1_000_003


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    name: str
    task: ModelTask = "classification"
    parameters: int = 0
    convolutional: bool = False  # channels last is faster
    image_size: int | None = None  # pixels, height and width; None: any, the data decides
    crop: tuple[int, int] | None = None  # height and width that it is trained at, where it takes any size
    channels: int | None = None
    vocabulary: int | None = None
    sequence: int | None = None
    own: bool = False  # the user's callable: nothing about it was looked up


class Sizes(NamedTuple):
    num_classes: int | None = None
    sequence: int | None = None
    vocabulary: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPipeline:
    source: BatchSource
    configuration: Configuration  # overrides the plan's
    order: TrainingOrder | None = None  # None: synthetic, without epochs
    threaded: bool = False  # threads of this process work during the steps
    varied: bool = False  # batches differ in shape, so that the cost of one is not that of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ABC):
    """The batches of a task: shapes, loss, synthetic and real data."""

    name: str  # of the data
    batch_size: int  # of one forward pass on one rank
    unit: ClassVar[str] = "images"  # of the work of a step
    sources: ClassVar[tuple[str, ...]] = SOURCES
    decoders: ClassVar[tuple[str, ...]] = ("auto",)
    reconstructs: ClassVar[bool] = False  # the target of an input is the input
    classes: ClassVar[int | None] = None  # that a model must have at least; None: its output does not tell
    # Not of plans that are always synthetic: (root, split) -> the real data, or DataMissing; (config, data) -> their pipeline
    find: ClassVar[Any]
    read: ClassVar[Any]

    @classmethod
    @abstractmethod
    def fit(cls, name: str, batch_size: int, info: ModelInfo, given: Sizes) -> Self:
        """Fit a data set to a model."""

    @property
    @abstractmethod
    def described(self) -> Configuration:
        """What else defines the batches."""

    @abstractmethod
    def draw(self, random: torch.Generator, dtype: torch.dtype, memory_format: str) -> Batch:
        """Return one synthetic batch on the generator's device."""

    @abstractmethod
    def loss(self, label_smoothing: float) -> tuple[str, Loss]:
        """Return the task's own loss, and its name in a configuration."""

    @property
    def work(self) -> int:
        return self.batch_size

    @property
    def input_shape(self) -> str:
        """Of one sample: 3x224x224."""
        return shape_name(*next(iter(tree_leaves(self.on_meta()))).shape[1:])

    def on_meta(self) -> Batch:
        sample = replace(self, batch_size=1)
        inputs, targets = tree_map(
            lambda one: torch.empty((self.batch_size, *one.shape[1:]), device="meta", dtype=one.dtype),
            sample.draw(torch.Generator(), torch.float32, "contiguous"),
        )
        return inputs, inputs if self.reconstructs else targets

    def rotation(self, dtype: torch.dtype, micro_batches: int = 1) -> int:
        """Return the number of distinct synthetic batches: ROTATION, or at least two within ROTATION_BYTES.

        It shares no factor with the micro-batches of a step: every step would otherwise see the same ones.
        """
        leaves = tree_leaves(self.on_meta())
        size = sum(
            each.numel() * (dtype if each.is_floating_point() else each.dtype).itemsize for each in leaves
        )
        fewest = max(2, min(ROTATION, ROTATION_BYTES // size))
        return next(number for number in count(fewest) if gcd(number, micro_batches) == 1)

    def make(self, index: int, *, seed: int, device: torch.device, rank: int = 0, **form: Any) -> Batch:
        """Return one synthetic batch, in fp32 unless `form` has a dtype. The same seed, index and rank give the same batch."""
        random = torch.Generator(device).manual_seed(rank_seed(rank, seed * ROTATION + index))
        return self.draw(random, **{"dtype": torch.float32, "memory_format": "contiguous"} | form)

    def open(self, config: StepConfig) -> InputPipeline:
        """Open the source of its batches; DataError where real data is required and cannot be read."""
        if config.workers is not None:
            config = replace(config, source="loader")
        self.check_choices(config, self.sources, self.decoders)
        data = self.real_data(config, "train" if config.training else "test")
        if data is not None:
            return self.read(config, data)
        if config.decode != "auto":
            raise ValueError("decode: synthetic images are not encoded. Leave it out, or give --accel-data.")
        return self.synthetic(config)

    def check_choices(self, config: StepConfig, sources: tuple[str, ...], decoders: tuple[str, ...]) -> None:
        for option, valid in (("source", sources), ("decode", decoders)):
            value = getattr(config, option)
            if value not in valid:
                raise ValueError(
                    f"{option}: {value!r} is not possible for {self.name} on {config.device.type}. Valid: "
                    f"{', '.join(valid)}. Or leave it out, and workers= too."
                )

    def check_labels(self, classes: int, least: int, most: int) -> None:
        """Refuse labels without a class: on CUDA a device-side assertion, which ends the process."""
        if least < 0 or most >= classes:
            raise ValueError(
                f"num_classes: {classes} do not fit the labels of {self.name} here, {least} to {most}. Leave it out. Or is it "
                "another set?"
            )

    def real_data(self, config: StepConfig, split: Split) -> Any:
        if config.source == "synthetic" or self.name in ALWAYS_SYNTHETIC:
            return None
        try:
            return self.find(config.data_root, split)
        except DataMissing as missing:
            if config.data_required:
                raise DataError(f"{missing}\nReal data is required here, and nothing replaces it.") from None
            if config.data_root is not None:
                reason = str(missing).replace("\n", " ")
                warnings.warn(f"{reason} Synthetic data replaces it.", SyntheticDataWarning, stacklevel=2)
            return None

    def synthetic(self, config: StepConfig) -> InputPipeline:
        """Rotate through a few batches that are made once on the device."""
        if config.source == "loader":
            raise ValueError(
                f"source: a loader reads files, and {self.name} is not here. Give its root: --accel-data."
            )
        # Of the global batch where there is one, so that the number is the same on any number of ranks.
        size = config.micro_batch_size or config.global_batch_size or self.batch_size
        whole = replace(self, batch_size=size)
        rotation = whole.rotation(config.dtype, config.micro_batches)
        form = {name: getattr(config, name) for name in ("seed", "device", "dtype", "memory_format")}
        batches = [self.make(index, rank=config.ranks.rank, **form) for index in range(rotation)]
        configuration: Configuration = {"data_source": "synthetic", "distinct_batches": rotation}
        return InputPipeline(source=RotatingSource(batches), configuration=configuration)

    def order(
        self, config: StepConfig, *, length: int, groups: tuple[int, ...] | None = None
    ) -> TrainingOrder:
        return TrainingOrder(
            length=length,
            batch_size=self.batch_size,
            rank=config.ranks.rank,
            world=config.ranks.size,
            seed=config.seed,
            shuffle=config.training,
            groups=groups,
        )

    @staticmethod
    def no_smoothing(label_smoothing: float, task: str) -> None:
        if label_smoothing:
            raise ValueError(f"label_smoothing: {task} has none. Leave it out.")

    @staticmethod
    def smoothed_cross_entropy(label_smoothing: float) -> Loss:
        """Return a cross entropy over the last dimension: of (batch, classes) or (batch, sequence, vocabulary)."""

        def cross_entropy(logits: Any, targets: Any) -> Any:
            if not isinstance(logits, torch.Tensor):
                raise TypeError(
                    f"the model returned {type(logits).__name__}, and the cross entropy needs logits. Pass loss=, a "
                    "callable of what the model returned and the targets, or turn other outputs off "
                    "(inception_v3, googlenet: model_options={'aux_logits': False})."
                )
            return torch.nn.functional.cross_entropy(
                logits.flatten(0, -2), targets.flatten(), label_smoothing=label_smoothing
            )

        return cross_entropy

    @staticmethod
    def host_batches(config: StepConfig, reader: Any, sampler: Any, **changes: Any) -> HostBatches:
        options = {
            "workers": spare_cpus() if config.workers is None else config.workers,
            "prefetch": config.prefetch,
            "cpus": config.cpus,
            "first_cpu": config.ranks.rank * (config.cpus or 0),
            "for_device": config.device.type != "cpu",
        }
        return HostBatches(reader, sampler, **options | changes)

    @staticmethod
    def configuration(config: StepConfig, source: str, *, images: int | None = None) -> Configuration:
        """Describe a source of `images` samples; None: synthetic."""
        found: Configuration = {"data_source": source}
        if images is not None:
            found["data_images"] = images
            found |= {"augment": config.augment} if config.training else {}
        if source != "resident":
            # As requested: the number of spare CPUs differs between allocations, and makes no other benchmark.
            workers = "auto" if config.workers is None else config.workers
            found |= {"workers": workers, "prefetch": config.prefetch}
            found |= {} if config.cpus is None else {"loader_cpus": config.cpus}
        return found | ({"decode": "host"} if source in {"files", "shards"} else {})


def shape_name(*sizes: int) -> str:
    return "x".join(map(str, sizes))


def rank_seed(rank: int, seed: int) -> int:
    """Return the seed of a rank: every rank draws its own numbers, and rank 0 those of a single device."""
    return seed + rank * RANK_STRIDE
