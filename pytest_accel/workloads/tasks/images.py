"""Classification and reconstruction of images: synthetic, through a loader, or resident on the device."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar, Literal

import torch
from torch.nn import functional as F

from pytest_accel.measure.device import DEVICE_QUEUES, MOST_QUEUES, is_nvidia, widen_device_queues
from pytest_accel.workloads.config import MEMORY_FORMATS, Configuration, StepConfig
from pytest_accel.workloads.data.encoded import EncodedImages
from pytest_accel.workloads.data.errors import SlowDecodingWarning
from pytest_accel.workloads.data.images import ArrayImages, Images, open_images
from pytest_accel.workloads.data.loader import (
    ArrayReader,
    EncodedReader,
    HostBatches,
    LoaderConfig,
    PhotographReader,
    Reader,
    SyntheticReader,
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
from pytest_accel.workloads.input_pipeline import (
    Destination,
    InputPipeline,
    NamedLoss,
    Plan,
    loading_configuration,
    loading_of,
    open_real_data,
    rank_seed,
    smoothed_cross_entropy,
    split_of,
)

EVALUATION_BATCH = 256
# Small batches cost the parent process more than their bytes do: one at a time, a WideResNet at batch 32 kept 75 % of
# its rate on an H200.
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
    def classifies(self) -> bool:  # type: ignore[override] # a class attribute of the base
        return not self.reconstructs

    @property
    def work(self) -> int:
        return self.batch_size

    @property
    def input_shape(self) -> str:
        return "x".join(map(str, self.shape))

    @property
    def described(self) -> Configuration:
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

    def open(self, config: StepConfig, to: Destination) -> InputPipeline:
        images = _images(config, self, split=split_of(config))
        _check_channels(self)
        if config.decode != "auto" and not isinstance(images, EncodedImages):
            raise ValueError(
                f"decode: {config.decode!r} is for encoded photographs, and {self.name} has none here. "
                "Give them with --accel-data, or leave it out."
            )
        if images is None:
            wants_loader = config.source == "loader" or config.workers is not None
            return _synthetic_bytes(config, self, to) if wants_loader else self.synthetic(to)
        if config.training:
            _check_labels(images, self)
        return _real(config, self, to, images)


def evaluation_batches(config: StepConfig, plan: Plan, to: Destination) -> Iterator[Batch]:
    """Yield the test images, each once over all ranks, as the model reads them; the last batch may be smaller."""
    assert isinstance(plan, ImagePlan)  # only these classify
    images = _images(replace(config, data_required=True, source="auto"), plan, split="test")
    assert images is not None  # required
    order = EvaluationOrder(
        length=len(images), batch_size=EVALUATION_BATCH, rank=to.ranks.rank, world=to.ranks.size
    )
    finish = _finish(plan, to, augment=False)
    loading = loading_of(config, to.ranks.rank)
    if isinstance(images, ArrayImages):
        loading = replace(loading, workers=0)
    reader = _reader(images, plan, on_device=False)
    batches = HostBatches(reader, order.requests(), loading, for_device=to.device.type != "cpu")
    try:
        for pixels, labels in batches:
            yield finish(pixels.to(to.device, non_blocking=True)), labels.to(to.device, non_blocking=True)
    finally:
        batches.close()


def _images(config: StepConfig, plan: ImagePlan, *, split: Literal["train", "test"]) -> Images | None:
    """Return the real data set, or None where synthetic data is to replace it."""
    images = open_real_data(config, lambda root: open_images(root, plan.name, split))
    if config.source == "resident" and isinstance(images, EncodedImages):
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
    """Refuse labels that the model has no class for: on CUDA a device-side assertion, which ends the process."""
    most = int(images.labels.max())
    if most >= plan.classes and not plan.reconstructs:
        raise ValueError(
            f"num_classes: {plan.classes} are too few for {plan.name}, whose images here have labels up to {most}. "
            f"Leave num_classes out: the set has {IMAGE_SETS[plan.name].classes}."
        )


def _synthetic_bytes(config: StepConfig, plan: ImagePlan, to: Destination) -> InputPipeline:
    """Return synthetic bytes through the loader: all of the way to the device, without a disk and a decoder."""
    loading = loading_of(config, to.ranks.rank)
    order = plan.order(to, length=IMAGE_SETS[plan.name].train_images)
    channels, size, _ = plan.shape
    reader = SyntheticReader(
        channels=channels, size=size, classes=plan.classes, seed=rank_seed(to.ranks.rank, to.seed)
    )
    finish = _finish(plan, to, augment=False)
    source = _through_loader(reader, order, loading, finish, to, image_bytes=size**2 * channels)
    configuration: Configuration = {"data_source": "host-synthetic", **loading_configuration(config)}
    return InputPipeline(source=source, configuration=configuration)


def _real(config: StepConfig, plan: ImagePlan, to: Destination, images: Images) -> InputPipeline:
    """Return arrays that are resident on the device, or what a loader reads."""
    photographs = images if isinstance(images, EncodedImages) else None
    groups = photographs.groups if photographs and photographs.storage == "shards" else None
    order = plan.order(to, length=len(images), shuffle=config.training, groups=groups)
    augment = config.augment and config.training
    configuration: Configuration = {"data_images": len(images)}
    if config.training:
        configuration["augment"] = augment
    if isinstance(images, ArrayImages) and config.source != "loader" and config.workers is None:
        source: BatchSource = ResidentSource(images, order, _finish(plan, to, augment=augment), to.device)
        return InputPipeline(
            source=source, configuration={"data_source": "resident", **configuration}, order=order
        )
    on_device = photographs is not None and _decodes_on_device(config, to.device)
    loading = loading_of(config, to.ranks.rank, readers_only=on_device)
    reader = _reader(images, plan, on_device=on_device)
    if photographs and on_device:
        if not widen_device_queues():
            warnings.warn(TOO_FEW_QUEUES, SlowDecodingWarning, stacklevel=2)
        source = DecodingSource(
            HostBatches(reader, order.requests(augment=False), loading, for_device=False),
            photographs,
            CropResize(_model_input(plan, to)),
            to.device,
            loading=loading,
            seed=rank_seed(to.ranks.rank, to.seed) if augment else None,
        )
    else:
        # Photographs are cropped by the decoding worker; small images by the device, on arrival.
        crop_on_host = augment and photographs is not None
        source = _through_loader(
            reader,
            order,
            loading,
            _finish(plan, to, augment=augment and not crop_on_host),
            to,
            image_bytes=images.images[0].numel()
            if isinstance(images, ArrayImages)
            else 3 * plan.shape[1] ** 2,
            augment=crop_on_host,
        )
    configuration |= {"data_source": photographs.storage if photographs else "arrays"}
    configuration |= loading_configuration(config)
    if photographs:
        configuration["decode"] = "device" if on_device else "host"
    return InputPipeline(source=source, configuration=configuration, order=order, threaded=on_device)


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
    """Return pixels through worker processes; small batches for a device come several at once."""
    on_device = to.device.type != "cpu"
    at_once = min(MOST_AT_ONCE, AT_ONCE_BYTES // (order.batch_size * image_bytes)) if on_device else 1
    at_once = max(1, at_once) if loading.workers else 1
    sampler = order.requests(augment=augment, at_once=at_once)
    batches = HostBatches(reader, sampler, loading, for_device=on_device)
    source = LoaderSource(batches, lambda batch: (finish(batch[0]), batch[1]), to.device, loading=loading)
    return SplitSource(source, batch_size=order.batch_size, batches=at_once) if at_once > 1 else source


def _reader(images: Images, plan: ImagePlan, *, on_device: bool) -> Reader:
    if isinstance(images, ArrayImages):
        return ArrayReader(images=images)
    return EncodedReader(images=images) if on_device else PhotographReader(images=images, size=plan.shape[1])


def _finish(plan: ImagePlan, to: Destination, *, augment: bool) -> PixelTransform:
    return PixelTransform(_model_input(plan, to), augment=augment, seed=rank_seed(to.ranks.rank, to.seed))


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


def _decodes_on_device(config: StepConfig, device: torch.device) -> bool:
    able = is_nvidia(device.type)  # nvJPEG
    if config.decode == "device" and not able:
        raise ValueError(f"decode: {device} has no decoder for JPEG. Write decode='host'.")
    return able and config.decode != "host"
