"""Are depthwise convolutions quicker in Triton than in cuDNN? `python -m tests.studies.depthwise [MODEL ...] [--batch N]`; it needs a CUDA device.

EfficientNets and MobileNets reach 3 % of an H200's peak, and their first steps take 20 to 46 s with everything compiled; others report that cuDNN makes its depthwise
kernels anew in every process. Each shape of such a convolution in a model, channels last, both ways: milliseconds of its forward pass and of its gradients of images and of weights, and seconds
of the first call of all three. Nothing of this is used by any fixture yet.
"""
# ruff: noqa: N803 - what is fixed when a kernel is compiled is written large

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torchvision
import triton
import triton.language as tl
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

from pytest_accel.measure.device import Device
from tests.studies.alternating import bare, prepared

COLUMNS, CHANNELS = 16, 64  # of a program
SPLITS = 256  # programs that add up the gradient of the same weights
REPEATS = 20


@triton.jit
def _convolve(
    source,
    taps,
    target,
    source_high,
    source_wide,
    high,
    wide,
    channels,
    SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    BACK: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """From images to what is convolved; `BACK`, from the gradient of that to the gradient of images."""
    blocks, strips = tl.cdiv(channels, CHANNELS), tl.cdiv(wide, COLUMNS)
    program = tl.program_id(0)
    channel = program % blocks * CHANNELS + tl.arange(0, CHANNELS)
    column = program // blocks % strips * COLUMNS + tl.arange(0, COLUMNS)
    row = (program // (blocks * strips)).to(tl.int64)
    image, line = row // high, row % high
    there = (column < wide)[:, None] & (channel < channels)[None, :]
    total = tl.zeros((COLUMNS, CHANNELS), tl.float32)
    for number in tl.static_range(SIZE * SIZE):
        if BACK:
            y, x = line + PADDING - number // SIZE, column + PADDING - number % SIZE
            inside = (y >= 0) & (y % STRIDE == 0) & (x >= 0) & (x % STRIDE == 0)
            y, x = y // STRIDE, x // STRIDE
        else:
            y, x = line * STRIDE - PADDING + number // SIZE, column * STRIDE - PADDING + number % SIZE
            inside = (y >= 0) & (x >= 0)
        inside = inside & (y < source_high) & (x < source_wide)
        place = ((image * source_high + y) * source_wide + x)[:, None] * channels + channel[None, :]
        value = tl.load(source + place, mask=inside[:, None] & there, other=0.0).to(tl.float32)
        tap = tl.load(taps + number * channels + channel, mask=channel < channels, other=0.0).to(tl.float32)
        total += value * tap[None, :]
    place = (row * wide + column)[:, None] * channels + channel[None, :]
    tl.store(target + place, total.to(target.dtype.element_ty), mask=there)


@triton.jit
def _to_taps(
    gradient,
    images,
    result,
    rows,
    height,
    width,
    high,
    wide,
    channels,
    SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr,
    SPLITS: tl.constexpr,
    NUMBERS: tl.constexpr,
    TURNS: tl.constexpr,
    STRIPS: tl.constexpr,
):
    blocks = tl.cdiv(channels, CHANNELS)
    program = tl.program_id(0)
    channel = program % blocks * CHANNELS + tl.arange(0, CHANNELS)
    split = program // blocks
    known = channel < channels
    numbers = tl.arange(0, NUMBERS)[:, None]
    total = tl.zeros((NUMBERS, CHANNELS), tl.float32)
    for turn in range(TURNS):
        row = split + turn * SPLITS
        image, y_out = row // high, row % high
        for strip in range(STRIPS):
            column = strip * COLUMNS + tl.arange(0, COLUMNS)
            there = ((row < rows) & (column < wide))[:, None] & known[None, :]
            place = (row.to(tl.int64) * wide + column)[:, None] * channels + channel[None, :]
            given = tl.load(gradient + place, mask=there, other=0.0).to(tl.float32)
            for number in tl.static_range(SIZE * SIZE):
                y = y_out * STRIDE - PADDING + number // SIZE
                x = column * STRIDE - PADDING + number % SIZE
                inside = ((y >= 0) & (y < height) & (x >= 0) & (x < width))[:, None] & there
                pixel = ((image * height + y).to(tl.int64) * width + x)[:, None] * channels + channel[None, :]
                value = tl.load(images + pixel, mask=inside, other=0.0).to(tl.float32)
                total += tl.where(numbers == number, tl.sum(given * value, axis=0)[None, :], 0.0)
    target = (split * SIZE * SIZE + numbers) * channels + channel[None, :]
    tl.store(result + target, total, mask=(numbers < SIZE * SIZE) & known[None, :])


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of one such convolution."""

    channels: int
    height: int
    width: int
    size: int
    stride: int

    @property
    def padding(self) -> int:
        return self.size // 2

    @property
    def high(self) -> int:
        return (self.height + 2 * self.padding - self.size) // self.stride + 1

    @property
    def wide(self) -> int:
        return (self.width + 2 * self.padding - self.size) // self.stride + 1

    def __str__(self) -> str:
        return f"{self.channels} channels, {self.height} x {self.width}, {self.size} x {self.size}, stride {self.stride}"


class Kernels:
    """Of one shape; tensors are (n, channels, height, width), channels last."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._sizes = (shape.height, shape.width, shape.high, shape.wide, shape.channels)
        self._fixed = {
            "SIZE": shape.size,
            "STRIDE": shape.stride,
            "PADDING": shape.padding,
            "COLUMNS": COLUMNS,
            "CHANNELS": CHANNELS,
        }
        self._blocks = triton.cdiv(shape.channels, CHANNELS)

    def forward(self, images: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._convolved(images, weight, self.shape.high, self.shape.wide, back=False)

    def to_images(self, gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._convolved(gradient, weight, self.shape.height, self.shape.width, back=True)

    def _convolved(
        self, source: torch.Tensor, weight: torch.Tensor, high: int, wide: int, *, back: bool
    ) -> torch.Tensor:
        count, channels, *sizes = source.shape
        target = torch.empty(
            (count, channels, high, wide),
            dtype=source.dtype,
            device=source.device,
            memory_format=torch.channels_last,
        )
        taps = weight.flatten(1).t().contiguous()  # (size x size, channels)
        grid = (count * high * triton.cdiv(wide, COLUMNS) * self._blocks,)
        _convolve[grid](source, taps, target, *sizes, high, wide, channels, **self._fixed, BACK=back)
        return target

    def to_weight(self, gradient: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        size, channels = self.shape.size, self.shape.channels
        rows = len(images) * self.shape.high
        splits = min(SPLITS, rows)
        parts = torch.empty(splits, size * size, channels, dtype=torch.float32, device=images.device)
        _to_taps[(self._blocks * splits,)](
            *(gradient, images, parts, rows, *self._sizes),
            **self._fixed,
            SPLITS=splits,
            NUMBERS=triton.next_power_of_2(size * size),
            TURNS=triton.cdiv(rows, splits),
            STRIPS=triton.cdiv(self.shape.wide, COLUMNS),
        )
        return parts.sum(0).t().reshape(channels, 1, size, size).to(images.dtype)


class Cudnn:
    """What torch does."""

    def __init__(self, shape: Shape) -> None:
        self._how = {"stride": shape.stride, "padding": shape.padding, "groups": shape.channels}
        self._arguments = ([shape.stride] * 2, [shape.padding] * 2, [1, 1], False, [0, 0], shape.channels)

    def forward(self, images: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv2d(images, weight, **self._how)

    def to_images(self, gradient: torch.Tensor, images: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._backward(gradient, images, weight, [True, False, False])[0]

    def to_weight(self, gradient: torch.Tensor, images: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._backward(gradient, images, weight, [False, True, False])[1]

    def _backward(
        self, gradient: torch.Tensor, images: torch.Tensor, weight: torch.Tensor, wanted: list[bool]
    ) -> tuple[torch.Tensor, ...]:
        found: tuple[torch.Tensor, ...] = torch.ops.aten.convolution_backward(
            gradient, images, weight, None, *self._arguments, wanted
        )
        return found


def shapes_of(model: str, size: int) -> Counter[Shape]:
    """The depthwise convolutions of a model of torchvision's, for images of so many pixels, and how often each comes."""
    with torch.device("meta"):
        built = torchvision.models.get_model(model).eval()
        found: Counter[Shape] = Counter()

        def note(layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...], _: torch.Tensor) -> None:
            assert isinstance(layer, torch.nn.Conv2d)
            _, channels, height, width = inputs[0].shape
            found[
                Shape(
                    channels=channels,
                    height=height,
                    width=width,
                    size=layer.kernel_size[0],
                    stride=layer.stride[0],
                )
            ] += 1

        for layer in built.modules():
            if isinstance(layer, torch.nn.Conv2d) and layer.groups == layer.in_channels > 1:
                layer.register_forward_hook(note)
        built(torch.empty(1, 3, size, size))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", default=["efficientnet_b0"])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--device", choices=["cuda"], default="cuda")
    arguments = parser.parse_args()
    device = prepared(arguments.device)
    torch.backends.cudnn.benchmark = True
    whole = [0.0, 0.0]
    for model in arguments.models:
        for shape, times in shapes_of(model, arguments.size).items():
            ours, theirs = _compared(shape, arguments.batch, device)
            whole[0] += times * sum(ours[1:])
            whole[1] += times * sum(theirs[1:])
            print(f"{model}: {times} x {shape}", flush=True)
            for name, told in (("kernels", ours), ("cuDNN", theirs)):
                forward, images, weight = told[1:]
                print(
                    f"    {name:8} forward {forward:.3f} ms, to images {images:.3f}, to weights {weight:.3f}; first {told[0]:.2f} s",
                    flush=True,
                )
    print(f"all of them in a step: {whole[0]:.2f} ms by the kernels, {whole[1]:.2f} by cuDNN")


def _compared(shape: Shape, batch: int, device: Device) -> tuple[list[float], list[float]]:
    """Of both: seconds of the first calls, then milliseconds of each."""
    torch.manual_seed(0)
    how = {"device": device.name, "dtype": torch.float16}
    images = torch.randn(batch, shape.channels, shape.height, shape.width, **how).contiguous(
        memory_format=torch.channels_last
    )
    weight = torch.randn(shape.channels, 1, shape.size, shape.size, **how)
    gradient = torch.randn(batch, shape.channels, shape.high, shape.wide, **how).contiguous(
        memory_format=torch.channels_last
    )
    kernels, cudnn = Kernels(shape), Cudnn(shape)
    ways: list[list[Callable[[], torch.Tensor]]] = [
        [
            lambda: kernels.forward(images, weight),
            lambda: kernels.to_images(gradient, weight),
            lambda: kernels.to_weight(gradient, images),
        ],
        [
            lambda: cudnn.forward(images, weight),
            lambda: cudnn.to_images(gradient, images, weight),
            lambda: cudnn.to_weight(gradient, images, weight),
        ],
    ]
    told: list[list[float]] = []
    results: list[list[torch.Tensor]] = []
    for calls in ways:
        begun = time.perf_counter()
        results.append([call() for call in calls])
        device.synchronize()
        told.append([time.perf_counter() - begun])
    for ours, theirs in zip(*results, strict=True):
        scale = theirs.float().abs().max()
        assert (ours.float() - theirs.float()).abs().max() <= 0.01 * scale, f"{shape}: they differ"
    for calls, row in zip(ways, told, strict=True):
        row += [1e3 * bare(call, device, REPEATS) for call in calls]
    return told[0], told[1]


if __name__ == "__main__":
    main()
