"""What would the end of a bottleneck win as one kernel of ours? `python -m tests.studies.endings [--device cuda]`.

The last convolution of a bottleneck is a product of matrices, and so is the one beside it, where there is one. In one kernel, with what is added,
the shift and the rectification, what was convolved beside is never written: a fourteenth of all that ResNet50 moves. Printed are for each shape of ResNet50 the time of
cuDNN's convolutions (workloads/rectifying.py) and of this kernel, and the ratio of whole steps, in turn (ABBA).

Not in the fixtures: no GPU has run it yet. On a CPU it shows by triton's interpreter that the answers are right (TRITON_INTERPRET=1, where triton is installed).
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it
from torchvision.models.resnet import Bottleneck

from pytest_accel.workloads.rectifying import RectifyingBlock, rectified_convolution
from pytest_accel.workloads.steps import InferStep
from tests.studies.alternating import in_turn, prepared
from tests.studies.gpt import graphs
from tests.studies.rectifying import difference

FEWEST_ROWS = 2**14  # below that cuDNN has kernels that share the little there is among more multiprocessors
# Channels in and out, pixels across, channels beside (0: what comes in is added as it is), its stride: the ends of ResNet50's blocks
ENDS = [
    *((64, 256, 56, beside, 1) for beside in (64, 0)),
    *((128, 512, 28, beside, 2) for beside in (256, 0)),
    *((256, 1024, 14, beside, 2) for beside in (512, 0)),
    *((512, 2048, 7, beside, 2) for beside in (1024, 0)),
]


@triton.jit
def _end(  # type: ignore[no-untyped-def]
    images,
    weight,
    shift,
    beside,
    weight_beside,
    ended,
    rows,
    height,
    width,
    beside_height,
    beside_width,
    CHANNELS: tl.constexpr,  # noqa: N803
    OUT: tl.constexpr,  # noqa: N803
    BESIDE: tl.constexpr,  # noqa: N803
    STRIDE: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    DEPTH: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr,  # noqa: N803
):
    """max(0, images @ weight + shift + beside), or beside @ weight_beside, of its pixels at a stride."""
    # Tiles that share rows or columns run at one time, so that they find them in the cache.
    across: tl.constexpr = OUT // COLUMNS
    tile = tl.program_id(0)
    group = tile // (GROUP * across)
    lines = tl.minimum(tl.cdiv(rows, ROWS) - group * GROUP, GROUP)
    within = tile % (GROUP * across)
    row = (group * GROUP + within % lines) * ROWS + tl.arange(0, ROWS)
    column = within // lines * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    there = (row < rows)[:, None]
    line = row.to(tl.int64)[:, None]
    sums = tl.zeros((ROWS, COLUMNS), tl.float32) + tl.load(shift + column).to(tl.float32)[None, :]
    if BESIDE == 0:
        sums += tl.load(beside + line * OUT + column[None, :], mask=there, other=0.0).to(tl.float32)
    else:
        place = row % (height * width)
        y, x = place // width * STRIDE, place % width * STRIDE
        pixel = (row // (height * width)).to(tl.int64) * beside_height * beside_width + y * beside_width + x
        for at in range(0, BESIDE, DEPTH):
            part = tl.load(beside + pixel[:, None] * BESIDE + at + depth[None, :], mask=there, other=0.0)
            factor = tl.load(weight_beside + column[None, :] * BESIDE + at + depth[:, None])
            sums = tl.dot(part, factor, sums)
    for at in range(0, CHANNELS, DEPTH):
        part = tl.load(images + line * CHANNELS + at + depth[None, :], mask=there, other=0.0)
        factor = tl.load(weight + column[None, :] * CHANNELS + at + depth[:, None])
        sums = tl.dot(part, factor, sums)
    rectified = tl.maximum(sums, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(ended + line * OUT + column[None, :], rectified.to(ended.dtype.element_ty), mask=there)


def _tile(rows: int, columns: int, warps: int, stages: int) -> triton.Config:
    sizes = {"ROWS": rows, "COLUMNS": columns, "DEPTH": 64, "GROUP": 8}
    return triton.Config(sizes, num_warps=warps, num_stages=stages)


TILES = [
    _tile(128, 256, 8, 3),
    _tile(128, 128, 8, 4),
    _tile(128, 128, 4, 3),
    _tile(64, 256, 8, 3),
    _tile(64, 128, 4, 4),
    _tile(256, 128, 8, 3),
]
_tuned = triton.autotune(TILES, key=["rows", "CHANNELS", "OUT", "BESIDE"])(_end)


@torch.library.custom_op("studies::end_of_a_bottleneck", mutates_args=())
def end_of_a_bottleneck(
    images: torch.Tensor,
    weight: torch.Tensor,
    shift: torch.Tensor,
    beside: torch.Tensor,
    weight_beside: torch.Tensor | None,
    *,
    stride: int,
) -> torch.Tensor:
    """Return relu(convolution + shift + beside), or of the convolution beside: 1 x 1 pixels, channels last."""
    images = images.contiguous(memory_format=torch.channels_last)
    beside = beside.contiguous(memory_format=torch.channels_last)
    count, channels, height, width = images.shape
    out, rows = len(weight), count * height * width
    ended = torch.empty(
        (count, out, height, width),
        dtype=images.dtype,
        device=images.device,
        memory_format=torch.channels_last,
    )
    asked: dict[str, Any] = {
        "CHANNELS": channels,
        "OUT": out,
        "BESIDE": 0 if weight_beside is None else beside.shape[1],
        "STRIDE": stride,
    }
    given = (images, weight, shift, beside, weight if weight_beside is None else weight_beside, ended)
    sizes = (rows, height, width, *beside.shape[2:])
    if images.is_cuda:
        _tuned[lambda tile: (triton.cdiv(rows, tile["ROWS"]) * (out // tile["COLUMNS"]),)](
            *given, *sizes, **asked
        )
    else:
        _end[(triton.cdiv(rows, 64) * (out // 64),)](
            *given, *sizes, **asked, ROWS=64, COLUMNS=64, DEPTH=64, GROUP=8
        )
    return ended


@end_of_a_bottleneck.register_fake
def _(images: torch.Tensor, weight: torch.Tensor, *_added: torch.Tensor | None, stride: int) -> torch.Tensor:
    found = F.conv2d(images, weight)
    return torch.empty_like(found, memory_format=torch.channels_last)


class EndingBlock(RectifyingBlock):
    """A bottleneck with such an end. A class of its own: what is compiled for one class is not taken for another."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows = images.numel() // images.shape[1]
        if self._eager is not Bottleneck.forward or not torch.compiler.is_compiling() or rows < FEWEST_ROWS:
            return super().forward(images)
        found = images
        for number in (0, 1):
            found = rectified_convolution(found, *self._kept(number), None, **self._places[number])
        if self.downsample is None:
            return end_of_a_bottleneck(found, *self._kept(2), images, None, stride=1)
        stride = self.downsample[0].stride[0]
        return end_of_a_bottleneck(found, *self._kept(2), images, self.weight_beside, stride=stride)


