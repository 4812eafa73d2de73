"""Custom layers and kernels that replace slow layers of compiled models on NVIDIA GPUs, not of a user's own ones.

A replacement keeps the name and parameters of its layer, and eager it is that layer: parameter counts, FLOPs and accuracy
are those of the library's model.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import nn


def replace_slow_layers(model: nn.Module, precision: str) -> None:
    """Replace what the compiler leaves slow: a ResNet's stem, its max-pool in training, and in inference its conv-BN-ReLU.

    In any model, batch norms with a momentum stop counting batches: unused, and one launch each.
    """
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.momentum is not None:  # noqa: SLF001 - they share no other
            layer.num_batches_tracked = None
    if find_spec("torchvision") is None:
        return
    from torchvision.models import ResNet

    from pytest_accel.workloads.kernels import resnet

    if precision in resnet.STEMS and not model.training:
        resnet.fuse_conv_bn_relu(model)
    for part in model.modules():
        # An encoder of another model too, unless its stem is fused
        if isinstance(part, ResNet) and precision in resnet.STEMS and type(part.conv1) is nn.Conv2d:
            part.conv1 = resnet.Stem.of(part.conv1, resnet.STEMS[precision])
    # Another forward pass may read the input of the pooling; in inference it is fused already.
    if type(model) is ResNet and model.training and find_spec("triton") is not None:
        model.relu, model.maxpool = DeferredReLU(), ReluMaxPool()


class DeferredReLU(nn.ReLU):
    """A ReLU that the following ReluMaxPool computes, on a quarter of the pixels."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images if _uses_kernel(self, images) else super().forward(images)


class ReluMaxPool(nn.MaxPool2d):
    """ReLU and 3 x 3 max-pool in one, whose backward pass writes every pixel once.

    0.95 ms against the compiler's 3.8 of the 67 ms of a ResNet50 step (H200, fp16, batch 512, torch 2.11).
    """

    def __init__(self) -> None:
        super().__init__(3, stride=2, padding=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not _uses_kernel(self, images):
            return super().forward(images)
        from pytest_accel.workloads.kernels.pooling import relu_max_pool

        return relu_max_pool(images)[0]


def _uses_kernel(layer: nn.Module, images: torch.Tensor) -> bool:
    """Return whether the Triton kernel applies; inference needs no indices of maxima."""
    _, channels, height, width = images.shape
    makes_blocks = channels in {16, 32, 64, 128, 256} and height % 2 == 0 == width % 2
    return torch.compiler.is_compiling() and layer.training and images.is_cuda and makes_blocks
