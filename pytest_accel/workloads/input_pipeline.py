"""Input pipelines: the data plan of a task, the source of its batches, and synthetic batches."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from math import gcd
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, TypeVar

import torch

from pytest_accel.measure.ranks import Ranks
from pytest_accel.workloads.config import Configuration, Loss, StepConfig
from pytest_accel.workloads.data.errors import DataError, DataMissing, Split, SyntheticDataWarning
from pytest_accel.workloads.data.loader import HostBatches, LoaderConfig, spare_cpus
from pytest_accel.workloads.data.order import TrainingOrder
from pytest_accel.workloads.data.sources import Batch, BatchSource, LoaderSource, RotatingSource

ModelTask: TypeAlias = Literal[
    "classification", "reconstruction", "language", "detection", "segmentation", "answering"
]
RealData = TypeVar("RealData")

READERS_FOR_A_DECODER = 6  # they only read: on an H200 six keep up with 16,000 images/s decoded on the device
# Distinct synthetic batches: a single one would stay in a CPU's cache, and a model memorizes it within ten steps.
ROTATION = 4
ROTATION_BYTES = 2 * 1024**3  # fewer batches where they take more memory
# Ranks draw from seeds this far apart. Within 32 bits: a CPU's generator ignores the rest of a seed.
RANK_STRIDE = 1_000_003


class NamedLoss(NamedTuple):
    """A loss, and its name in a configuration."""

    name: str
    function: Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Device and type that the model reads, and the ranks that share the samples."""

    device: torch.device
    dtype: torch.dtype
    memory_format: str
    seed: int
    ranks: Ranks
    rotation: int  # distinct synthetic batches


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPipeline:
    """The source of a step's batches, and what defines it."""

    source: BatchSource
    configuration: Configuration  # overrides the plan's
    order: TrainingOrder | None = None  # None: synthetic, without epochs
    threaded: bool = False  # threads of this process work during the steps
    varied: bool = False  # batches differ in shape, so that the cost of one is not that of a step


