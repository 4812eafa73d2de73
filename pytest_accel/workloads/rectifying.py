"""A ResNet whose convolutions normalise, add and rectify while they convolve: for inference in half precision, by cuDNN.

A compiler convolves, and then normalises, adds and rectifies in a pass of its own over what was convolved: half of all that a
ResNet reads and writes. Where weights stand still a normalisation is a factor and a shift, which are put into them here. On an H200
a compiled step takes .61 of the time with them at batch 1024, and .87 on a single image (bf16, tests/studies/rectifying.py).
"""

from __future__ import annotations

from typing import Self

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torchvision.models.resnet import BasicBlock, Bottleneck

from pytest_accel.workloads.stems import (
    SIDE,
    Stem,
    can_be_arranged,
    images_in_sixteens,
    in_blocks,
    is_plain_resnet,
    is_pooling,
    is_stem,
    maxima_of_sixteens,
    weight_in_sixteens,
)

CHANNELS = 8  # a multiple of it on both sides: as cuDNN's kernels read them


@torch.library.custom_op("pytest_accel::rectified_convolution", mutates_args=())
def rectified_convolution(
    images: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    added: torch.Tensor | None,
    *,
    stride: list[int],
    padding: list[int],
) -> torch.Tensor:
    """Return relu(convolution + bias + added), channels last."""
    images = images.contiguous(memory_format=torch.channels_last)
    where = (stride, padding, [1, 1], 1)
    if not images.is_cuda:
        found = F.conv2d(images, weight, bias, *where)
        found = F.relu(found if added is None else found + added)
        return found.contiguous(memory_format=torch.channels_last)
    if added is None:
        return torch.cudnn_convolution_relu(images, weight, bias, *where)
    added = added.contiguous(memory_format=torch.channels_last)
    return torch.cudnn_convolution_add_relu(images, weight, added, 1.0, bias, *where)


@rectified_convolution.register_fake
def _(
    images: torch.Tensor,
    weight: torch.Tensor,
    *_added: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
) -> torch.Tensor:
    found = F.conv2d(images, weight, None, stride, padding)
    return torch.empty_like(found, memory_format=torch.channels_last)


def rectify(model: nn.Module) -> None:
    """Let the convolutions of a ResNet do all that: those of its blocks, also in another model, and its first, which pools too."""
    rectify_blocks(model)
    if can_rectify_first(model):
        model.conv1 = RectifyingStem.before(model.conv1, model.bn1)
        model.bn1, model.relu, model.maxpool = (
            Normalised.of(model.bn1),
            Rectified.of(model.relu),
            Pooled.of(model.maxpool),
        )


def rectify_blocks(model: nn.Module) -> None:
    """Replace those that can."""
    for parent in [*model.modules()]:
        for name, block in [*parent.named_children()]:
            if can_rectify(block):
                parent.add_module(name, RectifyingBlock(block))


