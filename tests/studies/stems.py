"""Which way through a ResNet's first layers is the shortest in inference? `python -m tests.studies.stems [WAY ...] [--device cuda]`.

Arranging the images, convolving, normalising and rectifying them, and taking the maxima: 4.3 of 24 ms of kernels at batch 1024 on an H200, before the first convolution did some of it, and a twelfth of the bytes that ResNet50 moves. Printed is for each way what all
of it takes, compiled, what each of its kernels takes, and how far its answers are from torch's own layers. One way after the other, with nothing in the device's cache, and far from its limit of power: to be compared with each other, and not added up to a step.

Not in the fixtures but for `blocks`, with the compiler's pooling. On a CPU it shows that the answers are right; those of kernels of our own (`*-ours`) by triton's interpreter
(TRITON_INTERPRET=1, where triton is installed).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import triton
import triton.language as tl
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

from pytest_accel.workloads.pooling import empty_last
from pytest_accel.workloads.rectifying import rectified_convolution
from pytest_accel.workloads.stems import BLOCK_CHANNELS, images_in_blocks, weight_in_blocks
from tests.studies.alternating import add_names, apart, attempted, prepared
from tests.studies.anatomy import times_us

COLOURS, OUT = 3, 64


def last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def pooled(images: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(images, 3, 2, 1)


def plain(images: torch.Tensor, weight: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """As the model says it."""
    return pooled(F.relu(F.conv2d(images, weight, shift, 2, 3)))


def blocks(images: torch.Tensor, weight: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Blocks of 2 x 2 pixels, 16 channels: as the fixtures have it."""
    return pooled(convolved_blocks(images_in_blocks(images), weight, shift))


