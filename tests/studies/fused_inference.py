"""Would convolutions that rectify themselves make inference faster? `python -m tests.studies.fused_inference [--device cuda]`.

A compiled ResNet50 convolves with cuDNN and then normalises, adds and rectifies in a pass of its own over what was
convolved. With its normalisations folded into the weights, cuDNN can add and rectify while it convolves. Three ways, in turn (ABBA):
the step of the `infer` fixture; the same with folded weights; and folded ones whose convolutions rectify themselves, recorded and replayed.
Printed are the ratios of their step times to the first, and how far their answers are from it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from pytest_accel.measure.device import Device
from pytest_accel.workloads.steps import InferStep
from tests.studies.alternating import in_turn, prepared

WORKLOADS = {
    "cuda": {"model": "resnet50", "data": "imagenet", "batch_size": 1024, "precision": "bf16"},
    "cpu": {"model": "resnet18", "data": "imagenet", "image_size": 64, "batch_size": 2, "precision": "fp32"},
}
SETTLING = 3  # steps before launches are recorded


class Rectified(nn.Module):
    """relu(convolution + what is added), in one kernel where cuDNN is."""

    def __init__(self, folded: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = folded.weight, folded.bias
        self.how = (folded.stride, folded.padding, folded.dilation, folded.groups)

    def forward(self, images: Tensor, added: Tensor | None = None) -> Tensor:
        if not images.is_cuda:
            found = F.conv2d(images, self.weight, self.bias, *self.how)
            return F.relu(found if added is None else found + added)
        if added is None:
            return torch.cudnn_convolution_relu(images, self.weight, self.bias, *self.how)
        return torch.cudnn_convolution_add_relu(images, self.weight, added, 1.0, self.bias, *self.how)


class RectifiedBlock(nn.Module):
    """A block of a ResNet whose convolutions rectify themselves."""

    def __init__(self, block: BasicBlock | Bottleneck) -> None:
        super().__init__()
        names = ("1", "2", "3") if isinstance(block, Bottleneck) else ("1", "2")
        self.convolutions = nn.ModuleList(Rectified(getattr(block, f"conv{name}")) for name in names)
        self.downsample = block.downsample

    def forward(self, images: Tensor) -> Tensor:
        *first, last = self.convolutions
        found = images
        for convolution in first:
            found = convolution(found)
        added = images if self.downsample is None else self.downsample(images)
        return last(found, added)


def folded(model: ResNet) -> ResNet:
    """A copy without normalisations: they are in the weights."""
    model = deepcopy(model).eval()
    for part in model.modules():
        if isinstance(part, BasicBlock | Bottleneck | ResNet):
            for number in ("1", "2", "3"):
                if isinstance(norm := getattr(part, f"bn{number}", None), nn.BatchNorm2d):
                    setattr(part, f"conv{number}", fuse_conv_bn_eval(getattr(part, f"conv{number}"), norm))
                    setattr(part, f"bn{number}", nn.Identity())
        if getattr(part, "downsample", None) is not None:
            part.downsample = nn.Sequential(fuse_conv_bn_eval(*part.downsample))
    return model


def rectified(model: ResNet) -> ResNet:
    """A folded copy whose convolutions rectify themselves."""
    model = folded(model)  # its stem stays: cuDNN is slow to rectify what it makes of three colours
    for name in ("layer1", "layer2", "layer3", "layer4"):
        setattr(model, name, nn.Sequential(*map(RectifiedBlock, getattr(model, name))))
    return model


def recorded(call: Callable[[], Tensor], device: Device) -> Callable[[], Tensor]:
    """The call, its launches recorded and replayed where the device can."""
    for _ in range(SETTLING):
        call()
    if device.name == "cpu":
        return call
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call()

    def replayed() -> Tensor:
        graph.replay()
        return output

    return replayed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=sorted(WORKLOADS))
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    device = prepared(arguments.device)
    asked = {**WORKLOADS[arguments.device], "device": torch.device(device.name)}
    with InferStep.build(asked.pop("model"), **asked) as step, torch.inference_mode():
        model = getattr(step._forward, "_orig_mod", step._forward)
        images, _ = step._next_batch()
        expected = model(images)
        compiled = torch.compile(folded(model)) if arguments.device == "cuda" else folded(model)
        itself = rectified(model)
        for name, call in (
            ("folded", lambda: compiled(images)),
            ("rectified", lambda: itself(images)),
        ):
            way = recorded(call, device)
            far = float((way() - expected).abs().max() / expected.abs().max())
            ratio = in_turn(way, step, device, pairs=arguments.pairs, steps=arguments.steps)
            print(f"{name}: {ratio}; answers differ by {far:.2%} of the largest", flush=True)


if __name__ == "__main__":
    main()
