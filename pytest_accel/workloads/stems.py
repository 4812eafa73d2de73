"""The first layers of a ResNet: a convolution over three colours, of which tensor cores can make little, in ways that they can.

Compiled, images and weight are arranged so that channels come in eights or fours; eagerly it is the layer that it stands in for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, TypeAlias

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

# Images and weight, arranged, and where the convolution goes over them
Arranged: TypeAlias = tuple[torch.Tensor, torch.Tensor, dict[str, int]]
Arrangement: TypeAlias = Callable[[torch.Tensor, torch.Tensor], Arranged]

BLOCK_CHANNELS = (
    16  # of a block of 2 x 2 pixels of 3 colours, 12, filled up: tensor cores read them in eights
)


def is_stem(layer: nn.Module) -> bool:
    """Whether it convolves 7 x 7 pixels of three colours, with stride 2."""
    plain = {"kernel_size": (7, 7), "stride": (2, 2), "padding": (3, 3), "dilation": (1, 1), "groups": 1}
    return (
        type(layer) is nn.Conv2d
        and layer.in_channels == 3
        and layer.padding_mode == "zeros"
        and all(getattr(layer, name) == value for name, value in plain.items())
    )


def is_pooling(layer: nn.Module) -> bool:
    """Whether it takes the maxima of 3 x 3 pixels, with stride 2."""
    plain = {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 1}
    return (
        type(layer) is nn.MaxPool2d
        and not layer.ceil_mode
        and not layer.return_indices
        and all(getattr(layer, name) in {value, (value, value)} for name, value in plain.items())
    )


def is_plain_resnet(model: nn.Module) -> bool:
    """Whether it is a ResNet that goes through its layers as torchvision wrote it, so that nobody reads what lies between them."""
    from torchvision.models import ResNet

    passes = ("forward", "_forward_impl")
    return isinstance(model, ResNet) and all(
        getattr(type(model), name) is getattr(ResNet, name) and name not in vars(model) for name in passes
    )


class Stem(nn.Conv2d):
    """A convolution over three colours that are arranged for tensor cores."""

    def __init__(self, out_channels: int, *, bias: bool, arrange: Arrangement) -> None:
        super().__init__(3, out_channels, 7, stride=2, padding=3, bias=bias, device="meta")
        self.arrange = arrange

    @classmethod
    def of(cls, layer: nn.Conv2d, arrange: Arrangement) -> Self:
        """Stand in for a layer, with its parameters."""
        stem = cls(layer.out_channels, bias=layer.bias is not None, arrange=arrange)
        stem.weight, stem.bias = layer.weight, layer.bias
        return stem.train(layer.training)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling() and can_be_arranged(images):
            images, weight, places = self.arrange(images, self.weight)
            return F.conv2d(images, weight, self.bias, **places)
        return super().forward(images)


def can_be_arranged(images: torch.Tensor, side: int = 2) -> bool:
    """Whether they are made of blocks of side x side pixels."""
    return images.shape[-2] % side == 0 == images.shape[-1] % side


def in_blocks(images: torch.Tensor, weight: torch.Tensor) -> Arranged:
    """4 x 4 blocks of 2 x 2 pixels, with stride 1: the same products, in another order.

    A window begins at pixel 2 i - 3. With one row before it, of weight zero, it begins with block i - 2, and ends with
    block i + 1.
    """
    return images_in_blocks(images), weight_in_blocks(weight), {"stride": 1, "padding": 0}


def images_in_blocks(images: torch.Tensor) -> torch.Tensor:
    return _filled_up(F.pad(as_blocks(images), (2, 1, 2, 1)))


def weight_in_blocks(weight: torch.Tensor) -> torch.Tensor:
    return _filled_up(as_blocks(F.pad(weight, (1, 0, 1, 0))))


def _filled_up(blocks: torch.Tensor) -> torch.Tensor:
    missing = BLOCK_CHANNELS - blocks.shape[1]
    return F.pad(blocks, (0, 0, 0, 0, 0, missing)).contiguous(memory_format=torch.channels_last)


def as_blocks(pixels: torch.Tensor, side: int = 2) -> torch.Tensor:
    """(n, channels, height, width) -> (n, side * side * channels, height / side, width / side)."""
    count, channels, height, width = pixels.shape
    high, wide = height // side, width // side
    blocks = pixels.reshape(count, channels, high, side, wide, side)
    return blocks.permute(0, 3, 5, 1, 2, 4).reshape(count, side * side * channels, high, wide)


def in_four_colours(images: torch.Tensor, weight: torch.Tensor) -> Arranged:
    """With a fourth colour of zeros, which cuDNN would otherwise add in a pass of its own."""
    fourth = (0, 0, 0, 0, 0, 1)
    images = F.pad(images, fourth).contiguous(memory_format=torch.channels_last)
    weight = F.pad(weight, fourth).contiguous(memory_format=torch.channels_last)
    return images, weight, {"stride": 2, "padding": 3}


# On an H200 (cuDNN of torch 2.11), both ways, for 256 images: bf16 takes 2.75 ms as it is and 1.25 ms in blocks. For fp16
# cuDNN has kernels of its own for four colours, which are faster than blocks.
STEMS: dict[str, Arrangement] = {"bf16": in_blocks, "fp16": in_four_colours}


# What rectifies while it convolves can go over blocks of 4 x 4 pixels, 48 channels, and find what is in them at once: 2 x 2 results.
# Two thirds more to multiply than over blocks of 2 x 2, with less than half of the reads for a result; the maxima behind it are then taken of neighbours.
SIDE = 4


def images_in_sixteens(images: torch.Tensor) -> torch.Tensor:
    return as_blocks(images, SIDE).contiguous(memory_format=torch.channels_last)


def weight_in_sixteens(weight: torch.Tensor) -> torch.Tensor:
    """Of 3 x 3 blocks, for four results after each other: (0, 0), (0, 1), (1, 0), (1, 1).

    The window of result (a, b) of block i begins at pixel 4 i + 2 a - 3, which is 2 a + 1 behind the beginning of block i - 1.
    """
    begins = [(2 * a + 1, 2 * b + 1) for a in (0, 1) for b in (0, 1)]
    within = [F.pad(weight, (left, 5 - left, above, 5 - above)) for above, left in begins]
    return as_blocks(torch.cat(within), SIDE).contiguous(memory_format=torch.channels_last)


def maxima_of_sixteens(found: torch.Tensor) -> torch.Tensor:
    """Of 3 x 3 results, with stride 2, as pooling takes them. None is below zero: so zeros are as good as nothing beside the images."""
    count, channels, high, wide = found.shape
    results = found.reshape(count, 2, 2, channels // 4, high, wide)
    above = F.pad(results[:, 1], (0, 0, 1, 0))[..., :-1, :]
    rows = torch.maximum(torch.maximum(results[:, 0], results[:, 1]), above)
    before = F.pad(rows[:, 1], (1, 0))[..., :-1]
    maxima = torch.maximum(torch.maximum(rows[:, 0], rows[:, 1]), before)
    return maxima.contiguous(memory_format=torch.channels_last)
