"""Pixels: JPEG decoding on the host or the device, crops, and conversion to a model's input."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor
from torch.nn import functional as F

from pytest_accel.workloads.data.files import unreadable

CROP_AREA = (0.08, 1.0)  # share of the photograph, as ResNet's training recipe
CROP_ASPECT = (3 / 4, 4 / 3)  # width over height
CENTER_SHARE = 0.875  # of the short side in evaluation: 224 of 256 pixels
CROP_TRIES = 10
SHIFT_DIVISOR = 8  # small images are shifted by up to 1/8 of a side: 4 pixels of 32, as CIFAR is trained


def decode_on_host(encoded: Tensor, name: str, *, mode: str = "RGB") -> Tensor:
    """Decode one image to (channels, height, width); DataError with its name where it does not decode."""
    from torchvision.io import ImageReadMode, decode_image

    try:
        return decode_image(encoded, mode=ImageReadMode[mode])
    except RuntimeError as error:
        raise unreadable(name, f"does not decode: {error}") from None


def decode_on_device(
    encoded: Sequence[Tensor], device: torch.device, named: Callable[[int], str]
) -> list[Tensor]:
    """Decode a batch with nvJPEG. Where that fails, decode one by one, on the host what the device refuses.

    ImageNet holds about twenty CMYK images and one PNG: a batch with one of them is slow, but no error.
    """
    decoded = _nvjpeg(encoded, device)
    if decoded is not None:
        return decoded
    alone = [_nvjpeg([each], device) for each in encoded]
    if len(encoded) > 1 and not any(alone):
        for index, each in enumerate(encoded):
            decode_on_host(each, named(index))  # raises where the image is the cause
        problem = f"the device decodes neither this one nor {len(encoded) - 1} more, and the host does"
        raise unreadable(named(0), problem, "Choose decode='host'.")
    return [
        found[0] if found else decode_on_host(each, named(index)).to(device)
        for index, (each, found) in enumerate(zip(encoded, alone, strict=True))
    ]


def _nvjpeg(encoded: Sequence[Tensor], device: torch.device) -> list[Tensor] | None:
    """Decode on the device; None where it refuses one of the images."""
    from torchvision.io import ImageReadMode, decode_jpeg

    try:
        decoded: list[Tensor] = decode_jpeg(list(encoded), mode=ImageReadMode.RGB, device=device)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return None
    return decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Crop:
    top: int
    left: int
    height: int
    width: int
    mirrored: bool = False


def crop_for(height: int, width: int, random: Random | None) -> Crop:
    """Return a random crop for training; without a generator, the center square for evaluation."""
    if random is None:
        return _center(height, width, max(1, round(min(height, width) * CENTER_SHARE)), mirrored=False)
    mirrored = random.random() < 0.5
    for _ in range(CROP_TRIES):
        area = height * width * random.uniform(*CROP_AREA)
        aspect = math.exp(random.uniform(math.log(CROP_ASPECT[0]), math.log(CROP_ASPECT[1])))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            top, left = random.randint(0, height - high), random.randint(0, width - wide)
            return Crop(top=top, left=left, height=high, width=wide, mirrored=mirrored)
    return _center(height, width, min(height, width), mirrored=mirrored)


def _center(height: int, width: int, side: int, *, mirrored: bool) -> Crop:
    top, left = (height - side) // 2, (width - side) // 2
    return Crop(top=top, left=left, height=side, width=side, mirrored=mirrored)


def crop_on_host(pixels: Tensor, crop: Crop, size: int) -> Tensor:
    part = pixels[:, crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]
    resized = resize_on_host(part, (size, size))
    return resized.flip(-1) if crop.mirrored else resized


def resize_on_host(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(pixels[None], size=size, mode="bilinear", align_corners=False, antialias=True)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInput:
    channels: int
    size: int  # pixels, height and width
    device: torch.device
    dtype: torch.dtype
    memory_format: torch.memory_format
    mean: tuple[float, ...]  # per channel of the data, of values from 0 to 1
    std: tuple[float, ...]
    mirrors: bool = True  # whether a mirrored image keeps its label


class PixelTransform:
    """Convert uint8 pixels (batch, channels, height, width) to a model's input on the device, without waiting for it.

    Bytes cross to the device, a quarter of the traffic of fp32; widening, resizing and normalizing happen there.
    """

    def __init__(self, wanted: ModelInput, *, augment: bool = False, seed: int = 0) -> None:
        self._wanted = wanted
        self._augment = augment
        self._scale, self._shift = scale_and_shift(
            wanted.mean, wanted.std, device=wanted.device, dtype=wanted.dtype
        )
        self._random = torch.Generator(wanted.device).manual_seed(seed)

    def __call__(self, pixels: Tensor) -> Tensor:
        wanted = self._wanted
        if self._augment:
            pixels = shift_randomly(pixels, self._random)
            pixels = flip_randomly(pixels, self._random) if wanted.mirrors else pixels
        images = pixels.to(wanted.dtype)
        if images.shape[1] == 1 and wanted.channels > 1:
            images = images.expand(-1, wanted.channels, -1, -1)
        if images.shape[-2:] != (wanted.size, wanted.size):
            images = F.interpolate(
                images, size=(wanted.size, wanted.size), mode="bilinear", align_corners=False
            )
        images = torch.addcmul(self._shift, images, self._scale)
        return images.contiguous(memory_format=wanted.memory_format)


def scale_and_shift(
    mean: Sequence[float], std: Sequence[float], *, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return (x / 255 - mean) / std as a factor and a summand, (1, channels, 1, 1) each."""
    center, spread = torch.tensor(mean).view(1, -1, 1, 1), torch.tensor(std).view(1, -1, 1, 1)
    # Computed on the host, complete when the copy returns: other streams read them.
    return (1 / (255 * spread)).to(device, dtype), (-center / spread).to(device, dtype)


