"""JPEGs to pixels: on the host, one by one in a worker, cut and resized there; or on the device, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeAlias

import torch
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

from pytest_accel.workloads.data.crops import Crop, middle_crop, random_crop
from pytest_accel.workloads.data.errors import DataError, unreadable

Tensor: TypeAlias = Any  # torch is untyped here

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


def crop_for(height: int, width: int, random: Random | None) -> Crop:
    """A random part where there is chance (training), the middle where there is none."""
    return middle_crop(height, width) if random is None else random_crop(height, width, random)
