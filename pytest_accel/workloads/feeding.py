"""From a benchmark's arguments to the source of its batches: which data, on which way, in how many processes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from pytest_accel.data.errors import DataError, DataMissing, SlowDecodingWarning, SyntheticDataWarning
from pytest_accel.data.finish import Finish, ModelInput
from pytest_accel.data.images import ArrayImages, EncodedImages, Images, open_images
from pytest_accel.data.loader import (
    EvaluationBatches,
    HostBatches,
    Loading,
    TrainingBatches,
    spare_cpus,
)
from pytest_accel.data.order import EvaluationOrder, TrainingOrder
from pytest_accel.data.readers import ArrayReader, EncodedReader, InventedReader, PhotographReader, Reader
from pytest_accel.data.sampling import Sampler
from pytest_accel.data.sets import IMAGE_SETS
from pytest_accel.data.sources import Batch, Dealt, Decoded, Loaded, Resident, Rotation, Source
from pytest_accel.measure.device import DEVICE_QUEUES, MOST_QUEUES, is_nvidia, widen_device_queues
from pytest_accel.measure.ranks import Ranks
from pytest_accel.workloads.data import MEMORY_FORMATS, DataPlan, seed_of
from pytest_accel.workloads.errors import unknown_value

Task = Literal["train", "infer"]
Facts = dict[str, str | int | float | bool | None]

SOURCES = ("auto", "synthetic", "resident", "loader")
DECODERS = ("auto", "host", "device")
READERS_FOR_A_DECODER = 6  # they only read: on an H200 machine six feed a device that decodes 16,000 images/s
EVALUATION_BATCH = 256
# A batch of 32 small images costs a loader's parent more than it moves: on an H200 a WideResNet at batch 32 kept 75 %
# of its rate with one at a time.
AT_ONCE_BYTES = 1024**2
MOST_AT_ONCE = 10  # a round's steps
TOO_FEW_QUEUES = (
    f"CUDA has too few queues to the device: decoding there will wait for the steps. Set {DEVICE_QUEUES}={MOST_QUEUES} "
    "in the environment, or have nothing start CUDA before the benchmark."
)


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

    source: Source
    configuration: Facts
    order: TrainingOrder | None = None  # None: synthetic, without epochs
    threaded: bool = False  # threads of this process work beside the steps


def feed(choices: DataChoices, plan: DataPlan, to: Destination, *, task: Task) -> Feed:
    """Open the source; DataError where real data is asked for and cannot be read."""
    images = _images(choices, plan, split="train" if task == "train" else "test")
    if plan.kind == "image":
        _check_channels(plan)
    if choices.decode != "auto" and not isinstance(images, EncodedImages):
        raise ValueError(
            f"decode: {choices.decode!r} is for encoded photographs, and {plan.name} has none here. "
            "Give them with --accel-data, or leave it out."
        )
    if images is None:
        wants_loader = choices.source == "loader" or choices.workers is not None
        return _invented(choices, plan, to) if wants_loader else _synthetic(plan, to)
    if task == "train":
        _check_labels(images, plan)
    groups = images.groups if isinstance(images, EncodedImages) and images.storage == "shards" else None
    order = _order(plan, to, length=len(images), shuffle=task == "train", groups=groups)
    facts: Facts = {"data_images": len(images)}
    augment = choices.augment and task == "train"
    if task == "train":
        facts["augment"] = augment
    if isinstance(images, ArrayImages) and choices.source != "loader" and choices.workers is None:
        finish = _finish(plan, to, augment=augment)
        source = Resident(images, order, finish, to.device)
        return Feed(source=source, configuration={"data_source": "resident", **facts}, order=order)
    return _loaded(choices, plan, to, images, order, augment=augment, facts=facts)


def evaluation(choices: DataChoices, plan: DataPlan, to: Destination) -> Iterator[Batch]:
    """Yield the test images, each once over all ranks, as the model reads them; the last batch may be smaller."""
    images = _images(replace(choices, data_required=True, source="auto"), plan, split="test")
    assert images is not None  # required
    order = EvaluationOrder(
        length=len(images), batch_size=EVALUATION_BATCH, rank=to.ranks.rank, world=to.ranks.size
    )
    finish = _finish(plan, to, augment=False)
    loading = _loading(choices, to.ranks.rank)
    if isinstance(images, ArrayImages):
        loading = replace(loading, workers=0)
    reader = _reader(images, plan, on_device=False)
    batches = HostBatches(reader, EvaluationBatches(order), loading, for_device=to.device.type != "cpu")
    try:
        for pixels, labels in batches:
            yield finish(pixels.to(to.device, non_blocking=True)), labels.to(to.device, non_blocking=True)
    finally:
        batches.close()


def _images(choices: DataChoices, plan: DataPlan, *, split: Literal["train", "test"]) -> Images | None:
    """The real data set, or None where made-up data is to stand in."""
    if plan.kind == "tokens":
        if choices.source not in {"auto", "synthetic"}:
            raise ValueError(f"source: {choices.source!r} is for images; tokens are synthetic.")
        if choices.workers is not None:
            raise ValueError("workers: those of a loader of images; tokens are synthetic. Leave workers out.")
        return None
    if choices.source == "synthetic":
        return None
    try:
        images = open_images(choices.data_root, plan.name, split)
    except DataMissing as missing:
        if choices.data_required:
            raise DataError(
                f"{missing}\nReal data is required here, and nothing stands in for it: name its root with --accel-data."
            ) from None
        if choices.data_root is not None:
            said = str(missing).replace("\n", " ")
            warnings.warn(f"{said} Synthetic data stands in.", SyntheticDataWarning, stacklevel=2)
        return None
    if choices.source == "resident" and isinstance(images, EncodedImages):
        raise ValueError(
            f"source: {plan.name} is too large to be resident on a device. Write source='loader'."
        )
    return images


def _check_channels(plan: DataPlan) -> None:
    known, channels = IMAGE_SETS[plan.name], plan.shape[0]
    if known.channels not in {1, channels}:
        raise ValueError(
            f"data: the images of {plan.name} have {known.channels} channels, and the model reads {channels}. "
            "Give the model as many: only grey images are widened."
        )


def _check_labels(images: Images, plan: DataPlan) -> None:
    """A label outside the model's classes is a device-side assertion on CUDA, which ends the process."""
    most = int(images.labels.max())
    if most >= plan.classes and not plan.reconstructs:
        raise ValueError(
            f"num_classes: {plan.classes} are too few for {plan.name}, whose images here have labels up to {most}. "
            f"Leave num_classes out: the set has {IMAGE_SETS[plan.name].classes}."
        )


