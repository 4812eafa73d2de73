"""JPEGs to pixels of one size: on the host, one by one in a worker; or on the device, a batch at a time.

Resizing is bilinear. On the host it is antialiased, as torchvision's is; on the device the batch is sampled in one
kernel, which is not: photographs are shrunk by about two, and the figures here are rates, not accuracies of a
published recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeAlias

import torch
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

from pytest_accel.data.crops import Crop, middle_crop, random_crop
from pytest_accel.data.errors import DataError, unreadable

Tensor: TypeAlias = Any  # torch is untyped here

# A crop larger than this is shrunk by itself before its batch is put together: one photograph of 20 megapixels
# would otherwise make the whole batch's canvas as large.
LARGEST_SIDE = 768
REMEDY = "Download or extract it again, or take it out of the data set."


def decode_on_host(encoded: Tensor, name: str) -> Tensor:
    """Decode one image to (3, height, width); an image that does not decode is named."""
    from torchvision.io import ImageReadMode, decode_image

    try:
        pixels = decode_image(encoded, mode=ImageReadMode.RGB)
    except RuntimeError as error:
        raise unreadable(name, f"does not decode: {_first_line(error)}", REMEDY) from None
    if pixels.dim() != 3 or pixels.dtype != torch.uint8:  # an animation, or a PNG of 16 bits
        raise unreadable(name, "not one image of 8 bits a colour", REMEDY)
    return pixels


def sized_on_host(pixels: Tensor, crop: Crop, size: int) -> Tensor:
    """Cut a part out of an image and resize it to a square, in bytes."""
    part = pixels[:, crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]
    resized = F.interpolate(
        part[None], size=(size, size), mode="bilinear", align_corners=False, antialias=True
    )[0]
    return resized.flip(-1) if crop.mirrored else resized


def decode_on_device(
    encoded: Sequence[Tensor], device: torch.device, named: Callable[[int], str]
) -> list[Tensor]:
    """Decode a batch on the device (nvJPEG). Where that fails, each by itself, and what the device refuses on the host.

    ImageNet holds some twenty images in CMYK and one PNG: a batch with one of them is slow, and no error.
    """
    try:
        return _nvjpeg(encoded, device)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        refused, problem = 0, _first_line(error)
    decoded = []
    for index, each in enumerate(encoded):
        try:
            decoded += _nvjpeg([each], device)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            refused += 1
            decoded.append(decode_on_host(each, named(index)).to(device))
    if refused == len(encoded) > 1:
        raise DataError(
            f"{named(0)} and {refused - 1} more: the device decodes none of them: {problem}\n"
            "Each decodes on the host: choose decode='host'."
        )
    return decoded


def _nvjpeg(encoded: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    from torchvision.io import ImageReadMode, decode_jpeg

    decoded: list[Tensor] = decode_jpeg(list(encoded), mode=ImageReadMode.RGB, device=device)
    return decoded


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def sized_on_device(images: Sequence[Tensor], crops: Sequence[Crop], size: int) -> Tensor:
    """Cut, mirror and resize images of many sizes into one batch of floats from 0 to 255."""
    device = images[0].device
    parts = [_within_limits(image, crop) for image, crop in zip(images, crops, strict=True)]
    height, width = (max(part.shape[axis] for part in parts) for axis in (1, 2))
    canvas = torch.zeros(len(parts), 3, height, width, dtype=torch.uint8, device=device)
    for place, part in zip(canvas, parts, strict=True):
        place[:, : part.shape[1], : part.shape[2]].copy_(part)
    views = [
        _view(part.shape[1] / height, part.shape[2] / width, mirrored=crop.mirrored)
        for part, crop in zip(parts, crops, strict=True)
    ]
    # Not beyond the last pixel of its own part, nor before the first: a part that grows would fade into the canvas.
    last = torch.tensor([[2 * part.shape[2] / width, 2 * part.shape[1] / height] for part in parts])
    last -= 1 + torch.tensor([1 / width, 1 / height])
    grid = F.affine_grid(_sent(torch.tensor(views), device), [len(parts), 3, size, size], align_corners=False)
    grid = torch.minimum(grid, _sent(last, device)[:, None, None])
    # In fp32: half a place in fp16 is a quarter of a pixel.
    return F.grid_sample(canvas.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)


def _sent(small: Tensor, device: torch.device) -> Tensor:
    return small if device.type == "cpu" else small.pin_memory().to(device, non_blocking=True)


def _within_limits(image: Tensor, crop: Crop) -> Tensor:
    part = image[:, crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]
    longest = max(part.shape[1:])
    if longest <= LARGEST_SIDE:
        return part
    size = [max(1, round(side * LARGEST_SIDE / longest)) for side in part.shape[1:]]
    smaller = F.interpolate(part[None].float(), size=size, mode="bilinear", antialias=True)
    return smaller[0].round().clamp(0, 255).to(torch.uint8)


def _view(high: float, wide: float, *, mirrored: bool) -> list[list[float]]:
    """The affine map from the output, -1 to 1, to the top left part of a canvas that the image fills."""
    return [[-wide if mirrored else wide, 0.0, wide - 1.0], [0.0, high, high - 1.0]]


def crop_for(height: int, width: int, random: Random | None) -> Crop:
    """A random part where there is chance (training), the middle where there is none."""
    return middle_crop(height, width) if random is None else random_crop(height, width, random)
