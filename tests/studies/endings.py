"""What would the end of a bottleneck win as one kernel of ours, with the beginning of the next? `python -m tests.studies.endings [--device cuda]`.

The last convolution of a bottleneck is a product of matrices, and so are the one beside it, where there is one, and the first of the next bottleneck. In one kernel what was convolved beside is never
written, and what the next one begins with is not read again: in ResNet50 that is a fifth of all that it moves, where its images are large. Printed are for each shape of ResNet50 the time of
cuDNN's convolutions (workloads/rectifying.py) and of this kernel, and the ratio of whole steps, in turn (ABBA).

Not in the fixtures: on an H200 it wins by the largest images alone, and a whole step, at the limit of power, wins nothing that could be told (docs/decisions/0011). On a CPU it shows by triton's interpreter that the answers are right (TRITON_INTERPRET=1, where triton is installed).
"""

from __future__ import annotations

import argparse
import os
import sys
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import torch
import triton
import triton.language as tl
from pytest_accel.workloads.pooling import empty_last
from pytest_accel.workloads.rectifying import RectifyingBlock, rectified_convolution
from pytest_accel.workloads.steps import InferStep
from tests.studies.gpt import graphs
from tests.studies.rectifying import difference
from torch.nn import functional as F
from torchvision.models.resnet import Bottleneck

from pytest_accel.measure.device import Device
from tests.studies.alternating import apart, attempted, in_turn, prepared

FEWEST_ROWS = 2**14  # below that cuDNN has kernels that share the little there is among more multiprocessors
# Channels in and out, pixels across, channels beside (0: what comes in is added as it is), its stride, channels that the next begins with (0: it is not begun)
ENDS = [
    (64, 256, 56, 64, 1, 64),
    (64, 256, 56, 0, 1, 64),
    (64, 256, 56, 0, 1, 128),
    (128, 512, 28, 256, 2, 128),
    (128, 512, 28, 0, 1, 128),
    (128, 512, 28, 0, 1, 256),
    (256, 1024, 14, 0, 1, 256),
    (64, 256, 56, 64, 1, 0),
    (128, 512, 28, 256, 2, 0),
]
# Of whole steps: the most channels that such an end may have, and whether it begins the next
VARIANTS = {
    "ends of the first layer": (256, False),
    "with beginnings": (256, True),
    "of the first two": (512, True),
}