def shift_randomly(pixels: Tensor, random: torch.Generator) -> Tensor:
    count, _, height, width = pixels.shape
    margin = max(1, min(height, width) // SHIFT_DIVISOR)
    padded = F.pad(pixels, (margin,) * 4)
    device = pixels.device
    top, left = torch.randint(2 * margin + 1, (2, count, 1), generator=random, device=device)
    rows = (top + torch.arange(height, device=device))[:, :, None]
    columns = (left + torch.arange(width, device=device))[:, None, :]
    images = torch.arange(count, device=device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[images, rows, columns].permute(0, 3, 1, 2)


def flip_randomly(pixels: Tensor, random: torch.Generator) -> Tensor:
    chosen = torch.rand(len(pixels), 1, 1, 1, generator=random, device=pixels.device) < 0.5
    return torch.where(chosen, pixels.flip(-1), pixels)


class CropResize:
    """Crop, mirror, resize and normalize decoded images of many sizes into one batch, in one kernel.

    Bilinear without antialiasing (the host's resize has it): the results here are rates, not published accuracies. On a
    GPU the arithmetic is compiled, by the thread that constructs this: pixels are then read and written once.
    """

    def __init__(self, wanted: ModelInput) -> None:
        self._wanted = wanted
        scale, shift = scale_and_shift(wanted.mean, wanted.std, device=wanted.device, dtype=torch.float32)
        self._scale, self._shift = scale.flatten(), shift.flatten()
        self._sample = _sample
        if wanted.device.type == "cuda":
            self._sample = torch.compile(_sample, dynamic=True)
            black = torch.zeros(3, 4, 5, dtype=torch.uint8, device=wanted.device)
            self([black] * 2, [Crop(top=0, left=0, height=4, width=5)] * 2)

    def __call__(self, images: Sequence[Tensor], crops: Sequence[Crop]) -> Tensor:
        wanted = self._wanted
        pixels = torch.cat([image.flatten() for image in images])
        offsets, begin = [], 0  # of each crop in the pixels of all images; its strides and extent
        for image, crop in zip(images, crops, strict=True):
            _, height, width = image.shape
            first = begin + crop.top * width + crop.left
            offsets.append([first, width, height * width, crop.height, crop.width, crop.mirrored])
            begin += image.numel()
        places = torch.tensor(offsets)
        if wanted.device.type == "cuda":
            places = places.pin_memory().to(wanted.device, non_blocking=True)
        batch = self._sample(pixels, places, self._scale, self._shift, size=wanted.size, dtype=wanted.dtype)
        return batch.permute(0, 3, 1, 2).contiguous(memory_format=wanted.memory_format)


def _sample(
    pixels: Tensor, places: Tensor, scale: Tensor, shift: Tensor, *, size: int, dtype: torch.dtype
) -> Tensor:
    """Return (image, row, column, colour), sampled only from pixels inside each crop."""
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
    """Return the pixels before and after each step along an extent, and the weight of the second."""
    place = torch.minimum(((steps + 0.5) * extent / size - 0.5).clamp(min=0), extent - 1.0)
    before = place.long()
    return before, torch.minimum(before + 1, extent - 1), place - before