def _synthetic(plan: DataPlan, to: Destination) -> Feed:
    batches = [
        plan.make(
            index,
            seed=to.seed,
            rank=to.ranks.rank,
            device=to.device,
            dtype=to.dtype,
            memory_format=to.memory_format,
        )
        for index in range(to.rotation)
    ]
    facts: Facts = {"data_source": "synthetic", "distinct_batches": to.rotation}
    return Feed(source=Rotation(batches), configuration=facts)


def _invented(choices: DataChoices, plan: DataPlan, to: Destination) -> Feed:
    """Made-up bytes through the loader: all of the way to the device, without a disk and a decoder."""
    loading = _loading(choices, to.ranks.rank)
    order = _order(plan, to, length=IMAGE_SETS[plan.name].train_images)
    channels, size, _ = plan.shape
    reader = InventedReader(
        channels=channels, size=size, classes=plan.classes, seed=seed_of(to.ranks.rank, to.seed)
    )
    source = _through_loader(
        reader, order, loading, _finish(plan, to, augment=False), to, image_bytes=size**2 * channels
    )
    return Feed(source=source, configuration={"data_source": "host-synthetic", **_described(choices)})


def _loaded(
    choices: DataChoices,
    plan: DataPlan,
    to: Destination,
    images: Images,
    order: TrainingOrder,
    *,
    augment: bool,
    facts: Facts,
) -> Feed:
    photographs = isinstance(images, EncodedImages)
    on_device = photographs and _decodes_on_device(choices, to.device)
    loading = _loading(choices, to.ranks.rank, readers_only=on_device)
    reader = _reader(images, plan, on_device=on_device)
    source: Source
    if isinstance(images, EncodedImages) and on_device:
        if not widen_device_queues():
            warnings.warn(TOO_FEW_QUEUES, SlowDecodingWarning, stacklevel=2)
        source = Decoded(
            HostBatches(reader, TrainingBatches(order, augment=False), loading, for_device=False),
            images,
            Sampler(_model_input(plan, to)),
            to.device,
            buffered=loading.buffered,
            chance=seed_of(to.ranks.rank, to.seed) if augment else None,
        )
    else:
        # Photographs are cut by whoever decodes them; small images by the device, on arrival.
        finish = _finish(plan, to, augment=augment and not photographs)
        image_bytes = images.images[0].numel() if isinstance(images, ArrayImages) else 3 * plan.shape[1] ** 2
        cut = augment and photographs
        source = _through_loader(reader, order, loading, finish, to, image_bytes=image_bytes, augment=cut)
    facts = {"data_source": images.storage if isinstance(images, EncodedImages) else "arrays", **facts}
    facts |= _described(choices)
    if photographs:
        facts["decode"] = "device" if on_device else "host"
    return Feed(source=source, configuration=facts, order=order, threaded=on_device)


