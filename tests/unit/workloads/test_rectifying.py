"""Convolutions that normalise, add and rectify: the same answers, names and parameters; others are left alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision import models
from torchvision.models.resnet import BasicBlock

from pytest_accel.workloads.flops import count
from pytest_accel.workloads.layers import stand_in_for_slow_layers
from pytest_accel.workloads.models import build_model
from pytest_accel.workloads.rectifying import RectifyingBlock, RectifyingStem, rectify, rectify_blocks
from pytest_accel.workloads.tasks import plan_data
from tests.support.graphs import traced
from tests.support.resnets import settled


def rectifying(model):
    return sum(isinstance(block, RectifyingBlock) for block in model.modules())


@pytest.mark.parametrize("size", [64, 65], ids=["even", "odd"])
@pytest.mark.parametrize(("model", "convolutions"), [(models.resnet18, 16), (models.resnet50, 48)])
def test_a_model_that_rectifies_while_it_convolves_answers_the_same(model, convolutions, size):
    model = settled(model)
    images = torch.randn(2, 3, size, size, dtype=torch.float64)
    with torch.inference_mode():
        expected = model(images)
    names, kept = dict(model.named_parameters()), set(model.state_dict())
    rectify(model)
    assert isinstance(model.conv1, RectifyingStem)
    assert all(parameter is names[name] for name, parameter in model.named_parameters())
    assert kept == set(model.state_dict())
    with torch.inference_mode():
        assert torch.equal(model(images), expected)
        found, seen = traced(model, images, fullgraph=True)
    torch.testing.assert_close(found, expected)
    arranged = size % 2 == 0
    assert sum("rectified_convolution" in each for each in seen) == convolutions + arranged
    assert not any("batch_norm" in each for each in seen)


class Tinted(models.ResNet):
    def _forward_impl(self, images):
        return super()._forward_impl(images + self.bn1(self.conv1(images)).mean())


@pytest.mark.parametrize(
    "why",
    [
        "few channels",
        "another convolution",
        "another norm",
        "a norm that learns",
        "another rectification",
        "a forward pass of its own",
        "one of a part",
        "somebody listens",
        "inside another model",
    ],
)
def test_another_first_convolution_stays_as_it_is(why):
    model = settled(models.resnet18)
    if why == "few channels":
        model.conv1, model.bn1 = nn.Conv2d(3, 60, 7, 2, 3), nn.BatchNorm2d(60).eval()
    if why == "another convolution":
        model.conv1 = nn.Conv2d(3, 64, 3, 2, 1)
    if why == "another norm":
        model.bn1 = nn.GroupNorm(8, 64)
    if why == "a norm that learns":
        model.bn1.train()
    if why == "another rectification":
        model.relu = nn.LeakyReLU()
    if why == "a forward pass of its own":
        model = Tinted(BasicBlock, [2, 2, 2, 2]).eval()
    if why == "one of a part":
        model.bn1.forward = lambda images: 2 * images
    if why == "somebody listens":
        model.relu.register_forward_hook(lambda *_: None)
    if why == "inside another model":
        model = nn.Sequential(model)
    before = [type(part) for part in model.modules() if not isinstance(part, BasicBlock)]
    rectify(model)
    assert [type(part) for part in model.modules() if not isinstance(part, RectifyingBlock)] == before
    assert rectifying(model) == 8


class Doubling(nn.Sequential):
    def forward(self, images):
        return 2 * super().forward(images)


@pytest.mark.parametrize(
    "why",
    [
        "groups",
        "few channels",
        "another norm",
        "a norm that learns",
        "a forward pass of its own",
        "one of a part",
        "another downsampling",
        "a downsampling of its own",
        "somebody listens",
    ],
)
def test_other_blocks_stay_as_they_are(why):
    model = settled(models.resnext50_32x4d if why == "groups" else models.resnet18)
    if why == "few channels":
        model.layer1[0] = BasicBlock(60, 60).double()
    if why == "a norm that learns":
        model.layer1[0].bn2.train()
    if why == "a forward pass of its own":
        model.layer1[0].forward = lambda images: 2 * images
    if why == "one of a part":
        model.layer1[0].conv1.forward = lambda images: 2 * images
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
    assert rectifying(model) == (0 if why in {"groups", "another norm"} else 7)


@pytest.mark.parametrize(
    ("training", "precision", "blocks"),
    [(False, "bf16", 8), (False, "fp16", 8), (False, "fp32", 0), (False, "tf32", 0), (True, "bf16", 0)],
)
def test_they_stand_in_where_a_model_infers_in_half_precision(training, precision, blocks):
    model = models.resnet18(weights=None).train(training)
    stand_in_for_slow_layers(model, precision)
    assert rectifying(model) == blocks
    assert isinstance(model.conv1, RectifyingStem) == (blocks > 0)


def test_what_a_model_asks_for_is_counted_as_without_them():
    model, info = build_model("resnet18", device="meta")
    plan = plan_data("imagenet", info, batch_size=2)
    expected = count(model.eval(), plan)
    rectify(model)
    assert rectifying(model) == 8
    assert count(model, plan) == expected
