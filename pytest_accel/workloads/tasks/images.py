"""Images with a label each, or to be rebuilt: synthetic on the device, through a loader, or kept there whole."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar, Literal

import torch
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

from pytest_accel.measure.device import DEVICE_QUEUES, MOST_QUEUES, is_nvidia, widen_device_queues
from pytest_accel.workloads.data.errors import SlowDecodingWarning
from pytest_accel.workloads.data.images import ArrayImages, EncodedImages, Images, open_images
from pytest_accel.workloads.data.loader import (
    ArrayReader,
    EncodedReader,
    EvaluationBatches,
    HostBatches,
    LoaderConfig,
    PhotographReader,
    Reader,
    SyntheticReader,
    TrainingBatches,
)
from pytest_accel.workloads.data.order import EvaluationOrder, TrainingOrder
from pytest_accel.workloads.data.pixels import CropResize, ModelInput, PixelTransform
from pytest_accel.workloads.data.sets import IMAGE_SETS
from pytest_accel.workloads.data.sources import (
    Batch,
    BatchSource,
    DecodingSource,
    LoaderSource,
    ResidentSource,
    SplitSource,
)
from pytest_accel.workloads.feeding import (
    MEMORY_FORMATS,
    DataChoices,
    Destination,
    Facts,
    Feed,
    Task,
    loading_facts,
    loading_of,
    opened,
    split_of,
)
from pytest_accel.workloads.losses import smoothed_cross_entropy
from pytest_accel.workloads.plan import NamedLoss, Plan, seed_of

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
class ImagePlan(Plan):
    """Images of one shape, with a label each."""

    name: str
    batch_size: int
    classes: int  # labels are in range(classes)
    shape: tuple[int, int, int]  # channels, height, width
    reconstructs: bool = False
    unit: ClassVar[str] = "images"

    @property
    def classifies(self) -> bool:  # type: ignore[override] # it is one, and it is known only here
        return not self.reconstructs

    @property
    def work(self) -> int:
        return self.batch_size

    @property
    def input_shape(self) -> str:
        return "x".join(map(str, self.shape))

    @property
    def described(self) -> Facts:
        return {"num_classes": self.classes}

    def draw(self, random: torch.Generator, dtype: torch.dtype, memory_format: str) -> Batch:
        images = torch.randn((self.batch_size, *self.shape), generator=random, device=random.device)
        labels = torch.randint(self.classes, (self.batch_size,), generator=random, device=random.device)
        return images.to(dtype, memory_format=MEMORY_FORMATS[memory_format]), labels

    def on_meta(self) -> Batch:
        inputs = torch.empty((self.batch_size, *self.shape), device="meta")
        labels = torch.empty(self.batch_size, device="meta", dtype=torch.long)
        return inputs, inputs if self.reconstructs else labels

    def batch_bytes(self, dtype: torch.dtype) -> int:
        return self.batch_size * prod(self.shape) * dtype.itemsize

    def loss(self, label_smoothing: float) -> NamedLoss:
        if self.reconstructs:
            return NamedLoss("mse", F.mse_loss)
        return NamedLoss("cross_entropy", smoothed_cross_entropy(label_smoothing))

    def feed(self, choices: DataChoices, to: Destination, *, task: Task) -> Feed:
        return _feed(choices, self, to, task=task)


def _feed(choices: DataChoices, plan: ImagePlan, to: Destination, *, task: Task) -> Feed:
    images = _images(choices, plan, split=split_of(task))
    _check_channels(plan)
    if choices.decode != "auto" and not isinstance(images, EncodedImages):
        raise ValueError(
            f"decode: {choices.decode!r} is for encoded photographs, and {plan.name} has none here. "
            "Give them with --accel-data, or leave it out."
        )
    if images is None:
        wants_loader = choices.source == "loader" or choices.workers is not None
        return _invented(choices, plan, to) if wants_loader else plan.synthetic(to)
    if task == "train":
        _check_labels(images, plan)
    groups = images.groups if isinstance(images, EncodedImages) and images.storage == "shards" else None
    order = plan.order(to, length=len(images), shuffle=task == "train", groups=groups)
    facts: Facts = {"data_images": len(images)}
    augment = choices.augment and task == "train"
    if task == "train":
        facts["augment"] = augment
    if isinstance(images, ArrayImages) and choices.source != "loader" and choices.workers is None:
        finish = _finish(plan, to, augment=augment)
        source = ResidentSource(images, order, finish, to.device)
        return Feed(source=source, configuration={"data_source": "resident", **facts}, order=order)
    return _loaded(choices, plan, to, images, order, augment=augment, facts=facts)


def evaluation(choices: DataChoices, plan: Plan, to: Destination) -> Iterator[Batch]:
    """Yield the test images, each once over all ranks, as the model reads them; the last batch may be smaller."""
    assert isinstance(plan, ImagePlan)  # what classifies is one
    images = _images(replace(choices, data_required=True, source="auto"), plan, split="test")
    assert images is not None  # required
    order = EvaluationOrder(
        length=len(images), batch_size=EVALUATION_BATCH, rank=to.ranks.rank, world=to.ranks.size
    )
    finish = _finish(plan, to, augment=False)
    loading = loading_of(choices, to.ranks.rank)
    if isinstance(images, ArrayImages):
        loading = replace(loading, workers=0)
    reader = _reader(images, plan, on_device=False)
    batches = HostBatches(reader, EvaluationBatches(order), loading, for_device=to.device.type != "cpu")
    try:
        for pixels, labels in batches:
            yield finish(pixels.to(to.device, non_blocking=True)), labels.to(to.device, non_blocking=True)
    finally:
        batches.close()


def _images(choices: DataChoices, plan: ImagePlan, *, split: Literal["train", "test"]) -> Images | None:
    """The real data set, or None where made-up data is to stand in."""
    images = opened(choices, lambda root: open_images(root, plan.name, split))
    if choices.source == "resident" and isinstance(images, EncodedImages):
        raise ValueError(
            f"source: {plan.name} is too large to be resident on a device. Write source='loader'."
        )
    return images


def _check_channels(plan: ImagePlan) -> None:
    known, channels = IMAGE_SETS[plan.name], plan.shape[0]
    if known.channels not in {1, channels}:
        raise ValueError(
            f"data: the images of {plan.name} have {known.channels} channels, and the model reads {channels}. "
            "Give the model as many: only grey images are widened."
        )


def _check_labels(images: Images, plan: ImagePlan) -> None:
    """A label outside the model's classes is a device-side assertion on CUDA, which ends the process."""
    most = int(images.labels.max())
    if most >= plan.classes and not plan.reconstructs:
        raise ValueError(
            f"num_classes: {plan.classes} are too few for {plan.name}, whose images here have labels up to {most}. "
            f"Leave num_classes out: the set has {IMAGE_SETS[plan.name].classes}."
        )