def _through_loader(
    reader: Reader,
    order: TrainingOrder,
    loading: Loading,
    finish: Finish,
    to: Destination,
    *,
    image_bytes: int,
    augment: bool = False,
) -> Source:
    """Pixels through worker processes; batches that are small, for a device, several at once."""
    on_device = to.device.type != "cpu"
    at_once = min(MOST_AT_ONCE, AT_ONCE_BYTES // (order.batch_size * image_bytes)) if on_device else 1
    at_once = max(1, at_once) if loading.workers else 1
    sampler = TrainingBatches(order, augment=augment, at_once=at_once)
    batches = HostBatches(reader, sampler, loading, for_device=on_device)
    source = Loaded(batches, finish, to.device, buffered=loading.buffered)
    return Dealt(source, batch_size=order.batch_size, batches=at_once) if at_once > 1 else source


def _reader(images: Images, plan: DataPlan, *, on_device: bool) -> Reader:
    if isinstance(images, ArrayImages):
        return ArrayReader(images=images)
    return EncodedReader(images=images) if on_device else PhotographReader(images=images, size=plan.shape[1])


def _order(
    plan: DataPlan,
    to: Destination,
    *,
    length: int,
    shuffle: bool = True,
    groups: tuple[int, ...] | None = None,
) -> TrainingOrder:
    return TrainingOrder(
        length=length,
        batch_size=plan.batch_size,
        rank=to.ranks.rank,
        world=to.ranks.size,
        seed=to.seed,
        shuffle=shuffle,
        groups=groups,
    )


def _finish(plan: DataPlan, to: Destination, *, augment: bool) -> Finish:
    return Finish(_model_input(plan, to), augment=augment, seed=seed_of(to.ranks.rank, to.seed))


def _model_input(plan: DataPlan, to: Destination) -> ModelInput:
    known = IMAGE_SETS[plan.name]
    return ModelInput(
        channels=plan.shape[0],
        size=plan.shape[1],
        device=to.device,
        dtype=to.dtype,
        memory_format=MEMORY_FORMATS[to.memory_format],
        mean=known.mean,
        std=known.std,
        mirrors=known.mirrors,
    )


def _decodes_on_device(choices: DataChoices, device: torch.device) -> bool:
    able = is_nvidia(device.type)  # nvJPEG
    if choices.decode == "device" and not able:
        raise ValueError(f"decode: {device} has no decoder for JPEG. Write decode='host'.")
    return able and choices.decode != "host"


def _loading(choices: DataChoices, rank: int, *, readers_only: bool = False) -> Loading:
    unasked = min(spare_cpus(), READERS_FOR_A_DECODER) if readers_only else spare_cpus()
    workers = unasked if choices.workers is None else choices.workers
    return Loading(
        workers=workers,
        prefetch=choices.prefetch,
        pinned=choices.pinned,
        cpus=choices.cpus,
        first_cpu=rank * (choices.cpus or 0),
    )


def _described(choices: DataChoices) -> Facts:
    """As it was asked for: the number of CPUs to spare differs between allocations, and is no other benchmark."""
    facts: Facts = {"workers": "auto" if choices.workers is None else choices.workers}
    facts["prefetch"] = choices.prefetch
    if not choices.pinned:
        facts["pinned"] = False
    if choices.cpus is not None:
        facts["loader_cpus"] = choices.cpus
    return facts
