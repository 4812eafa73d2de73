"""What the batches of a benchmark look like, and synthetic ones: made once on the device from a fixed seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from pytest_accel.data.sets import IMAGE_SETS
from pytest_accel.workloads.errors import unknown_value

if TYPE_CHECKING:
    from pytest_accel.workloads.models import ModelInfo

# Distinct batches that a step rotates through: one single batch would sit in a CPU's cache, and a
# model learns it by heart within ten steps. Four are enough; fewer where they would crowd the device.
ROTATION = 4
ROTATION_BYTES = 2 * 1024**3
# Ranks draw from seeds this far apart. Within 32 bits: a CPU's generator forgets the rest of a seed.
RANK_STRIDE = 1_000_003

MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


DATA_NAMES = (*IMAGE_SETS, "tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlan:
    """What the batches of a benchmark look like; enough to make them, on any device."""

    name: str
    kind: Literal["image", "tokens"]
    batch_size: int
    classes: int  # labels are in range(classes); for tokens, the vocabulary
    shape: tuple[int, ...]  # of one input: (channels, height, width) or (sequence,)
    reconstructs: bool = False  # the target of an image is the image

    @property
    def unit(self) -> str:
        return "images" if self.kind == "image" else "tokens"

    @property
    def work(self) -> int:
        """Images or tokens in one batch."""
        return self.batch_size * (1 if self.kind == "image" else self.shape[0])

    def make(
        self,
        index: int,
        *,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        memory_format: str,
        rank: int = 0,
    ) -> Any:  # noqa: ANN401 - torch is untyped here
        """Return one batch: inputs and targets. The same seed, index and rank give the same batch."""
        random = torch.Generator(device).manual_seed(seed_of(rank, seed * ROTATION + index))
        if self.kind == "tokens":
            size = (self.batch_size, self.shape[0] + 1)
            tokens = torch.randint(self.classes, size, generator=random, device=device)
            return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        images = torch.randn((self.batch_size, *self.shape), generator=random, device=device)
        labels = torch.randint(self.classes, (self.batch_size,), generator=random, device=device)
        return images.to(dtype, memory_format=MEMORY_FORMATS[memory_format]), labels

    def rotation(self, dtype: torch.dtype) -> int:
        """Return how many distinct batches to keep: ROTATION, or at least two within ROTATION_BYTES."""
        elements = self.batch_size
        for extent in self.shape:
            elements *= extent
        element_bytes = dtype.itemsize if self.kind == "image" else 16  # int64 inputs and targets
        return max(2, min(ROTATION, ROTATION_BYTES // (elements * element_bytes)))


def seed_of(rank: int, seed: int) -> int:
    """Return the seed of a rank: every rank draws its own numbers, and rank 0 those of a single device."""
    return seed + rank * RANK_STRIDE


def plan_data(
    data: str | None,
    info: ModelInfo,
    *,
    batch_size: int,
    num_classes: int | None = None,
    sequence: int | None = None,
    vocabulary: int | None = None,
) -> DataPlan:
    """Fit a named data set to a model: its input size, its channels, its vocabulary."""
    name = data or ("tokens" if info.kind == "tokens" else "imagenet")
    check_data(name, batch_size=batch_size)
    if name == "tokens":
        return _plan_tokens(info, batch_size=batch_size, sequence=sequence, vocabulary=vocabulary)
    if info.kind == "tokens":
        raise ValueError(f"data: {name!r} holds images, and {info.name} reads tokens. Write data='tokens'.")
    images = IMAGE_SETS[name]
    size = info.image_size or images.image_size
    return DataPlan(
        name=name,
        kind="image",
        batch_size=batch_size,
        classes=num_classes or images.classes,
        shape=(info.channels or images.channels, size, size),
        reconstructs=info.task == "reconstruction",
    )


def check_data(name: str | None, *, batch_size: int) -> None:
    """Refuse an unknown data set or an impossible batch, before a model is built for it."""
    if name is not None and name not in DATA_NAMES:
        raise unknown_value(
            "data",
            name,
            DATA_NAMES,
            remedy="The name gives the shape of what a step reads, synthetic or not.",
        )
    if batch_size < 1:
        raise ValueError(f"batch_size: {batch_size} is not a positive number.")


def _plan_tokens(
    info: ModelInfo, *, batch_size: int, sequence: int | None, vocabulary: int | None
) -> DataPlan:
    if info.kind == "image" and not info.own:
        raise ValueError(
            f"data: 'tokens' does not fit {info.name}, which sees images. Valid: {', '.join(IMAGE_SETS)}."
        )
    sequence, vocabulary = sequence or info.sequence, vocabulary or info.vocabulary
    if not sequence or not vocabulary:
        raise ValueError(
            f"data: 'tokens' for {info.name} needs sequence= and vocabulary=: the model does not say them."
        )
    return DataPlan(
        name="tokens", kind="tokens", batch_size=batch_size, classes=vocabulary, shape=(sequence,)
    )


def make_batch(
    data: str,
    *,
    batch_size: int,
    device: torch.device,
    image_size: int | None = None,
    sequence: int | None = None,
    vocabulary: int | None = None,
    seed: int = 0,
    rank: int = 0,
) -> Any:  # noqa: ANN401 - torch is untyped here
    """Make one batch for a model of one's own: inputs and targets, in fp32 or as token numbers."""
    check_data(data, batch_size=batch_size)
    if data == "tokens":
        if not (sequence and vocabulary):
            raise ValueError("data: 'tokens' needs sequence= and vocabulary=.")
        plan = DataPlan(
            name=data, kind="tokens", batch_size=batch_size, classes=vocabulary, shape=(sequence,)
        )
    else:
        images = IMAGE_SETS[data]
        size = image_size or images.image_size
        shape = (images.channels, size, size)
        plan = DataPlan(name=data, kind="image", batch_size=batch_size, classes=images.classes, shape=shape)
    return plan.make(0, seed=seed, rank=rank, device=device, dtype=torch.float32, memory_format="contiguous")
