"""Images of many sizes on the device, cut, mirrored, resized and normalised into one batch: one pass, one kernel.

Resizing is bilinear. On the host it is antialiased, as torchvision's is; here it is not: photographs are shrunk by about
two, and the figures here are rates, not accuracies of a published recipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from pytest_accel.workloads.data.crops import Crop
from pytest_accel.workloads.data.finish import ModelInput, normalisation

Tensor: TypeAlias = Any  # torch is untyped here


class Sampler:
    """Decoded images and what is to be seen of each -> what a model reads.

    On a GPU the arithmetic is compiled, by the thread that makes the sampler: 38 million pixels are then read and written
    once, where their indices alone would take ten times the memory.
    """

    def __init__(self, wanted: ModelInput) -> None:
        self._wanted = wanted
        scale, shift = normalisation(wanted, torch.float32)
        self._scale, self._shift = scale.flatten(), shift.flatten()
        self._sampled = _sampled
        if wanted.device.type == "cuda":
            self._sampled = torch.compile(_sampled, dynamic=True)
            black = torch.zeros(3, 4, 5, dtype=torch.uint8, device=wanted.device)
            self([black] * 2, [Crop(top=0, left=0, height=4, width=5)] * 2)

    def __call__(self, images: Sequence[Tensor], crops: Sequence[Crop]) -> Tensor:
        wanted = self._wanted
        pixels = torch.cat([image.flatten() for image in images])
        places = torch.tensor(_places(images, crops))
        if wanted.device.type == "cuda":
            places = places.pin_memory().to(wanted.device, non_blocking=True)
        batch = self._sampled(pixels, places, self._scale, self._shift, size=wanted.size, dtype=wanted.dtype)
        return batch.permute(0, 3, 1, 2).contiguous(memory_format=wanted.memory_format)


def _places(images: Sequence[Tensor], crops: Sequence[Crop]) -> list[list[int]]:
    """Where the part of each image lies among the pixels of all."""
    places, begin = [], 0
    for image, crop in zip(images, crops, strict=True):
        _, height, width = image.shape
        first = begin + crop.top * width + crop.left
        places.append([first, width, height * width, crop.height, crop.width, crop.mirrored])
        begin += image.numel()
    return places


def _sampled(
    pixels: Tensor, places: Tensor, scale: Tensor, shift: Tensor, *, size: int, dtype: torch.dtype
) -> Tensor:
    """Return (image, row, column, colour). Not beyond the last pixel of a part, nor before its first."""
    first, row_stride, colour_stride, height, width, mirrored = (
        column.view(-1, 1, 1, 1) for column in places.unbind(1)
    )
    steps = torch.arange(size, device=pixels.device)
    rows, columns = steps.view(1, -1, 1, 1), steps.view(1, 1, -1, 1)
    columns = torch.where(mirrored > 0, size - 1 - columns, columns)
    colours = torch.arange(3, device=pixels.device).view(1, 1, 1, -1)
    above, below, down = _neighbours(rows, height, size)
    left, right, across = _neighbours(columns, width, size)

    def at(row: Tensor, column: Tensor) -> Tensor:
        return pixels[first + colours * colour_stride + row * row_stride + column].float()

    upper = torch.lerp(at(above, left), at(above, right), across)
    lower = torch.lerp(at(below, left), at(below, right), across)
    return (torch.lerp(upper, lower, down) * scale + shift).to(dtype)


def _neighbours(steps: Tensor, extent: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The pixels before and behind each step along an extent, and how far it is from the one to the other."""
    place = torch.minimum(((steps + 0.5) * extent / size - 0.5).clamp(min=0), extent - 1.0)
    before = place.long()
    return before, torch.minimum(before + 1, extent - 1), place - before
