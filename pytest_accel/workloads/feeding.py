"""What every task has to say to a source of batches: the choices, where batches go, and what was opened for them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import torch

from pytest_accel.measure.errors import unknown_value
from pytest_accel.measure.ranks import Ranks
from pytest_accel.workloads.data.errors import DataError, DataMissing, Split, SyntheticDataWarning
from pytest_accel.workloads.data.loader import HostBatches, LoaderConfig, spare_cpus
from pytest_accel.workloads.data.order import TrainingOrder
from pytest_accel.workloads.data.sources import Batch, BatchSource, LoaderSource

Task = Literal["train", "infer"]
Facts: TypeAlias = dict[str, str | int | float | bool | None]  # that define a benchmark, by name
Opened = TypeVar("Opened")

SOURCES = ("auto", "synthetic", "resident", "loader")
DECODERS = ("auto", "host", "device")
READERS_FOR_A_DECODER = 6  # they only read: on an H200 machine six feed a device that decodes 16,000 images/s
MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataChoices:
    """How batches come to a step; "auto" and None are settled here.

    auto: what lies in memory is kept on the device, files go through a loader; where there is no real data (no
    root, or the set is not in it) batches are synthetic, and through a loader where workers are asked for.
    """

    source: str = "auto"  # a name of SOURCES
    workers: int | None = None  # processes of the loader; None: as many as there are CPUs to spare
    prefetch: int = 2  # batches that each of them keeps ready
    pinned: bool = True  # read into memory that a device copies from by itself
    cpus: int | None = None  # that they may run on; None: all
    decode: str = "auto"  # a name of DECODERS; auto: on the device, where it can
    augment: bool = True  # random crops and mirroring, in training; digits are not mirrored
    data_root: Path | None = None  # where real data sets lie
    data_required: bool = False  # no real data is an error

    def check(self) -> None:
        """Refuse what no source can be made of, before a model is built for it."""
        if self.source not in SOURCES:
            raise unknown_value("source", self.source, SOURCES)
        if self.decode not in DECODERS:
            raise unknown_value("decode", self.decode, DECODERS)
        for name, value, least in (
            ("workers", self.workers, 0),
            ("prefetch", self.prefetch, 1),
            ("cpus", self.cpus, 1),
        ):
            if value is not None and value < least:
                raise ValueError(f"{name}: {value} is too few. Valid: {least} or more.")
        allowed = len(os.sched_getaffinity(0))
        if self.cpus is not None and self.cpus > allowed:
            raise ValueError(f"cpus: {self.cpus} were asked for, and this process may use {allowed}.")
        if self.source in {"synthetic", "resident"} and self.workers is not None:
            raise ValueError(
                f"workers: a {self.source} source has none. Write source='loader', or leave workers out."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where batches go: the device and the type that the model reads, and the ranks that share the samples."""

    device: torch.device
    dtype: torch.dtype
    memory_format: str
    seed: int
    ranks: Ranks
    rotation: int  # distinct synthetic batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """The source of a step's batches, and what defines it."""

    source: BatchSource
    configuration: Facts  # before what the plan says, where both say it
    order: TrainingOrder | None = None  # None: synthetic, without epochs
    threaded: bool = False  # threads of this process work beside the steps
    varied: bool = False  # batches differ in shape: what one of them costs is not what a step costs


def split_of(task: Task) -> Split:
    """Return the part of a data set that a step reads."""
    return "train" if task == "train" else "test"


def opened(choices: DataChoices, open_set: Callable[[Path | None], Opened]) -> Opened | None:
    """Open real data under the root, or None where made-up data is to stand in."""
    if choices.source == "synthetic":
        return None
    try:
        return open_set(choices.data_root)
    except DataMissing as missing:
        if choices.data_required:
            raise DataError(
                f"{missing}\nReal data is required here, and nothing stands in for it: name its root with --accel-data."
            ) from None
        if choices.data_root is not None:
            said = str(missing).replace("\n", " ")
            warnings.warn(f"{said} Synthetic data stands in.", SyntheticDataWarning, stacklevel=2)
        return None


def loaded(
    choices: DataChoices,
    to: Destination,
    reader: Any,  # noqa: ANN401 - as HostBatches takes it
    sampler: Any,  # noqa: ANN401 - as above
    arrive: Callable[[Any], Batch],
) -> LoaderSource:
    """What worker processes read, on its way to the device."""
    loading = loading_of(choices, to.ranks.rank)
    batches = HostBatches(reader, sampler, loading, for_device=to.device.type != "cpu")
    return LoaderSource(batches, arrive, to.device, loading=loading)


def files_facts(choices: DataChoices, *, images: int, task: Task) -> Facts:
    """What defines batches that the host decodes from so many files."""
    facts: Facts = {"data_source": "files", "data_images": images}
    if task == "train":
        facts["augment"] = choices.augment
    return facts | loading_facts(choices) | {"decode": "host"}


def loading_of(choices: DataChoices, rank: int, *, readers_only: bool = False) -> LoaderConfig:
    unasked = min(spare_cpus(), READERS_FOR_A_DECODER) if readers_only else spare_cpus()
    workers = unasked if choices.workers is None else choices.workers
    return LoaderConfig(
        workers=workers,
        prefetch=choices.prefetch,
        pinned=choices.pinned,
        cpus=choices.cpus,
        first_cpu=rank * (choices.cpus or 0),
    )


def loading_facts(choices: DataChoices) -> Facts:
    """As it was asked for: the number of CPUs to spare differs between allocations, and is no other benchmark."""
    facts: Facts = {"workers": "auto" if choices.workers is None else choices.workers}
    facts["prefetch"] = choices.prefetch
    if not choices.pinned:
        facts["pinned"] = False
    if choices.cpus is not None:
        facts["loader_cpus"] = choices.cpus
    return facts