@triton.jit
def _end(  # type: ignore[no-untyped-def]
    images,
    weight,
    shift,
    beside,
    weight_beside,
    next_weight,
    next_shift,
    ended,
    begun,
    rows,
    height,
    width,
    CHANNELS: tl.constexpr,  # noqa: N803
    OUT: tl.constexpr,  # noqa: N803
    BESIDE: tl.constexpr,  # noqa: N803
    STRIDE: tl.constexpr,  # noqa: N803
    NEXT: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
):
    """max(0, images @ weight + shift + beside), or beside @ weight_beside of its pixels at a stride; and max(0, that @ next_weight + next_shift).

    A program has its rows for all columns, some at a time: what it has of them goes into the sums of the next at once. What is beside is as large as the stride says: no odd sizes.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = (row < rows)[:, None]
    line = row.to(tl.int64)[:, None]
    channel = tl.arange(0, CHANNELS)
    kind = ended.dtype.element_ty
    kept = tl.load(images + line * CHANNELS + channel[None, :], mask=there, other=0.0)
    if BESIDE > 0:
        place = row % (height * width)
        y, x = place // width * STRIDE, place % width * STRIDE
        image = (row // (height * width)).to(tl.int64)
        pixel = (image * (height * STRIDE) + y) * (width * STRIDE) + x
        other = tl.arange(0, BESIDE)
        kept_beside = tl.load(beside + pixel[:, None] * BESIDE + other[None, :], mask=there, other=0.0)
    if NEXT > 0:
        following = tl.arange(0, NEXT)
        next_sums = (
            tl.zeros((ROWS, NEXT), tl.float32) + tl.load(next_shift + following).to(tl.float32)[None, :]
        )
    for at in range(0, OUT, COLUMNS):
        column = at + tl.arange(0, COLUMNS)
        sums = tl.zeros((ROWS, COLUMNS), tl.float32) + tl.load(shift + column).to(tl.float32)[None, :]
        if BESIDE == 0:
            added = tl.load(beside + line * OUT + column[None, :], mask=there, other=0.0)
        sums = tl.dot(kept, tl.load(weight + column[None, :] * CHANNELS + channel[:, None]), sums)
        if BESIDE > 0:
            sums = tl.dot(
                kept_beside, tl.load(weight_beside + column[None, :] * BESIDE + other[:, None]), sums
            )
        else:
            sums += added.to(tl.float32)
        rectified = tl.maximum(sums, 0.0, propagate_nan=tl.PropagateNan.ALL).to(kind)
        tl.store(ended + line * OUT + column[None, :], rectified, mask=there)
        if NEXT > 0:
            factor = tl.load(next_weight + following[None, :] * OUT + column[:, None])
            next_sums = tl.dot(rectified, factor, next_sums)
    if NEXT > 0:
        rectified_next = tl.maximum(next_sums, 0.0, propagate_nan=tl.PropagateNan.ALL).to(kind)
        tl.store(begun + line * NEXT + following[None, :], rectified_next, mask=there)


def _tile(rows: int, columns: int, warps: int, stages: int) -> triton.Config:
    return triton.Config({"ROWS": rows, "COLUMNS": columns}, num_warps=warps, num_stages=stages)


TILES = [
    _tile(128, 64, 8, 2),
    _tile(128, 64, 8, 3),
    _tile(128, 32, 8, 3),
    _tile(64, 64, 4, 2),
    _tile(64, 64, 4, 3),
    _tile(64, 32, 4, 2),
    _tile(64, 32, 4, 3),
]
_tuned = triton.autotune(TILES, key=["rows", "CHANNELS", "OUT", "BESIDE", "NEXT"])(_end)


@torch.library.custom_op("studies::end_of_a_bottleneck", mutates_args=())
def end_of_a_bottleneck(
    images: torch.Tensor,
    weight: torch.Tensor,
    shift: torch.Tensor,
    beside: torch.Tensor,
    weight_beside: torch.Tensor | None,
    next_weight: torch.Tensor | None,
    next_shift: torch.Tensor | None,
    *,
    stride: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return relu(convolution + shift + beside), or of the convolution beside, and what the next begins with, or nothing: 1 x 1 pixels, channels last."""
    images = images.contiguous(memory_format=torch.channels_last)
    beside = beside.contiguous(memory_format=torch.channels_last)
    ended, begun = _empty_ends(images, weight, next_weight)
    channels, height, width = images.shape[1:]
    rows = images.numel() // channels
    asked = {
        "CHANNELS": channels,
        "OUT": len(weight),
        "BESIDE": 0 if weight_beside is None else beside.shape[1],
        "STRIDE": stride,
        "NEXT": begun.shape[1],
    }
    weights = (weight if each is None else each for each in (weight_beside, next_weight, next_shift))
    weight_beside, next_weight, next_shift = weights
    given = (images, weight, shift, beside, weight_beside, next_weight, next_shift, ended, begun)
    sizes = (rows, height, width)
    if images.is_cuda:
        _tuned[lambda tile: (triton.cdiv(rows, tile["ROWS"]),)](*given, *sizes, **asked)
    else:
        _end[(triton.cdiv(rows, 64),)](*given, *sizes, **asked, ROWS=64, COLUMNS=64)
    return ended, begun


@end_of_a_bottleneck.register_fake
def _(
    images: torch.Tensor, weight: torch.Tensor, *others: torch.Tensor | None, stride: int
) -> tuple[torch.Tensor, torch.Tensor]:
    *_, next_weight, _next_shift = others
    return _empty_ends(images, weight, next_weight)