class Plan(ABC):
    """The batches of a task: shapes, loss, synthetic and real data. Frozen: FLOP counts are cached by it."""

    __slots__ = ()

    name: str  # of the data
    batch_size: int  # of one forward pass on one rank
    unit: ClassVar[str]  # of the work of a step
    reconstructs: bool = False  # the target of an input is the input
    classifies: bool = False  # has an accuracy
    classes: int | None = None  # that a model must have at least; None: its output does not tell

    @property
    @abstractmethod
    def work(self) -> int:
        """Units in one batch."""

    @property
    @abstractmethod
    def input_shape(self) -> str:
        """Of one sample: 3x224x224."""

    @property
    @abstractmethod
    def described(self) -> Configuration:
        """What else defines the batches."""

    @abstractmethod
    def draw(self, random: torch.Generator, dtype: torch.dtype, memory_format: str) -> Batch:
        """Return one synthetic batch on the generator's device."""

    @abstractmethod
    def on_meta(self) -> Batch:
        """Return a batch on the meta device, in fp32."""

    @abstractmethod
    def batch_bytes(self, dtype: torch.dtype) -> int:
        """Return the size of a synthetic batch on the device."""

    @abstractmethod
    def loss(self, label_smoothing: float) -> NamedLoss:
        """Return the task's own loss."""

    @abstractmethod
    def open(self, config: StepConfig, to: Destination) -> InputPipeline:
        """Open the source of its batches; DataError where real data is required and cannot be read."""

    def of_batch(self, batch_size: int) -> Self:
        return replace(self, batch_size=batch_size)  # type: ignore[type-var] # all of them are dataclasses

    def rotation(self, dtype: torch.dtype, micro_batches: int = 1) -> int:
        """Return the number of distinct synthetic batches: ROTATION, or at least two within ROTATION_BYTES.

        It shares no factor with the micro-batches of a step: every step would otherwise see the same ones.
        """
        fewest = max(2, min(ROTATION, ROTATION_BYTES // self.batch_bytes(dtype)))
        return next(number for number in count(fewest) if gcd(number, micro_batches) == 1)

    def make(
        self,
        index: int,
        *,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        memory_format: str,
        rank: int = 0,
    ) -> Batch:
        """Return one synthetic batch. The same seed, index and rank give the same batch."""
        random = torch.Generator(device).manual_seed(rank_seed(rank, seed * ROTATION + index))
        return self.draw(random, dtype, memory_format)

    def synthetic(self, to: Destination) -> InputPipeline:
        """Rotate through a few batches that are made once on the device."""
        batches = [
            self.make(
                index,
                seed=to.seed,
                rank=to.ranks.rank,
                device=to.device,
                dtype=to.dtype,
                memory_format=to.memory_format,
            )
            for index in range(to.rotation)
        ]
        configuration: Configuration = {"data_source": "synthetic", "distinct_batches": to.rotation}
        return InputPipeline(source=RotatingSource(batches), configuration=configuration)

    def order(
        self,
        to: Destination,
        *,
        length: int,
        shuffle: bool = True,
        groups: tuple[int, ...] | None = None,
    ) -> TrainingOrder:
        """Return the samples of a set that this rank takes, step after step."""
        return TrainingOrder(
            length=length,
            batch_size=self.batch_size,
            rank=to.ranks.rank,
            world=to.ranks.size,
            seed=to.seed,
            shuffle=shuffle,
            groups=groups,
        )


def rank_seed(rank: int, seed: int) -> int:
    """Return the seed of a rank: every rank draws its own numbers, and rank 0 those of a single device."""
    return seed + rank * RANK_STRIDE


def no_smoothing(label_smoothing: float, task: str) -> None:
    if label_smoothing:
        raise ValueError(f"label_smoothing: {task} has none. Leave it out.")


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


# --- real data -------------------------------------------------------------------------------------


def split_of(config: StepConfig) -> Split:
    return "train" if config.training else "test"


def open_real_data(config: StepConfig, open_set: Callable[[Path | None], RealData]) -> RealData | None:
    """Open real data under the root, or return None where synthetic data is to replace it."""
    if config.source == "synthetic":
        return None
    try:
        return open_set(config.data_root)
    except DataMissing as missing:
        if config.data_required:
            raise DataError(
                f"{missing}\nReal data is required here, and nothing replaces it: name its root with --accel-data."
            ) from None
        if config.data_root is not None:
            reason = str(missing).replace("\n", " ")
            warnings.warn(f"{reason} Synthetic data replaces it.", SyntheticDataWarning, stacklevel=2)
        return None


def check_pipeline(
    config: StepConfig, data: str, *, sources: tuple[str, ...], decoders: tuple[str, ...] = ("auto",)
) -> None:
    """Refuse a source, workers or a decoder that this data does not have."""
    if config.source not in sources:
        raise ValueError(
            f"source: {config.source!r} is not possible for {data}. Valid: {', '.join(sources)}. Or leave it out."
        )
    if config.workers is not None and "loader" not in sources:
        raise ValueError(f"workers: {data} is read from memory, without a loader. Leave workers out.")
    if config.decode not in decoders:
        raise ValueError(
            f"decode: {config.decode!r} is not possible for {data}. Valid: {', '.join(decoders)}. Or leave it out."
        )


def check_synthetic(config: StepConfig, data: str) -> None:
    """Refuse what needs files, where there are none."""
    if config.source == "loader" or config.workers is not None:
        raise ValueError(
            f"source: a loader reads files, and {data} is not here. Name its root with --accel-data, or leave source "
            "and workers out."
        )
    if config.decode != "auto":
        raise ValueError("decode: synthetic images are not encoded. Leave it out, or give --accel-data.")


def through_loader(
    config: StepConfig, to: Destination, reader: Any, sampler: Any, arrive: Callable[[Any], Batch]
) -> LoaderSource:
    """Return batches that worker processes read, and that `arrive` finishes on the device."""
    loading = loading_of(config, to.ranks.rank)
    batches = HostBatches(reader, sampler, loading, for_device=to.device.type != "cpu")
    return LoaderSource(batches, arrive, to.device, loading=loading)


def loading_of(config: StepConfig, rank: int, *, readers_only: bool = False) -> LoaderConfig:
    default = min(spare_cpus(), READERS_FOR_A_DECODER) if readers_only else spare_cpus()
    return LoaderConfig(
        workers=default if config.workers is None else config.workers,
        prefetch=config.prefetch,
        pinned=config.pinned,
        cpus=config.cpus,
        first_cpu=rank * (config.cpus or 0),
    )


def loading_configuration(config: StepConfig) -> Configuration:
    """As requested: the number of spare CPUs differs between allocations, and makes no other benchmark."""
    found: Configuration = {
        "workers": "auto" if config.workers is None else config.workers,
        "prefetch": config.prefetch,
    }
    if not config.pinned:
        found["pinned"] = False
    if config.cpus is not None:
        found["loader_cpus"] = config.cpus
    return found


def files_configuration(config: StepConfig, *, images: int) -> Configuration:
    """Return what defines batches that the host decodes from files."""
    found: Configuration = {"data_source": "files", "data_images": images}
    if config.training:
        found["augment"] = config.augment
    return found | loading_configuration(config) | {"decode": "host"}
