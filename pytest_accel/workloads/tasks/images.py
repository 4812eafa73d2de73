"""Classification and reconstruction of images: synthetic, through a loader, or resident on the device."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch.nn import functional as F

from pytest_accel.measure.device import DEVICE_QUEUES, MOST_QUEUES, is_nvidia, widen_device_queues
from pytest_accel.workloads.config import DECODERS, MEMORY_FORMATS, Configuration, Loss, StepConfig
from pytest_accel.workloads.data import loader
from pytest_accel.workloads.data.files import IMAGE_SETS, SlowDecodingWarning, Split
from pytest_accel.workloads.data.images import Images, open_images
from pytest_accel.workloads.data.pixels import CropResize, ModelInput, PixelTransform
from pytest_accel.workloads.data.sources import Batch, BatchSource, DecodingSource, SplitSource, resident
from pytest_accel.workloads.input_pipeline import InputPipeline, ModelInfo, Plan, Sizes, rank_seed

EVALUATION_BATCH = 256
SYNTHETIC_IMAGES = 64  # that a worker keeps and repeats: drawing pixels would cost more than moving them
READERS_FOR_A_DECODER = 6  # they only read: on an H200 six keep up with 16,000 images/s decoded on the device
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
    classes: int  # type: ignore[misc] # labels are in range(classes)
    shape: tuple[int, int, int]  # channels, height, width
    reconstructs: bool = False  # type: ignore[misc]
    decoders: ClassVar[tuple[str, ...]] = DECODERS

    @classmethod
    def fit(cls, name: str, batch_size: int, info: ModelInfo, given: Sizes) -> Self:
        images = IMAGE_SETS[name]
        size, channels = info.image_size or images.image_size, info.channels or images.channels
        if images.channels not in {1, channels}:
            raise ValueError(
                f"data: the images of {name} have {images.channels} channels, and the model reads {channels}. "
                "Give the model as many: only grey images are widened."
            )
        return cls(
            name=name,
            batch_size=batch_size,
            classes=given.num_classes or images.classes,
            shape=(channels, size, size),
            reconstructs=info.task == "reconstruction",
        )

    @property
    def described(self) -> Configuration:
        return {"num_classes": self.classes}

    def draw(self, random: torch.Generator, dtype: torch.dtype, memory_format: str) -> Batch:
        images = torch.randn((self.batch_size, *self.shape), generator=random, device=random.device)
        labels = torch.randint(self.classes, (self.batch_size,), generator=random, device=random.device)
        return images.to(dtype, memory_format=MEMORY_FORMATS[memory_format]), labels

    def loss(self, label_smoothing: float) -> tuple[str, Loss]:
        if self.reconstructs:
            return "mse", F.mse_loss
        return "cross_entropy", Plan.smoothed_cross_entropy(label_smoothing)

    def find(self, root: Path | None, split: Split) -> Images:
        return open_images(root, self.name, split)

    def synthetic(self, config: StepConfig) -> InputPipeline:
        """Rotate through batches on the device, or read synthetic bytes through a loader: without a disk and a decoder."""
        if config.source != "loader" and config.workers is None:
            return Plan.synthetic(self, config)  # super() does not work in a class with slots
        channels, size, _ = self.shape
        random = torch.Generator().manual_seed(rank_seed(config.ranks.rank, config.seed))
        pixels = (SYNTHETIC_IMAGES, channels, size, size)
        drawn = loader.ArrayImages(
            images=torch.randint(256, pixels, dtype=torch.uint8, generator=random),
            labels=torch.randint(self.classes, pixels[:1], generator=random),
        )
        order = self.order(config, length=IMAGE_SETS[self.name].train_images)
        source = _through_loader(config, self, drawn, order)
        configuration: Configuration = {"data_source": "host-synthetic", **Plan.loading_configuration(config)}
        return InputPipeline(source=source, configuration=configuration)

    def read(self, config: StepConfig, data: Images) -> InputPipeline:
        """Return arrays that are resident on the device, or what a loader reads."""
        self._check(config, data)
        augment = config.augment and config.training
        if isinstance(data, loader.ArrayImages):
            order = self.order(config, length=len(data))
            configuration = Plan.data_configuration(config, "resident", images=len(data))
            if config.source != "loader" and config.workers is None:
                finish = _finish(config, self, augment=augment)
                source: BatchSource = resident((data.images, data.labels), order, finish, config.device)
            else:
                source = _through_loader(config, self, data, order, augment=augment)
                configuration |= {"data_source": "arrays", **Plan.loading_configuration(config)}
            return InputPipeline(source=source, configuration=configuration, order=order)
        order = self.order(config, length=len(data), groups=data.groups)
        configuration = Plan.files_configuration(config, images=len(data))
        configuration |= {"data_source": "shards"} if data.groups else {}
        on_device = is_nvidia(config.device.type) and config.decode != "host"  # nvJPEG
        if on_device:
            source = _decoded_on_device(config, self, data, order, augment=augment)
            configuration["decode"] = "device"
        else:
            reader = loader.PhotographReader(images=data, size=self.shape[1])
            source = _through_loader(config, self, reader, order, augment=augment)
        return InputPipeline(source=source, configuration=configuration, order=order, threaded=on_device)

    def _check(self, config: StepConfig, data: Images) -> None:
        encoded = isinstance(data, loader.EncodedImages)
        if config.source == "resident" and encoded:
            raise ValueError(
                f"source: {self.name} is too large to be resident on a device. Write source='loader'."
            )
        if config.decode != "auto" and not encoded:
            raise ValueError(
                f"decode: {config.decode!r} is for encoded photographs, and {self.name} has none. Leave it out."
            )
        if config.decode == "device" and not is_nvidia(config.device.type):
            raise ValueError(f"decode: {config.device} has no decoder for JPEG. Write decode='host'.")
        most = int(data.labels.max())
        # On CUDA a label without a class is a device-side assertion, which ends the process.
        if config.training and most >= self.classes and not self.reconstructs:
            raise ValueError(
                f"num_classes: {self.classes} are too few for {self.name}, whose images here have labels up to {most}. "
                f"Leave num_classes out: the set has {IMAGE_SETS[self.name].classes}."
            )


def evaluation_batches(config: StepConfig, plan: ImagePlan) -> Iterator[Batch]:
    """Yield the test images, each once over all ranks, as the model reads them; the last batch may be smaller."""
    images = plan.real_data(replace(config, data_required=True, source="auto"), "test")
    order = loader.evaluation_order(
        length=len(images), batch_size=EVALUATION_BATCH, rank=config.ranks.rank, world=config.ranks.size
    )
    finish = _finish(config, plan, augment=False)
    if isinstance(images, loader.ArrayImages):
        batches = Plan.host_batches(config, images, order, workers=0)
    else:
        batches = Plan.host_batches(config, loader.PhotographReader(images=images, size=plan.shape[1]), order)
    try:
        for pixels, labels in batches:
            yield finish(
                (pixels.to(config.device, non_blocking=True), labels.to(config.device, non_blocking=True))
            )
    finally:
        batches.close()


def _decoded_on_device(
    config: StepConfig,
    plan: ImagePlan,
    images: loader.EncodedImages,
    order: loader.TrainingOrder,
    *,
    augment: bool,
) -> DecodingSource:
    if not widen_device_queues():
        warnings.warn(TOO_FEW_QUEUES, SlowDecodingWarning, stacklevel=2)
    workers = min(loader.spare_cpus(), READERS_FOR_A_DECODER) if config.workers is None else config.workers
    return DecodingSource(
        Plan.host_batches(config, images, order.requests(augment=False), workers=workers, for_device=False),
        images,
        CropResize(_model_input(config, plan)),
        config.device,
        seed=rank_seed(config.ranks.rank, config.seed) if augment else None,
    )


def _through_loader(
    config: StepConfig,
    plan: ImagePlan,
    reader: loader.ArrayImages | loader.PhotographReader,
    order: loader.TrainingOrder,
    *,
    augment: bool = False,
) -> BatchSource:
    """Return pixels through worker processes; small batches for a device come several at once.

    Photographs are cropped by the worker that decodes them, arrays on the device.
    """
    in_memory = isinstance(reader, loader.ArrayImages)
    at_once = 1
    if config.device.type != "cpu" and config.workers != 0:
        shape = reader.images.shape[1:] if isinstance(reader, loader.ArrayImages) else plan.shape
        at_once = max(1, min(MOST_AT_ONCE, AT_ONCE_BYTES // (order.batch_size * prod(shape))))
    sampler = order.requests(augment=augment and not in_memory, at_once=at_once)
    finish = _finish(config, plan, augment=augment and in_memory)
    source = Plan.through_loader(config, reader, sampler, finish)
    return SplitSource(source, batch_size=order.batch_size, batches=at_once) if at_once > 1 else source


def _finish(config: StepConfig, plan: ImagePlan, *, augment: bool) -> Callable[[Batch], Batch]:
    """Return a function that turns the bytes of a batch on the device into what the model reads."""
    seed = rank_seed(config.ranks.rank, config.seed)
    transform = PixelTransform(_model_input(config, plan), augment=augment, seed=seed)
    return lambda batch: (transform(batch[0]), batch[1])


def _model_input(config: StepConfig, plan: ImagePlan) -> ModelInput:
    known = IMAGE_SETS[plan.name]
    return ModelInput(
        channels=plan.shape[0],
        size=plan.shape[1],
        device=config.device,
        dtype=config.dtype,
        memory_format=MEMORY_FORMATS[config.memory_format],
        mean=known.mean,
        std=known.std,
        mirrors=known.mirrors,
    )