def _empty_ends(
    images: torch.Tensor, weight: torch.Tensor, next_weight: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    count, _, height, width = images.shape
    begun = 0 if next_weight is None else len(next_weight)
    ended, empty = (empty_last((count, each, height, width), images) for each in (len(weight), begun))
    return ended, empty


class EndingBlock(RectifyingBlock):
    """A bottleneck with such an end. Between blocks goes what the last one ended with and what the next begins with, where it was begun."""

    most_channels = 0
    hands_on = True
    following: tuple[RectifyingBlock, ...] = ()  # the next, unseen as a part of this one

    def forward(self, images: Any) -> Any:
        if not torch.compiler.is_compiling():
            return super().forward(images)
        images, found = images if isinstance(images, tuple) else (images, None)
        if found is None:
            found = rectified_convolution(images, *self._kept(0), None, **self._places[0])
        found = rectified_convolution(found, *self._kept(1), None, **self._places[1])
        if found.numel() // found.shape[1] < FEWEST_ROWS or len(self.weight2) > self.most_channels:
            return rectified_convolution(found, *self._kept(2), self._beside(images), **self._places[2])
        begins = self.following[0]._kept(0) if self.hands_on and self.following else (None, None)
        beside = self.downsample
        weight, stride = (None, 1) if beside is None else (self.weight_beside, beside[0].stride[0])
        ended, begun = end_of_a_bottleneck(found, *self._kept(2), images, weight, *begins, stride=stride)
        return ended if begins[0] is None else (ended, begun)


def with_endings(model: torch.nn.Module, most_channels: int, *, hands_on: bool) -> None:
    """Let its bottlenecks end so. In a class of their own: what is compiled for one class is not taken for another."""
    made = type("Variant", (EndingBlock,), {"most_channels": most_channels, "hands_on": hands_on})
    blocks = [block for block in model.modules() if isinstance(block, RectifyingBlock)]
    if any(block._eager is not Bottleneck.forward for block in blocks):
        raise ValueError("these are no bottlenecks")
    for block in blocks:
        block.__class__ = made
    for block, following in pairwise(blocks):
        block.following = (following,)


def one(end: tuple[int, ...], count: int, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """The arguments of an end of a bottleneck."""
    channels, out, pixels, beside, stride, following = end
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
        "next_weight": drawn(following, out, 1, 1) / out**0.5 if following else None,
        "next_shift": drawn(following) if following else None,
        "stride": stride if beside else 1,
    }


def by_library(asked: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """The same by what workloads/rectifying.py calls."""
    added = asked["beside"]
    if asked["weight_beside"] is not None:
        added = F.conv2d(added, asked["weight_beside"], None, asked["stride"])
    ended = rectified_convolution(
        asked["images"], asked["weight"], asked["shift"], added, stride=[1, 1], padding=[0, 0]
    )
    if asked["next_weight"] is None:
        return (ended,)
    return ended, rectified_convolution(
        ended, asked["next_weight"], asked["next_shift"], None, stride=[1, 1], padding=[0, 0]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--pairs", type=int, default=5)
    arguments = parser.parse_args()
    device = prepared(arguments.device)
    here, on_gpu = torch.device(device.name), device.name != "cpu"
    if not on_gpu and os.environ.get("TRITON_INTERPRET") != "1":
        parser.error("on a CPU triton interprets: TRITON_INTERPRET=1 python -m tests.studies.endings")
    torch.backends.cudnn.benchmark = True
    failed: list[str] = []
    for end in ENDS:
        channels, out, pixels, beside, _, following = end
        name = (
            f"{channels} -> {out} at {pixels}, {beside or 'nothing'} beside, {following or 'nothing'} begun"
        )
        with attempted(name, failed):
            print(f"{name}: {compared(end, here, on_gpu=on_gpu)}", flush=True)
    if on_gpu:
        whole_steps(device, arguments.pairs, failed)
    else:
        for name, (most, hands_on) in VARIANTS.items():
            whole_on_a_cpu(name, most, hands_on=hands_on)
    if failed:
        sys.exit(1)


def compared(end: tuple[int, ...], device: torch.device, *, on_gpu: bool) -> str:
    """How far an end is from cuDNN's, and on a GPU what both take."""
    asked = one(end, 1024 if on_gpu else 1, device, torch.bfloat16 if on_gpu else torch.float32)
    pairs = zip(end_of_a_bottleneck(**asked), by_library(asked), strict=False)
    far = max(apart(found, expected) for found, expected in pairs)
    told = f"{far:.2%} of the largest apart"
    if not on_gpu:
        return told
    calls = (lambda: by_library(asked), lambda: end_of_a_bottleneck(**asked))
    library_ms, ours_ms = (triton.testing.do_bench(call, warmup=20, rep=60) for call in calls)
    return f"{told}; {library_ms:.3f} ms by cuDNN, {ours_ms:.3f} ms, {_tuned.best_config}"


def whole_steps(device: Device, pairs: int, failed: list[str]) -> None:
    """Steps of the fixture, and with such ends, in turn."""
    asked = {
        "data": "imagenet",
        "batch_size": 1024,
        "precision": "bf16",
        "device": torch.device(device.name),
    }
    with InferStep.build("resnet50", **asked) as plain:
        for name, (most, hands_on) in VARIANTS.items():
            plain()  # a step that is closed, as the last one, has torch forget what it compiled for all
            with attempted(name, failed), InferStep.build("resnet50", **asked) as step:
                with_endings(step._model, most, hands_on=hands_on)
                before = graphs()
                step()
                compiled = graphs()
                far = difference(step, plain)
                ratio = in_turn(step, plain, device, pairs=pairs, steps=10)
                if not before < compiled == graphs():
                    raise RuntimeError("it ran what was compiled for another")
                print(f"resnet50, {name}: {ratio}; answers {far:.2%} of the largest apart", flush=True)


def whole_on_a_cpu(name: str, most: int, *, hands_on: bool) -> None:
    """That a model answers the same: traced, and interpreted."""
    from pytest_accel.workloads.rectifying import rectify
    from torchvision.models import resnet50

    from tests.support.graphs import traced
    from tests.support.resnets import settled

    model = settled(resnet50(num_classes=4)).float()
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode(), patch(f"{__name__}.FEWEST_ROWS", 1):
        expected = model(images)
        rectify(model)
        with_endings(model, most, hands_on=hands_on)
        found, seen = traced(model, images, fullgraph=True)
    ends = sum("end_of_a_bottleneck" in each for each in seen)
    far = apart(found, expected)
    print(f"resnet50, {name}: {ends} ends, answers {far:.2%} of the largest apart", flush=True)


if __name__ == "__main__":
    main()
