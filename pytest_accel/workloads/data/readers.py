"""What a loader's worker does for one batch: indices in, bytes out; a sample that cannot be read is named.

A reader is handed to worker processes, and never touches a device. What goes wrong comes back as a value: an
exception would arrive as the traceback of another process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, TypeAlias

import torch

from pytest_accel.workloads.data.errors import DataError
from pytest_accel.workloads.data.images import ArrayImages, EncodedImages
from pytest_accel.workloads.data.jpeg import crop_for, decode_on_host, sized_on_host

Tensor: TypeAlias = Any  # torch is untyped here

INVENTED_IMAGES = 64  # that a worker keeps and repeats: drawing pixels would cost more than moving them


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Samples of one rank, of a step or several, and the chance with which they are cut."""

    step: int
    indices: Sequence[int]
    chance: int | None = (
        None  # the seed of the first, the next one has the next; None: the middle of every image
    )


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a batch could not be read."""

    text: str


Pixels: TypeAlias = tuple[Tensor, Tensor]  # uint8 (batch, channels, height, width), int64 (batch,)
Encoded: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]  # bytes of all, length of each, labels, indices


class Reader(Protocol):
    """What a DataLoader takes as its data set: from what its sampler wants to tensors, or a Problem."""

    def __getitem__(self, wanted: Any, /) -> Any: ...  # noqa: ANN401 - each task has a sampler of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayReader:
    """Samples of a set that lies in memory."""

    images: ArrayImages

    def __getitem__(self, wanted: Wanted) -> Pixels:
        chosen = torch.tensor(wanted.indices)
        return self.images.images[chosen], self.images.labels[chosen]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhotographReader:
    """JPEGs, decoded and cut to one size by the worker."""

    images: EncodedImages
    size: int

    def __getitem__(self, wanted: Wanted) -> Pixels | Problem:
        batch = torch.empty(len(wanted.indices), 3, self.size, self.size, dtype=torch.uint8)
        try:
            for place, index in enumerate(wanted.indices):
                random = None if wanted.chance is None else Random(wanted.chance + place)  # noqa: S311 - no secret
                pixels = decode_on_host(self.images.read(index), self.images.name(index))
                crop = crop_for(pixels.shape[1], pixels.shape[2], random)
                batch[place] = sized_on_host(pixels, crop, self.size)
        except DataError as error:
            return Problem(str(error))
        return batch, self.images.labels[torch.tensor(wanted.indices)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedReader:
    """JPEGs as they are, for a device that decodes them."""

    images: EncodedImages

    def __getitem__(self, wanted: Wanted) -> Encoded | Problem:
        try:
            read = [self.images.read(index) for index in wanted.indices]
        except DataError as error:
            return Problem(str(error))
        indices = torch.tensor(wanted.indices)
        lengths = torch.tensor([len(each) for each in read])
        return torch.cat(read), lengths, self.images.labels[indices], indices


class InventedReader:
    """Made-up pixels of the model's own size: what the way to the device costs by itself."""

    def __init__(self, *, channels: int, size: int, classes: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        shape = (INVENTED_IMAGES, channels, size, size)
        self._images = torch.randint(256, shape, dtype=torch.uint8, generator=random)
        self._labels = torch.randint(classes, (INVENTED_IMAGES,), generator=random)

    def __getitem__(self, wanted: Wanted) -> Pixels:
        chosen = torch.tensor(wanted.indices) % INVENTED_IMAGES
        return self._images[chosen], self._labels[chosen]
