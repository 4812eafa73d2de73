"""Blocks that normalise, add and rectify while they convolve: the same answers, names and parameters; others are left alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision import models
from torchvision.models.resnet import BasicBlock

from tests.studies.rectifying_blocks import RectifyingBlock, rectify_blocks


def settled(model):
    """A ResNet as it is after training: normalisations have figures of their own."""
    model = model(weights=None, num_classes=4).double()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            for figures in (part.running_mean, part.weight.data, part.bias.data):
                figures.normal_()
            part.running_var.uniform_(0.5, 2)
    return model.eval()


def operations(model, images):
    """What a compiled model answers, and the operations in its one graph."""
    seen = []

    def look(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    with torch.inference_mode():
        return torch.compile(model, backend=look, fullgraph=True)(images), seen


@pytest.mark.parametrize(
    ("model", "convolutions"), [(models.resnet18, 16), (models.resnet50, 48), (models.wide_resnet50_2, 48)]
)
def test_blocks_that_rectify_themselves_answer_the_same(model, convolutions):
    model = settled(model)
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    with torch.inference_mode():
        expected = model(images)
    names, kept = dict(model.named_parameters()), set(model.state_dict())
    rectify_blocks(model)
    assert all(parameter is names[name] for name, parameter in model.named_parameters())
    assert kept == set(model.state_dict())
    with torch.inference_mode():
        assert torch.equal(model(images), expected)
    found, seen = operations(model, images)
    torch.testing.assert_close(found, expected)
    assert sum("rectified_convolution" in each for each in seen) == convolutions
    assert sum("batch_norm" in each for each in seen) == 1  # behind the stem


class Doubling(nn.Sequential):
    def forward(self, images):
        return 2 * super().forward(images)


@pytest.mark.parametrize(
    "why", ["groups", "another norm", "another downsampling", "a downsampling of its own", "somebody listens"]
)
def test_other_blocks_stay_as_they_are(why):
    model = settled(models.resnext50_32x4d if why == "groups" else models.resnet18)
    if why == "another norm":
        for block in model.modules():
            if isinstance(block, BasicBlock):
                block.bn1 = nn.Identity()
    if why == "another downsampling":
        model.layer2[0].downsample = nn.Identity()
    if why == "a downsampling of its own":
        model.layer2[0].downsample = Doubling(*model.layer2[0].downsample)
    if why == "somebody listens":
        model.layer1[0].conv2.register_forward_hook(lambda *_: None)
    rectify_blocks(model)
    changed = sum(isinstance(block, RectifyingBlock) for block in model.modules())
    assert changed == (0 if why in {"groups", "another norm"} else 7)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none")
@pytest.mark.parametrize("batch_size", [1, 32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model", [models.resnet18, models.resnet50])
def test_on_a_gpu_they_answer_as_in_double(model, dtype, batch_size):
    whole = settled(model).cuda()
    images = torch.randn(batch_size, 3, 96, 96, device="cuda", dtype=dtype)
    images = images.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        expected = whole(images.double())
        half = whole.to(dtype).to(memory_format=torch.channels_last)
        launched = half(images)
        rectify_blocks(half)
        found = torch.compile(half, fullgraph=True)(images)
    largest = expected.abs().max()
    apart = [float((each - expected).abs().max() / largest) for each in (found, launched)]
    assert apart[0] < max(0.02, 2 * apart[1])