def convolved_blocks(made: torch.Tensor, weight: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return rectified_convolution(made, weight_in_blocks(weight), shift, None, stride=[1, 1], padding=[0, 0])


def pairs(images: torch.Tensor, weight: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Pairs of pixels of one row, 8 channels: an eighth less to multiply."""
    images, weight = as_pairs(images), as_pairs(F.pad(weight, (1, 0)))
    missing = 8 - images.shape[1]
    images = last(F.pad(images, (2, 1, 0, 0, 0, missing)))
    weight = last(F.pad(weight, (0, 0, 0, 0, 0, missing)))
    return pooled(rectified_convolution(images, weight, shift, None, stride=[2, 1], padding=[3, 0]))


def as_pairs(pixels: torch.Tensor) -> torch.Tensor:
    """(n, channels, height, width) -> (n, 2 channels, height, width / 2)."""
    count, channels, height, width = pixels.shape
    halves = pixels.reshape(count, channels, height, width // 2, 2)
    return halves.permute(0, 4, 1, 2, 3).reshape(count, 2 * channels, height, width // 2)


def sixteens(images: torch.Tensor, weight: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Blocks of 4 x 4 pixels, 48 channels, for 2 x 2 results: two thirds more to multiply, less than half to read.

    The window of result (a, b) of block i begins at pixel 4 i + 2 a - 3, which is 2 a + 1 behind the beginning of block i - 1.
    """
    count, _, height, width = images.shape
    places = [(a, b) for a in (0, 1) for b in (0, 1)]
    within = [F.pad(weight, (2 * b + 1, 4 - 2 * b, 2 * a + 1, 4 - 2 * a)) for a, b in places]
    images, weight = as_sixteens(images), as_sixteens(torch.cat(within))
    shifts = shift.repeat(4)
    found = rectified_convolution(last(images), last(weight), shifts, None, stride=[1, 1], padding=[1, 1])
    found = found.reshape(count, 2, 2, OUT, height // 4, width // 4)
    # Nothing is below zero: what is beside the images is zero.
    above = F.pad(found[:, 1], (0, 0, 1, 0))[..., :-1, :]
    rows = torch.maximum(torch.maximum(found[:, 0], found[:, 1]), above)
    before = F.pad(rows[:, 1], (1, 0))[..., :-1]
    return last(torch.maximum(torch.maximum(rows[:, 0], rows[:, 1]), before))


def as_sixteens(pixels: torch.Tensor) -> torch.Tensor:
    """(n, channels, height, width) -> (n, 16 channels, height / 4, width / 4)."""
    count, channels, height, width = pixels.shape
    made = pixels.reshape(count, channels, height // 4, 4, width // 4, 4)
    return made.permute(0, 3, 5, 1, 2, 4).reshape(count, 16 * channels, height // 4, width // 4)


@triton.jit
def _blocks(images, made, places, height, width, PLACES: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Blocks of 2 x 2 pixels, two before and one behind; a word is two channels: three of a row, three of the next, two of zeros."""
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    high, wide = height // 2 + 3, width // 2 + 3
    column = place % wide - 2
    row = place // wide % high - 2
    image = place // (wide * high)
    word = tl.arange(0, 8)[None, :]
    there = (place < places) & (column >= 0) & (column < width // 2) & (row >= 0) & (row < height // 2)
    line = image.to(tl.int64) * height + 2 * row
    pixel = (line[:, None] + word // 3) * (width * 3 // 2) + 3 * column[:, None] + word % 3
    value = tl.load(images + pixel, mask=there[:, None] & (word < 6), other=0)
    tl.store(made + place.to(tl.int64)[:, None] * 8 + word, value, mask=(place < places)[:, None])


@triton.jit
def _maxima(images, maxima, places, height, width, CHANNELS: tl.constexpr, PLACES: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Maxima of 3 x 3 pixels at stride 2, none of which is below zero."""
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    channel = tl.arange(0, CHANNELS)[None, :]
    column = place % (width // 2)
    row = place // (width // 2) % (height // 2)
    image = place // ((width // 2) * (height // 2))
    there = place < places
    middle = ((image.to(tl.int64) * height + 2 * row) * width + 2 * column)[:, None] * CHANNELS + channel
    above, before = there & (row > 0), there & (column > 0)
    best = tl.load(images + middle, mask=there[:, None], other=0.0).to(tl.float32)
    for number in tl.static_range(9):
        y = number // 3 - 1
        x = number % 3 - 1
        if number != 4:
            inside = there
            if y < 0:
                inside = inside & above
            if x < 0:
                inside = inside & before
            pixel = images + middle + (y * width + x) * CHANNELS
            value = tl.load(pixel, mask=inside[:, None], other=0.0).to(tl.float32)
            best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
    target = place.to(tl.int64)[:, None] * CHANNELS + channel
    tl.store(maxima + target, best.to(maxima.dtype.element_ty), mask=there[:, None])


def _shape(places: int, warps: int) -> triton.Config:
    return triton.Config({"PLACES": places}, num_warps=warps)


SHAPES = [_shape(places, warps) for places in (16, 32, 64, 128) for warps in (2, 4, 8)]
_blocks_tuned = triton.autotune(SHAPES, key=["height"])(_blocks)
_maxima_tuned = triton.autotune(SHAPES, key=["height"])(_maxima)


@torch.library.custom_op("studies::blocks", mutates_args=())
def blocks_by_kernel(images: torch.Tensor) -> torch.Tensor:
    """What `images_in_blocks` makes of images in half precision."""
    images = last(images)
    made = _empty_blocks(images)
    words = (each.permute(0, 2, 3, 1).reshape(-1).view(torch.int32) for each in (images, made))
    _launched(_blocks, _blocks_tuned, *words, made.numel() // BLOCK_CHANNELS, *images.shape[2:])
    return made


@blocks_by_kernel.register_fake
def _empty_blocks(images: torch.Tensor) -> torch.Tensor:
    count, _, height, width = images.shape
    return empty_last((count, BLOCK_CHANNELS, height // 2 + 3, width // 2 + 3), images)


@torch.library.custom_op("studies::maxima", mutates_args=())
def maxima_by_kernel(images: torch.Tensor) -> torch.Tensor:
    """What `pooled` makes of images, none of which is below zero."""
    images = last(images)
    maxima = _empty_maxima(images)
    _, channels, *size = images.shape
    _launched(_maxima, _maxima_tuned, images, maxima, maxima.numel() // channels, *size, CHANNELS=channels)
    return maxima


@maxima_by_kernel.register_fake
def _empty_maxima(images: torch.Tensor) -> torch.Tensor:
    count, channels, height, width = images.shape
    return empty_last((count, channels, height // 2, width // 2), images)


def _launched(kernel: Any, tuned: Any, source: torch.Tensor, *given: Any, **constants: int) -> None:
    """What is given: the target, its places, and height and width of the source."""
    places = given[1]
    if source.is_cuda:
        tuned[lambda shape: (triton.cdiv(places, shape["PLACES"]),)](source, *given, **constants)
    else:
        kernel[(triton.cdiv(places, 32),)](source, *given, **constants, PLACES=32)


def blocks_ours(images: torch.Tensor, weight: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """As `blocks`, arranged and pooled by kernels of our own."""
    return maxima_by_kernel(convolved_blocks(blocks_by_kernel(images), weight, shift))


def pooling_ours(images: torch.Tensor, weight: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """As `blocks`, pooled by a kernel of our own."""
    return maxima_by_kernel(convolved_blocks(images_in_blocks(images), weight, shift))


Way: TypeAlias = Callable[..., torch.Tensor]  # of images, weight and shift
WAYS: dict[str, Way] = {
    "plain": plain,
    "blocks": blocks,
    "pairs": pairs,
    "sixteens": sixteens,
    "pooling-ours": pooling_ours,
    "blocks-ours": blocks_ours,
}


def kernels(call: Callable[[], Any]) -> list[str]:
    """What a call launches, each with its time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.accelerator.synchronize()
    found = times_us(profile.key_averages(), "cuda")
    return [f"    {took_us / 1e3:.3f} ms  {name[:120]}" for name, (took_us, _) in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_names(parser, WAYS, metavar="WAY")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    arguments = parser.parse_args()
    device = prepared(arguments.device)
    on_gpu = device.name == "cuda"
    interprets = os.environ.get("TRITON_INTERPRET") == "1"
    names = arguments.names or [name for name in WAYS if on_gpu or interprets or not name.endswith("ours")]
    if not (on_gpu or interprets) and any(name.endswith("ours") for name in names):
        parser.error("on a CPU triton interprets: TRITON_INTERPRET=1 python -m tests.studies.stems")
    torch.backends.cudnn.benchmark = True
    random = torch.Generator(device.name).manual_seed(0)
    drawn = {"device": device.name, "generator": random, "dtype": torch.bfloat16}
    count, pixels = (1024, 224) if on_gpu else (2, 32)
    images = last(torch.randn(count, COLOURS, pixels, pixels, **drawn))
    weight, shift = torch.randn(OUT, COLOURS, 7, 7, **drawn) / 12, torch.randn(OUT, **drawn)
    asked = (images, weight, shift)
    failed: list[str] = []
    with torch.inference_mode():
        expected = plain(*(each[:2].double() if each is images else each.double() for each in asked))
        for name in names:
            with attempted(name, failed):
                print(f"{name}: {compared(WAYS[name], asked, expected, on_gpu=on_gpu)}", flush=True)
    if failed:
        sys.exit(1)


def compared(way: Way, asked: tuple[torch.Tensor, ...], expected: torch.Tensor, *, on_gpu: bool) -> str:
    """How far a way's answers are from torch's, and on a GPU what it takes."""
    if on_gpu:
        way = torch.compile(way, options={"max_autotune_pointwise": True})
    found = way(*asked)[: len(expected)]
    told = f"{apart(found, expected):.2%} of the largest apart"
    if not on_gpu:
        return told
    took_ms = triton.testing.do_bench(lambda: way(*asked), warmup=50, rep=200)
    return "\n".join([f"{told}; {took_ms:.3f} ms", *kernels(lambda: way(*asked))])


if __name__ == "__main__":
    main()
