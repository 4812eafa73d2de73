"""Blocks of a ResNet whose convolutions normalise, add and rectify while they convolve: for inference in half precision, by cuDNN.

A compiler convolves, and then normalises, adds and rectifies in a pass of its own over what was convolved: half of all that a
ResNet reads and writes. Where weights stand still a normalisation is a factor and a shift, which are put into them here. On an H200
a compiled step takes .68 of the time with them at batch 1024, and .83 on a single image (bf16, tests/studies/rectifying.py).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torchvision.models.resnet import BasicBlock, Bottleneck

CHANNELS = 8  # a multiple of it on both sides: as cuDNN's kernels read them


@torch.library.custom_op("pytest_accel::rectified_convolution", mutates_args=())
def rectified_convolution(
    images: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    added: torch.Tensor | None,
    *,
    stride: int,
    padding: int,
) -> torch.Tensor:
    """Return relu(convolution + bias + added), channels last."""
    images = images.contiguous(memory_format=torch.channels_last)
    where = ([stride, stride], [padding, padding], [1, 1], 1)
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
    images: torch.Tensor, weight: torch.Tensor, *_added: torch.Tensor | None, stride: int, padding: int
) -> torch.Tensor:
    found = F.conv2d(images, weight, None, stride, padding)
    return torch.empty_like(found, memory_format=torch.channels_last)


def rectify_blocks(model: nn.Module) -> None:
    """Let the convolutions of a ResNet's blocks do all that."""
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
        self._places: list[dict[str, int]] = []  # that its convolutions go over
        for number, (convolution, norm) in enumerate(_convolutions(block)):
            weight, shift = folded(convolution, norm)
            self.register_buffer(f"weight{number}", weight, persistent=False)
            self.register_buffer(f"shift{number}", shift, persistent=False)
            self._places.append({"stride": convolution.stride[0], "padding": convolution.padding[0]})
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


def can_rectify(block: nn.Module) -> bool:
    """Whether it is a block as torchvision writes it, of whole convolutions with normalisations that take the figures they know.

    And whether nobody listens to what is inside.
    """
    if type(block) not in {BasicBlock, Bottleneck}:
        return False
    pairs = _convolutions(block)
    if block.downsample is not None:
        pairs.append((*block.downsample,) if type(block.downsample) is nn.Sequential else ())
    # Or stands between: a forward pass that somebody gave to one of its parts.
    is_heard = any(
        part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part)  # noqa: SLF001 - torch has no other way to ask
        for part in block.modules()
    )
    is_plain = type(block.relu) is nn.ReLU and all(len(pair) == 2 and _is_whole(*pair) for pair in pairs)
    return is_plain and not is_heard


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
        and type(norm) is nn.BatchNorm2d
        and norm.running_mean is not None
        and not norm.training
    )


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