def one(end: tuple[int, ...], count: int, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """The arguments of an end of a bottleneck."""
    channels, out, pixels, beside, stride = end
    random = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        tensor = torch.randn(shape, device=device, dtype=dtype, generator=random)
        return tensor.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else tensor

    larger = pixels * stride if beside else pixels
    return {
        "images": drawn(count, channels, pixels, pixels),
        "weight": drawn(out, channels, 1, 1) / channels**0.5,
        "shift": drawn(out),
        "beside": drawn(count, beside or out, larger, larger),
        "weight_beside": drawn(out, beside, 1, 1) / beside**0.5 if beside else None,
        "stride": stride if beside else 1,
    }


def by_library(asked: dict[str, Any]) -> torch.Tensor:
    """The same by what workloads/rectifying.py calls."""
    added = asked["beside"]
    if asked["weight_beside"] is not None:
        added = F.conv2d(added, asked["weight_beside"], None, asked["stride"])
    return rectified_convolution(asked["images"], asked["weight"], asked["shift"], added, stride=1, padding=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--pairs", type=int, default=7)
    arguments = parser.parse_args()
    device = prepared(arguments.device)
    here, on_gpu = torch.device(device.name), device.name == "cuda"
    if not on_gpu and os.environ.get("TRITON_INTERPRET") != "1":
        parser.error("on a CPU triton interprets: TRITON_INTERPRET=1 python -m tests.studies.endings")
    torch.backends.cudnn.benchmark = True
    for end in ENDS:
        asked = one(end, 1024 if on_gpu else 1, here, torch.bfloat16 if on_gpu else torch.float32)
        found, expected = end_of_a_bottleneck(**asked), by_library(asked)
        far = float((found - expected).abs().max() / expected.abs().max())
        told = (
            f"{end[0]} -> {end[1]} at {end[2]}, {end[3] or 'nothing'} beside: {far:.2%} of the largest apart"
        )
        if on_gpu:
            times_ms = [
                triton.testing.do_bench(call, warmup=20, rep=60)
                for call in (lambda a=asked: by_library(a), lambda a=asked: end_of_a_bottleneck(**a))
            ]
            told += f"; {times_ms[0]:.3f} ms by cuDNN, {times_ms[1]:.3f} ms"
        print(told, flush=True)
    if not on_gpu:
        return
    for precision in ("bf16", "fp16"):
        asked = {"data": "imagenet", "batch_size": 1024, "precision": precision, "device": here}
        with InferStep.build("resnet50", **asked) as plain, InferStep.build("resnet50", **asked) as step:
            for block in step._model.modules():
                if type(block) is RectifyingBlock:
                    block.__class__ = EndingBlock
            before = graphs()
            plain(), step()
            compiled = graphs()
            far = difference(step, plain)
            ratio = in_turn(step, plain, device, pairs=arguments.pairs, steps=10)
            if not before + 2 == compiled == graphs():
                raise RuntimeError("both ran what was compiled for one of them")
            print(
                f"resnet50, {precision}, batch 1024: {ratio}; answers {far:.2%} of the largest apart",
                flush=True,
            )


if __name__ == "__main__":
    main()
