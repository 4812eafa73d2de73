"""The last step of loading, on the device: from pixels in bytes to what a model reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

Tensor: TypeAlias = Any  # torch is untyped here

SHIFT_SHARE = (
    8  # of a side, by which an image is shifted at most: 4 pixels of 32, as CIFAR is trained; 1 of 8
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInput:
    """What a model reads: its shape, its type, where."""

    channels: int
    size: int  # pixels, height and width
    device: torch.device
    dtype: torch.dtype
    memory_format: torch.memory_format
    mean: tuple[float, ...]  # per channel of the data, of values from 0 to 1
    std: tuple[float, ...]
    mirrors: bool = True  # whether a mirrored image keeps its label


def labelled(finish: Finish) -> Callable[[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
    """Return what does it to the pixels of a batch, and leaves their labels alone."""
    return lambda batch: (finish(batch[0]), batch[1])


class Finish:
    """Pixels of any size (batch, channels, height, width) -> the model's input, without waiting for the device.

    Bytes cross to the device, and a quarter of the traffic is all there is: widening, resizing and normalising
    happen there.
    """

    def __init__(self, wanted: ModelInput, *, augment: bool = False, seed: int = 0) -> None:
        self._wanted = wanted
        self._augment = augment
        self._scale, self._shift = normalisation(wanted, wanted.dtype)
        self._random = torch.Generator(wanted.device).manual_seed(seed)

    def __call__(self, pixels: Tensor) -> Tensor:
        wanted = self._wanted
        if self._augment:
            pixels = cut(pixels, self._random)
            pixels = flipped(pixels, self._random) if wanted.mirrors else pixels
        images = pixels.to(wanted.dtype)
        if images.shape[1] == 1 and wanted.channels > 1:
            images = images.expand(-1, wanted.channels, -1, -1)
        if images.shape[-2:] != (wanted.size, wanted.size):
            images = F.interpolate(
                images, size=(wanted.size, wanted.size), mode="bilinear", align_corners=False
            )
        images = torch.addcmul(self._shift, images, self._scale)
        return images.contiguous(memory_format=wanted.memory_format)


def normalisation(wanted: ModelInput, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(x / 255 - mean) / std as one factor and one summand for each channel."""
    mean, std = wanted.mean, wanted.std
    if len(mean) == 1:
        mean, std = mean * wanted.channels, std * wanted.channels
    return factors(mean, std, device=wanted.device, dtype=dtype)


def factors(
    mean: Sequence[float], std: Sequence[float], *, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return (1, channels, 1, 1) each: a factor and a summand that turn bytes into what a model reads."""
    centre, spread = torch.tensor(mean).view(1, -1, 1, 1), torch.tensor(std).view(1, -1, 1, 1)
    # Made on the host, and there when the copy returns: other streams read them.
    return (1 / (255 * spread)).to(device, dtype), (-centre / spread).to(device, dtype)


def cut(pixels: Tensor, random: torch.Generator) -> Tensor:
    """Shift every image by up to an eighth of it in both directions; what comes in from outside is black."""
    count, _, height, width = pixels.shape
    margin = max(1, min(height, width) // SHIFT_SHARE)
    padded = F.pad(pixels, (margin,) * 4)
    device = pixels.device
    top, left = torch.randint(2 * margin + 1, (2, count, 1), generator=random, device=device)
    rows = (top + torch.arange(height, device=device))[:, :, None]
    columns = (left + torch.arange(width, device=device))[:, None, :]
    images = torch.arange(count, device=device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[images, rows, columns].permute(0, 3, 1, 2)


def flipped(pixels: Tensor, random: torch.Generator) -> Tensor:
    """Mirror every second image, by chance."""
    chosen = torch.rand(len(pixels), 1, 1, 1, generator=random, device=pixels.device) < 0.5
    return torch.where(chosen, pixels.flip(-1), pixels)
