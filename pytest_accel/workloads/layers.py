"""Layers that compute what torch's do, and faster where a model is compiled for an NVIDIA GPU.

A layer keeps its place, its name and its parameters; run eagerly, it is the layer that it stands in for. So the number
of parameters, the count of FLOPs and what is judged between epochs are those of the model as its library wrote it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Self, TypeAlias

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

Convolution: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

BLOCK_CHANNELS = (
    16  # of a block of 2 x 2 pixels of 3 colours, 12, filled up: tensor cores read them in eights
)


def stand_in_for_slow_layers(model: nn.Module, precision: str) -> None:
    """Replace what a compiler leaves slow in a ResNet: the convolution over three colours, and the pooling behind it.

    Where it infers, its blocks too. And in any model the count of batches that every normalisation keeps, for nobody where it has a momentum: a launch each.
    """
    from torchvision.models import ResNet

    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.momentum is not None:  # noqa: SLF001 - they share no other
            layer.num_batches_tracked = None
    for part in [
        part for part in model.modules() if isinstance(part, ResNet)
    ]:  # an encoder of another model too
        if precision in STEMS and is_stem(part.conv1):
            part.conv1 = Stem.of(part.conv1, STEMS[precision])
    if precision in STEMS and not model.training:
        from pytest_accel.workloads.rectifying import rectify_blocks

        rectify_blocks(model)
    if not isinstance(model, ResNet):
        return  # it may read what lies between the rectification and the pooling
    if type(model.relu) is nn.ReLU and is_pooling(model.maxpool) and find_spec("triton") is not None:
        model.relu, model.maxpool = RectifiedWhenPooled(), RectifiedMaxPool()


def is_stem(layer: nn.Module) -> bool:
    """Whether it convolves 7 x 7 pixels of three colours, with stride 2."""
    plain = {"kernel_size": (7, 7), "stride": (2, 2), "padding": (3, 3), "dilation": (1, 1), "groups": 1}
    return (
        type(layer) is nn.Conv2d
        and layer.in_channels == 3
        and layer.padding_mode == "zeros"
        and all(getattr(layer, name) == value for name, value in plain.items())
    )


class Stem(nn.Conv2d):
    """A convolution over three colours, of which tensor cores can make little, in a way that they can."""

    def __init__(self, out_channels: int, *, bias: bool, way: Convolution) -> None:
        super().__init__(3, out_channels, 7, stride=2, padding=3, bias=bias, device="meta")
        self._way = way

    @classmethod
    def of(cls, layer: nn.Conv2d, way: Convolution) -> Self:
        """Stand in for a layer, with its parameters."""
        stem = cls(layer.out_channels, bias=layer.bias is not None, way=way)
        stem.weight, stem.bias = layer.weight, layer.bias
        return stem.train(layer.training)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        even = images.shape[-2] % 2 == 0 == images.shape[-1] % 2
        if torch.compiler.is_compiling() and even:
            return self._way(images, self.weight, self.bias)
        return super().forward(images)


def convolved_in_blocks(
    images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Convolve 4 x 4 blocks of 2 x 2 pixels, with stride 1: the same products, in another order.

    A window begins at pixel 2 i - 3. With one row before it, of weight zero, it begins with block i - 2, and ends with
    block i + 1.
    """
    images, weight = as_blocks(images), as_blocks(F.pad(weight, (1, 0, 1, 0)))
    missing = BLOCK_CHANNELS - images.shape[1]
    images = F.pad(images, (2, 1, 2, 1, 0, missing)).contiguous(memory_format=torch.channels_last)
    weight = F.pad(weight, (0, 0, 0, 0, 0, missing)).contiguous(memory_format=torch.channels_last)
    return F.conv2d(images, weight, bias)


def as_blocks(pixels: torch.Tensor) -> torch.Tensor:
    """(n, channels, height, width) -> (n, 4 channels, height / 2, width / 2)."""
    count, channels, height, width = pixels.shape
    blocks = pixels.reshape(count, channels, height // 2, 2, width // 2, 2)
    return blocks.permute(0, 3, 5, 1, 2, 4).reshape(count, 4 * channels, height // 2, width // 2)


def convolved_in_four_colours(
    images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Convolve with a fourth colour of zeros, which cuDNN would otherwise add in a pass of its own."""
    fourth = (0, 0, 0, 0, 0, 1)
    images = F.pad(images, fourth).contiguous(memory_format=torch.channels_last)
    weight = F.pad(weight, fourth).contiguous(memory_format=torch.channels_last)
    return F.conv2d(images, weight, bias, stride=2, padding=3)


# On an H200 (cuDNN of torch 2.11), both ways, for 256 images: bf16 takes 2.75 ms as it is and 1.25 ms in blocks. For fp16
# cuDNN has kernels of its own for four colours, which are faster than blocks.
STEMS: dict[str, Convolution] = {"bf16": convolved_in_blocks, "fp16": convolved_in_four_colours}


def is_pooling(layer: nn.Module) -> bool:
    """Whether it takes the maxima of 3 x 3 pixels, with stride 2."""
    plain = {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 1}
    return (
        type(layer) is nn.MaxPool2d
        and not layer.ceil_mode
        and not layer.return_indices
        and all(getattr(layer, name) in {value, (value, value)} for name, value in plain.items())
    )


class RectifiedWhenPooled(nn.ReLU):
    """Rectification that is left to the pooling behind it: max(0, ...) of a quarter of the pixels is the same."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images if _pooled_by_kernels(self, images) else super().forward(images)


class RectifiedMaxPool(nn.MaxPool2d):
    """Maxima of 3 x 3 pixels above zero, whose backward pass writes every pixel once.

    What the compiler makes of pooling took 3.8 of the 67 ms of a step of ResNet50 (H200, fp16, batch 512, torch 2.11), and
    these kernels take 0.95.
    """

    def __init__(self) -> None:
        super().__init__(3, stride=2, padding=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not _pooled_by_kernels(self, images):
            pooled: torch.Tensor = super().forward(images)
            return pooled
        from pytest_accel.workloads.pooling import rectified_maxima

        return rectified_maxima(images)[0]


def _pooled_by_kernels(layer: nn.Module, images: torch.Tensor) -> bool:
    """In training alone: for inference the compiler fuses both into one pass."""
    _, channels, height, width = images.shape
    makes_blocks = channels in {16, 32, 64, 128, 256} and height % 2 == 0 == width % 2
    return torch.compiler.is_compiling() and layer.training and images.is_cuda and makes_blocks
