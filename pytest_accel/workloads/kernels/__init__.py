"""Custom layers and kernels of `tuned=True`: they replace slow layers of torchvision's ResNets, compiled for an NVIDIA GPU.

Parameter counts, FLOPs and accuracy are those of the library's model.
"""

from __future__ import annotations

import torch
from torch import nn

from pytest_accel.measure.device import is_nvidia
from pytest_accel.workloads.config import StepConfig

PRECISIONS = ("bf16", "fp16")


def check_tuned(config: StepConfig) -> None:
    if not config.tuned:
        return
    from torchvision.models.resnet import __all__ as resnets

    known = config.model in resnets and config.precision in PRECISIONS
    is_slow = config.compile is None or config.memory_format == "contiguous"  # its kernels read channels last
    if not known or is_slow or not is_nvidia(config.device.type):
        raise ValueError(
            "tuned: its kernels are for a ResNet of torchvision by name, such as 'resnet50', compiled and channels last, in bf16 or "
            f"fp16, on an NVIDIA GPU. This is {config.name} with compile={config.compile!r} in {config.precision} on {config.device}. "
            "Without tuned=True the model of the library is measured."
        )


def replace_slow_layers(model: nn.Module) -> None:
    """Replace what the compiler leaves slow in a ResNet: its stem, its max-pool in training, its conv-BN-ReLU in inference.

    Batch norms stop counting batches: unused beside their momentum, and one launch each.
    """
    from pytest_accel.workloads.kernels import resnet

    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.num_batches_tracked = None
    if not model.training:
        resnet.fuse_conv_bn_relu(model)
        return
    model.conv1 = resnet.Stem(model.conv1)
    model.relu, model.maxpool = nn.Identity(), ReluMaxPool()


class ReluMaxPool(nn.MaxPool2d):
    """ReLU and 3 x 3 max-pool in one, whose backward pass writes every pixel once.

    0.95 ms against the compiler's 3.8 of the 67 ms of a ResNet50 step (H200, fp16, batch 512, torch 2.11).
    """

    def __init__(self) -> None:
        super().__init__(3, stride=2, padding=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        _, channels, height, width = images.shape
        makes_blocks = channels in {16, 32, 64, 128, 256} and height % 2 == 0 == width % 2
        if not (torch.compiler.is_compiling() and images.is_cuda and makes_blocks):
            return super().forward(torch.relu(images))
        from pytest_accel.workloads.kernels.pooling import relu_max_pool

        return relu_max_pool(images)[0]
