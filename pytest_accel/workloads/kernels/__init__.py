"""Custom layers and kernels of `tuned=True`: they replace slow layers of torchvision's ResNets, compiled for an NVIDIA GPU.

A replacement keeps the name and parameters of its layer, and eager it is that layer: parameter counts, FLOPs and accuracy
are those of the library's model.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import nn

from pytest_accel.measure.device import is_nvidia
from pytest_accel.workloads.config import StepConfig


def check_tuned(config: StepConfig) -> None:
    if config.tuned and (reason := _why_not_tuned(config)):
        raise ValueError(f"tuned: {reason} Without tuned=True the model of the library is measured.")


def _why_not_tuned(config: StepConfig) -> str | None:
    if not is_nvidia(config.device.type):
        return f"its kernels are for NVIDIA GPUs, and this is {config.device}."
    if not _is_torchvision_resnet(config):
        return (
            f"{config.name} has no tuned layers. Valid: a ResNet of torchvision by name, such as 'resnet50'."
        )
    from pytest_accel.workloads.kernels.resnet import STEMS

    if config.precision not in STEMS:
        return f"it has no kernels for {config.precision}. Valid: precision={' or '.join(map(repr, STEMS))}."
    if config.compile is None:
        return "an eager model keeps the library's layers. Leave compile=None or --accel-compile=off out."
    if config.memory_format == "contiguous":
        return "its kernels read channels last. Leave memory_format='contiguous' out."
    return None


def _is_torchvision_resnet(config: StepConfig) -> bool:
    if callable(config.model) or find_spec("torchvision") is None:
        return False
    from torchvision.models import resnet

    return config.model in resnet.__all__


def replace_slow_layers(model: nn.Module, precision: str) -> None:
    """Replace what the compiler leaves slow in a ResNet: its stem, its max-pool in training, its conv-BN-ReLU in inference.

    Batch norms with a momentum stop counting batches: unused, and one launch each.
    """
    from pytest_accel.workloads.kernels import resnet

    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d) and layer.momentum is not None:
            layer.num_batches_tracked = None
    if not model.training:
        resnet.fuse_conv_bn_relu(model)
    if type(model.conv1) is nn.Conv2d:
        model.conv1 = resnet.Stem.of(model.conv1, resnet.STEMS[precision])
    if model.training:  # in inference it is fused already
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