def _invented(choices: DataChoices, plan: ImagePlan, to: Destination) -> Feed:
    """Made-up bytes through the loader: all of the way to the device, without a disk and a decoder."""
    loading = loading_of(choices, to.ranks.rank)
    order = plan.order(to, length=IMAGE_SETS[plan.name].train_images)
    channels, size, _ = plan.shape
    reader = SyntheticReader(
        channels=channels, size=size, classes=plan.classes, seed=seed_of(to.ranks.rank, to.seed)
    )
    source = _through_loader(
        reader, order, loading, _finish(plan, to, augment=False), to, image_bytes=size**2 * channels
    )
    return Feed(source=source, configuration={"data_source": "host-synthetic", **loading_facts(choices)})


def _loaded(
    choices: DataChoices,
    plan: ImagePlan,
    to: Destination,
    images: Images,
    order: TrainingOrder,
    *,
    augment: bool,
    facts: Facts,
) -> Feed:
    photographs = isinstance(images, EncodedImages)
    on_device = photographs and _decodes_on_device(choices, to.device)
    loading = loading_of(choices, to.ranks.rank, readers_only=on_device)
    reader = _reader(images, plan, on_device=on_device)
    source: BatchSource
    if isinstance(images, EncodedImages) and on_device:
        if not widen_device_queues():
            warnings.warn(TOO_FEW_QUEUES, SlowDecodingWarning, stacklevel=2)
        source = DecodingSource(
            HostBatches(reader, TrainingBatches(order, augment=False), loading, for_device=False),
            images,
            CropResize(_model_input(plan, to)),
            to.device,
            loading=loading,
            seed=seed_of(to.ranks.rank, to.seed) if augment else None,
        )
    else:
        # Photographs are cut by whoever decodes them; small images by the device, on arrival.
        finish = _finish(plan, to, augment=augment and not photographs)
        image_bytes = images.images[0].numel() if isinstance(images, ArrayImages) else 3 * plan.shape[1] ** 2
        cut = augment and photographs
        source = _through_loader(reader, order, loading, finish, to, image_bytes=image_bytes, augment=cut)
    facts = {"data_source": images.storage if isinstance(images, EncodedImages) else "arrays", **facts}
    facts |= loading_facts(choices)
    if photographs:
        facts["decode"] = "device" if on_device else "host"
    return Feed(source=source, configuration=facts, order=order, threaded=on_device)


def _through_loader(
    reader: Reader,
    order: TrainingOrder,
    loading: LoaderConfig,
    finish: PixelTransform,
    to: Destination,
    *,
    image_bytes: int,
    augment: bool = False,
) -> BatchSource:
    """Pixels through worker processes; batches that are small, for a device, several at once."""
    on_device = to.device.type != "cpu"
    at_once = min(MOST_AT_ONCE, AT_ONCE_BYTES // (order.batch_size * image_bytes)) if on_device else 1
    at_once = max(1, at_once) if loading.workers else 1
    sampler = TrainingBatches(order, augment=augment, at_once=at_once)
    batches = HostBatches(reader, sampler, loading, for_device=on_device)
    source = LoaderSource(batches, lambda batch: (finish(batch[0]), batch[1]), to.device, loading=loading)
    return SplitSource(source, batch_size=order.batch_size, batches=at_once) if at_once > 1 else source


def _reader(images: Images, plan: ImagePlan, *, on_device: bool) -> Reader:
    if isinstance(images, ArrayImages):
        return ArrayReader(images=images)
    return EncodedReader(images=images) if on_device else PhotographReader(images=images, size=plan.shape[1])


def _finish(plan: ImagePlan, to: Destination, *, augment: bool) -> PixelTransform:
    return PixelTransform(_model_input(plan, to), augment=augment, seed=seed_of(to.ranks.rank, to.seed))


def _model_input(plan: ImagePlan, to: Destination) -> ModelInput:
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
