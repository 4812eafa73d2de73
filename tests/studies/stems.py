"""Which way through a ResNet's first layers is the shortest in inference? `python -m tests.studies.stems [WAY ...] [--device cuda]`.

Arranging the images, convolving, normalising and rectifying them, and taking the maxima. Printed is for each way what all of it takes, compiled, what each of its kernels takes, and how far its answers are from torch's own layers
in double precision. One way after the other, with nothing in the device's cache, and far from its limit of power: to be compared with each other, and not added up to a step. On a CPU it shows that the answers are right.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

from pytest_accel.workloads.rectifying import first_layers, for_first_layers, rectified_convolution
from pytest_accel.workloads.stems import images_in_blocks, weight_in_blocks
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
    """Blocks of 2 x 2 pixels, 16 channels: as the fixtures have it where a model trains in bf16."""
    made = images_in_blocks(images)
    found = rectified_convolution(made, weight_in_blocks(weight), shift, None, stride=[1, 1], padding=[0, 0])
    return pooled(found)


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
    """Blocks of 4 x 4 pixels, 48 channels, for 2 x 2 results: as the fixtures have it where a model infers."""
    return first_layers(images, *for_first_layers(weight, shift))


Way: TypeAlias = Callable[..., torch.Tensor]  # of images, weight and shift
WAYS: dict[str, Way] = {
    "plain": plain,
    "blocks": blocks,
    "pairs": pairs,
    "sixteens": sixteens,
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
    on_gpu = device.name != "cpu"
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
        for name in arguments.names or WAYS:
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
    from triton.testing import do_bench

    took_ms = do_bench(lambda: way(*asked), warmup=50, rep=200)
    return "\n".join([f"{told}; {took_ms:.3f} ms", *kernels(lambda: way(*asked))])


if __name__ == "__main__":
    main()
