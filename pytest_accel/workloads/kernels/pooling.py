"""Triton kernels of a fused ReLU and 3 x 3 max-pool with stride 2, channels last.

Forward stores in a byte which of the nine pixels was the largest, or that none was above zero. Backward has one program
for 2 x 2 pixels, which four windows cover, and writes each pixel once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

PLACES = 16  # output pixels of one program
NONE = tl.constexpr(9)  # index where no pixel is above zero


@triton.jit
def _forward(images, maxima, which, places, height, width, CHANNELS: tl.constexpr, PLACES: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803, PLR0917
    place = tl.program_id(0).to(tl.int64) * PLACES + tl.arange(0, PLACES)
    channel = tl.arange(0, CHANNELS)[None, :]
    column = place % (width // 2)
    row = place // (width // 2) % (height // 2)
    image = place // ((width // 2) * (height // 2))
    there = place < places
    best = tl.zeros((PLACES, CHANNELS), tl.float32)
    at = tl.full((PLACES, CHANNELS), NONE, tl.int32)
    for number in tl.static_range(9):
        y = 2 * row - 1 + number // 3
        x = 2 * column - 1 + number % 3
        inside = there & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        pixel = ((image * height + y) * width + x)[:, None] * CHANNELS + channel
        value = tl.load(images + pixel, mask=inside[:, None], other=0.0).to(tl.float32)
        larger = (value > best) | (value != value)  # noqa: PLR0124 - as torch: NaN is passed on
        best = tl.where(larger, value, best)
        at = tl.where(larger, number, at)
    target = place[:, None] * CHANNELS + channel
    tl.store(maxima + target, best.to(maxima.dtype.element_ty), mask=there[:, None])
    tl.store(which + target, at.to(tl.uint8), mask=there[:, None])


@triton.jit
def _backward(gradient, which, pixels, places, height, width, CHANNELS: tl.constexpr, PLACES: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803, PLR0917
    place = tl.program_id(0).to(tl.int64) * PLACES + tl.arange(0, PLACES)
    channel = tl.arange(0, CHANNELS)[None, :]
    wide, high = width // 2, height // 2
    column = place % wide
    row = place // wide % high
    image = place // (wide * high)
    there = place < places
    right = there & (column + 1 < wide)
    below = there & (row + 1 < high)
    both = right & below
    here = place[:, None] * CHANNELS + channel
    g00 = tl.load(gradient + here, mask=there[:, None], other=0.0).to(tl.float32)
    k00 = tl.load(which + here, mask=there[:, None], other=NONE)
    g01 = tl.load(gradient + here + CHANNELS, mask=right[:, None], other=0.0).to(tl.float32)
    k01 = tl.load(which + here + CHANNELS, mask=right[:, None], other=NONE)
    g10 = tl.load(gradient + here + wide * CHANNELS, mask=below[:, None], other=0.0).to(tl.float32)
    k10 = tl.load(which + here + wide * CHANNELS, mask=below[:, None], other=NONE)
    g11 = tl.load(gradient + here + (wide + 1) * CHANNELS, mask=both[:, None], other=0.0).to(tl.float32)
    k11 = tl.load(which + here + (wide + 1) * CHANNELS, mask=both[:, None], other=NONE)
    # Pixels of a window are numbered by rows: 4 is its centre.
    middle = tl.where(k00 == 4, g00, 0.0)
    beside = tl.where(k00 == 5, g00, 0.0) + tl.where(k01 == 3, g01, 0.0)
    under = tl.where(k00 == 7, g00, 0.0) + tl.where(k10 == 1, g10, 0.0)
    corner = tl.where(k00 == 8, g00, 0.0) + tl.where(k01 == 6, g01, 0.0)
    corner += tl.where(k10 == 2, g10, 0.0) + tl.where(k11 == 0, g11, 0.0)
    pixel = ((image * height + 2 * row) * width + 2 * column)[:, None] * CHANNELS + channel
    kind = pixels.dtype.element_ty
    tl.store(pixels + pixel, middle.to(kind), mask=there[:, None])
    tl.store(pixels + pixel + CHANNELS, beside.to(kind), mask=there[:, None])
    tl.store(pixels + pixel + width * CHANNELS, under.to(kind), mask=there[:, None])
    tl.store(pixels + pixel + (width + 1) * CHANNELS, corner.to(kind), mask=there[:, None])


@torch.library.custom_op("pytest_accel::relu_max_pool", mutates_args=())
def relu_max_pool(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the maxima, and the index of each in its window."""
    images = images.contiguous(memory_format=torch.channels_last)
    maxima, which = _empty_maxima(images)
    count, channels, high, wide = maxima.shape
    places = count * high * wide
    with torch.cuda.device(images.device):
        _forward[(triton.cdiv(places, PLACES),)](
            images, maxima, which, places, 2 * high, 2 * wide, CHANNELS=channels, PLACES=PLACES
        )
    return maxima, which


@relu_max_pool.register_fake
def _empty_maxima(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    count, channels, height, width = images.shape
    maxima = empty_last((count, channels, height // 2, width // 2), images)
    return maxima, torch.empty_like(maxima, dtype=torch.uint8)


@torch.library.custom_op("pytest_accel::relu_max_pool_backward", mutates_args=())
def relu_max_pool_backward(gradient: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    pixels = _empty_pixels(gradient, which)
    count, channels, high, wide = gradient.shape
    places = count * high * wide
    with torch.cuda.device(gradient.device):
        _backward[(triton.cdiv(places, PLACES),)](
            gradient, which, pixels, places, 2 * high, 2 * wide, CHANNELS=channels, PLACES=PLACES
        )
    return pixels


@relu_max_pool_backward.register_fake
def _empty_pixels(gradient: torch.Tensor, which: torch.Tensor) -> torch.Tensor:  # noqa: ARG001 - torch's signature
    count, channels, high, wide = gradient.shape
    return empty_last((count, channels, 2 * high, 2 * wide), gradient)


def empty_last(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:  # noqa: ARG001 - torch's signature
    ctx.save_for_backward(output[1])


def _autograd_backward(ctx: Any, gradient: Any, _: Any) -> Any:
    return relu_max_pool_backward(gradient, *ctx.saved_tensors)


relu_max_pool.register_autograd(_autograd_backward, setup_context=_setup_context)
