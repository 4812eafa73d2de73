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
from pytest_accel.workloads.config import DECODERS, MEMORY_FORMATS, SOURCES, Configuration, Loss, StepConfig
from pytest_accel.workloads.data import loader
from pytest_accel.workloads.data.files import IMAGE_SETS, SlowDecodingWarning, Split
from pytest_accel.workloads.data.images import Images, open_images
from pytest_accel.workloads.data.pixels import CropResize, ModelInput, PixelTransform
from pytest_accel.workloads.data.sources import Batch, BatchSource, DecodingSource, LoaderSource, resident
from pytest_accel.workloads.input_pipeline import InputPipeline, ModelInfo, Plan, Sizes, rank_seed

EVALUATION_BATCH = 256
SYNTHETIC_IMAGES = 64  # that a worker keeps and repeats: drawing pixels would cost more than moving them
DECODER_READERS = 6  # they only read: on an H200 six keep up with 16,000 images/s decoded on the device
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
        if config.source != "loader":
            return Plan.synthetic(self, config)  # super() does not work in a class with slots
        channels, size, _ = self.shape
        random = torch.Generator().manual_seed(rank_seed(config.ranks.rank, config.seed))
        pixels = (SYNTHETIC_IMAGES, channels, size, size)
        drawn = loader.ArrayImages(
            images=torch.randint(256, pixels, dtype=torch.uint8, generator=random),
            labels=torch.randint(self.classes, pixels[:1], generator=random),
        )
        order = self.order(config, length=IMAGE_SETS[self.name].train_images)
        source = self._through_loader(config, drawn, order, augment=False)
        return InputPipeline(source=source, configuration=Plan.configuration(config, "host-synthetic"))

    def read(self, config: StepConfig, data: Images) -> InputPipeline:
        """Return arrays that are resident on the device, or what a loader reads."""
        nvidia = is_nvidia(config.device.type)
        if isinstance(data, loader.EncodedImages):  # too large to be resident on a device
            self.check_choices(config, ("auto", "loader"), DECODERS if nvidia else ("auto", "host"))
        else:
            self.check_choices(config, SOURCES, ("auto",))
        if config.training and not self.reconstructs:
            self.check_labels(self.classes, *(int(each) for each in data.labels.aminmax()))
        augment = config.augment and config.training
        on_device = False
        if isinstance(data, loader.ArrayImages):
            order = self.order(config, length=len(data))
            if config.source == "loader":
                name, source = "arrays", self._through_loader(config, data, order, augment=augment)
            else:
                name, samples = "resident", (data.images, data.labels)
                source = resident(samples, order, self._finish(config, augment=augment), config.device)
        else:
            order = self.order(config, length=len(data), groups=data.groups)
            name = "shards" if data.groups else "files"
            on_device = nvidia and config.decode != "host"  # nvJPEG
            if on_device:
                source = self._decoded_on_device(config, data, order, augment=augment)
            else:
                reader = loader.PhotographReader(images=data, size=self.shape[1])
                source = self._through_loader(config, reader, order, augment=augment)
        configuration = Plan.configuration(config, name, images=len(data))
        configuration |= {"decode": "device"} if on_device else {}
        return InputPipeline(source=source, configuration=configuration, order=order, threaded=on_device)

    def _decoded_on_device(
        self,
        config: StepConfig,
        images: loader.EncodedImages,
        order: loader.TrainingOrder,
        *,
        augment: bool,
    ) -> BatchSource:
        if not widen_device_queues():
            warnings.warn(TOO_FEW_QUEUES, SlowDecodingWarning, stacklevel=2)
        own = {} if config.workers is not None else {"workers": min(loader.spare_cpus(), DECODER_READERS)}
        batches = Plan.host_batches(config, images, order.requests(augment=False), for_device=False, **own)
        seed = rank_seed(config.ranks.rank, config.seed) if augment else None
        crop_resize = CropResize(self._model_input(config))
        return DecodingSource(batches, images, crop_resize, config.device, seed=seed)

    def _through_loader(
        self,
        config: StepConfig,
        reader: loader.ArrayImages | loader.PhotographReader,
        order: loader.TrainingOrder,
        *,
        augment: bool,
    ) -> BatchSource:
        """Return pixels through worker processes; small batches for a device come several at once.

        Photographs are cropped by the worker that decodes them, arrays on the device.
        """
        in_memory = isinstance(reader, loader.ArrayImages)
        at_once = 1
        if config.device.type != "cpu" and config.workers != 0:
            shape = reader.images.shape[1:] if isinstance(reader, loader.ArrayImages) else self.shape
            at_once = max(1, min(MOST_AT_ONCE, AT_ONCE_BYTES // (order.batch_size * prod(shape))))
        sampler = order.requests(augment=augment and not in_memory, at_once=at_once)
        return LoaderSource(
            Plan.host_batches(config, reader, sampler),
            self._finish(config, augment=augment and in_memory),
            config.device,
            at_once=at_once,
        )

    def _finish(self, config: StepConfig, *, augment: bool) -> Callable[[Batch], Batch]:
        """Return a function that turns the bytes of a batch on the device into what the model reads."""
        seed = rank_seed(config.ranks.rank, config.seed)
        transform = PixelTransform(self._model_input(config), augment=augment, seed=seed)
        return lambda batch: (transform(batch[0]), batch[1])

    def _model_input(self, config: StepConfig) -> ModelInput:
        known = IMAGE_SETS[self.name]
        return ModelInput(
            channels=self.shape[0],
            size=self.shape[1],
            device=config.device,
            dtype=config.dtype,
            memory_format=MEMORY_FORMATS[config.memory_format],
            mean=known.mean,
            std=known.std,
            mirrors=known.mirrors,
        )

    def test_batches(self, config: StepConfig) -> Iterator[Batch]:
        """Yield the test images, each once over all ranks, as the model reads them; the last batch may be smaller."""
        images = self.real_data(replace(config, data_required=True, source="auto"), "test")
        order = loader.evaluation_order(
            length=len(images), batch_size=EVALUATION_BATCH, rank=config.ranks.rank, world=config.ranks.size
        )
        finish = self._finish(config, augment=False)
        if isinstance(images, loader.ArrayImages):
            batches = Plan.host_batches(config, images, order, workers=0)
        else:
            reader = loader.PhotographReader(images=images, size=self.shape[1])
            batches = Plan.host_batches(config, reader, order)
        try:
            for pixels, labels in batches:
                yield finish((pixels.to(config.device), labels.to(config.device)))
        finally:
            batches.close()