class RectifyingBlock(nn.Module):
    """A block with the parts, the names and, eagerly, the forward pass of the one that it stands in for.

    Its weights are those of the moment when it is made.
    """

    def __init__(self, block: BasicBlock | Bottleneck) -> None:
        super().__init__()
        for name, part in block.named_children():
            self.add_module(name, part)
        self.downsample: nn.Module | None = block.downsample
        self._eager = type(block).forward
        self._places: list[dict[str, list[int]]] = []  # that its convolutions go over
        for number, (convolution, norm) in enumerate(_convolutions(block)):
            weight, shift = folded(convolution, norm)
            self.register_buffer(f"weight{number}", weight, persistent=False)
            self.register_buffer(f"shift{number}", shift, persistent=False)
            self._places.append({"stride": [*convolution.stride], "padding": [*convolution.padding]})
        if self.downsample is not None:
            weight, beside = folded(*self.downsample)
            self.register_buffer("weight_beside", weight, persistent=False)
            shift += beside  # of the last one: both are added in the end
        self.training = block.training  # its parts have their own

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling() or self.training:
            eagerly: torch.Tensor = self._eager(self, images)  # it has all that is read there
            return eagerly
        found, last = images, len(self._places) - 1
        for number, places in enumerate(self._places):
            added = self._beside(images) if number == last else None
            found = rectified_convolution(found, *self._kept(number), added, **places)
        return found

    def _kept(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return getattr(self, f"weight{number}"), getattr(self, f"shift{number}")

    def _beside(self, images: torch.Tensor) -> torch.Tensor:
        if self.downsample is None:
            return images
        beside = self.downsample[0]
        return F.conv2d(images, self.weight_beside, None, beside.stride, beside.padding)


class RectifyingStem(Stem):
    """The first convolution of a ResNet, which normalises, rectifies and pools what it convolves.

    Its weights are those of the moment when it is made. What is not finite spreads to the whole block of pixels that it lies in, and to its neighbours: there it meets weights of zero.
    """

    @classmethod
    def before(cls, layer: nn.Conv2d, norm: nn.BatchNorm2d) -> Self:
        """Stand in for a layer with all that is behind it, up to the first block."""
        stem = cls.of(layer, in_blocks)
        weight, shift = folded(layer, norm)
        weights, shifts = for_first_layers(weight, shift)
        kept = {"weight0": weight, "shift0": shift, "weights": weights, "shifts": shifts}
        for name, tensor in kept.items():
            stem.register_buffer(name, tensor, persistent=False)
        return stem

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling() or self.training:
            return super().forward(images)
        if not can_be_arranged(images, SIDE):
            found = F.conv2d(images, self.weight0, self.shift0, self.stride, self.padding)
            return F.max_pool2d(F.relu(found), 3, 2, 1)
        return first_layers(images, self.weights, self.shifts)


def first_layers(images: torch.Tensor, weights: torch.Tensor, shifts: torch.Tensor) -> torch.Tensor:
    """Convolve, rectify and pool, in blocks of 4 x 4 pixels, with what `for_first_layers` made of a weight and a shift."""
    blocks = images_in_sixteens(images)
    found = rectified_convolution(blocks, weights, shifts, None, stride=[1, 1], padding=[1, 1])
    return maxima_of_sixteens(found)


def for_first_layers(weight: torch.Tensor, shift: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return them for all four results of a block."""
    return weight_in_sixteens(weight), shift.repeat(4)


class Done(nn.Module):
    """What the first convolution has done already, compiled; eagerly it is the layer that it stands in for."""

    @classmethod
    def of(cls, layer: nn.Module) -> Self:
        """Have all that it has."""
        stand_in = cls.__new__(cls)
        stand_in.__dict__.update(layer.__dict__)
        return stand_in

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling() and not self.training:
            return images
        found: torch.Tensor = super().forward(images)
        return found


class Normalised(Done, nn.BatchNorm2d):
    """A normalisation."""


class Rectified(Done, nn.ReLU):
    """A rectification."""


class Pooled(Done, nn.MaxPool2d):
    """Maxima."""


def can_rectify_first(model: nn.Module) -> bool:
    """Whether it convolves, normalises, rectifies and pools as torchvision's ResNets do, in that order, unheard and to infer."""
    if not is_plain_resnet(model):
        return False
    first = (model.conv1, model.bn1, model.relu, model.maxpool)
    return (
        is_stem(model.conv1)
        and model.conv1.out_channels % CHANNELS == 0
        and knows_its_figures(model.bn1)
        and type(model.relu) is nn.ReLU
        and is_pooling(model.maxpool)
        and not any(part.training for part in first)
        and not is_heard(*first)
    )


def can_rectify(block: nn.Module) -> bool:
    """Whether it is a block as torchvision writes it, of whole convolutions with normalisations that take the figures they know.

    And whether nobody listens to what is inside.
    """
    if type(block) not in {BasicBlock, Bottleneck}:
        return False
    pairs = _convolutions(block)
    if block.downsample is not None:
        pairs.append((*block.downsample,) if type(block.downsample) is nn.Sequential else ())
    is_plain = type(block.relu) is nn.ReLU and all(len(pair) == 2 and _is_whole(*pair) for pair in pairs)
    return is_plain and not is_heard(*block.modules())


def is_heard(*parts: nn.Module) -> bool:
    """Whether somebody listens to one of them, or stands between: with a forward pass that was given to it."""
    return any(
        part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part)  # noqa: SLF001 - torch has no other way to ask
        for part in parts
    )


def _convolutions(block: BasicBlock | Bottleneck) -> list[tuple[nn.Module, ...]]:
    """Those one behind the other, each with its normalisation."""
    numbers = (1, 2, 3) if isinstance(block, Bottleneck) else (1, 2)
    return [(getattr(block, f"conv{each}"), getattr(block, f"bn{each}")) for each in numbers]


def _is_whole(convolution: nn.Module, norm: nn.Module) -> bool:
    return (
        type(convolution) is nn.Conv2d
        and convolution.groups == 1
        and convolution.in_channels % CHANNELS == 0 == convolution.out_channels % CHANNELS
        and convolution.dilation == (1, 1)
        and convolution.padding_mode == "zeros"
        and not isinstance(convolution.padding, str)
        and len({*convolution.stride}) == len({*convolution.padding}) == 1
        and knows_its_figures(norm)
    )


def knows_its_figures(norm: nn.Module) -> bool:
    """Whether it normalises by what it knows of earlier batches, and not by its own."""
    return type(norm) is nn.BatchNorm2d and norm.running_mean is not None and not norm.training


def folded(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weight and bias of a convolution that normalises what it convolves, computed in fp32 at least."""
    own = convolution.weight.dtype
    kind = torch.promote_types(own, torch.float32)
    given = (
        convolution.weight,
        convolution.bias,
        norm.running_mean,
        norm.running_var,
        norm.weight,
        norm.bias,
    )
    weight, bias, mean, variance, factor, shift = (
        None if each is None else each.detach().to(kind) for each in given
    )
    found = fuse_conv_bn_weights(weight, bias, mean, variance, norm.eps, factor, shift)
    whole, shift = (each.detach().to(own) for each in found)
    return whole.contiguous(memory_format=torch.channels_last), shift
