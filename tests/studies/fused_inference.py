"""Would convolutions that rectify themselves make inference faster? `python -m tests.studies.fused_inference [--device cuda]`.

A compiled ResNet50 convolves with cuDNN and then normalises, adds and rectifies in a pass of its own over what was
convolved. With its normalisations folded into the weights, cuDNN can add and rectify while it convolves, and so can a matrix product of
the compiler's, which a convolution of single pixels is. Each way in turn with the step of the `infer` fixture (ABBA), recorded and replayed:

- folded: the same, compiled, with folded weights
- rectified: all convolutions by cuDNN, which rectifies while it convolves; nothing compiled
- products: compiled; convolutions of single pixels are products that the compiler tunes, and that add and rectify
- both: such products, and cuDNN's for the other convolutions

Printed are the ratios of their step times to the fixture's, and how far their answers are from its.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from time import perf_counter

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


PRODUCTS = {
    "conv_1x1_as_mm": True,
    "max_autotune_gemm": True,
    "max_autotune_gemm_backends": "ATEN,TRITON",
    "max_autotune_pointwise": True,
}


@torch.library.custom_op("studies::rectified", mutates_args=())
def rectified_convolution(
    images: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int, groups: int
) -> Tensor:
    """An operator of ours, because torch has no shapes of its own for it."""
    return torch.cudnn_convolution_relu(
        images, weight, bias, (stride, stride), (padding, padding), (1, 1), groups
    )


@rectified_convolution.register_fake
def _(images: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int, groups: int) -> Tensor:
    found = F.conv2d(images, weight, bias, stride, padding, 1, groups)
    return torch.empty_like(found, memory_format=torch.channels_last)


class RectifiedByOperator(nn.Module):
    def __init__(self, folded: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = folded.weight, folded.bias
        self.how = (folded.stride[0], folded.padding[0], folded.groups)

    def forward(self, images: Tensor) -> Tensor:
        if not images.is_cuda:
            stride, padding, groups = self.how
            return F.relu(F.conv2d(images, self.weight, self.bias, stride, padding, 1, groups))
        return rectified_convolution(images, self.weight, self.bias, *self.how)


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


def both(model: ResNet) -> ResNet:
    """A folded copy; convolutions of several pixels rectify themselves."""
    model = folded(model)
    for block in model.modules():
        if isinstance(block, Bottleneck):
            block.conv2 = RectifiedByOperator(block.conv2)  # relu(relu(x)) is relu(x)
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
    parser.add_argument("names", nargs="*", metavar="WAY")
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
        ways = {
            "rectified": (rectified, None),
            "products": (folded, PRODUCTS),
            "both": (both, PRODUCTS),
            "folded": (folded, {"max_autotune_pointwise": True}),
        }
        for name in arguments.names or ways:
            change, options = ways[name]
            changed = change(model)
            call = torch.compile(changed, options=options) if options and device.name != "cpu" else changed
            began_s = perf_counter()
            try:
                way = recorded(partial(call, images), device)
            except RuntimeError as error:  # of one way: the others are asked all the same
                print(f"{name}: {error}", flush=True)
                continue
            took_s = perf_counter() - began_s
            far = float((way() - expected).abs().max() / expected.abs().max())
            ratio = in_turn(way, step, device, pairs=arguments.pairs, steps=arguments.steps)
            print(
                f"{name}: {ratio}; answers differ by {far:.2%} of the largest; {took_s:.0f} s to begin",
                flush=True,
            )


if __name__ == "__main__":
    main()
