"""Convolutions that normalise, add and rectify: the same answers, names and parameters; others are left alone."""

from __future__ import annotations

from copy import deepcopy
from types import MethodType

import pytest
import torch
from torch import nn
from torchvision import models
from torchvision.models.resnet import BasicBlock, Bottleneck

from pytest_accel.workloads.flops import count
from pytest_accel.workloads.kernels import replace_slow_layers
from pytest_accel.workloads.kernels.resnet import (
    FusedBlock,
    FusedStem,
    fuse_blocks,
    fuse_conv_bn_relu,
)
from pytest_accel.workloads.models.build import build_model
from tests.support.graphs import traced
from tests.support.plans import plan_data
from tests.support.resnets import BLOCKS, small, with_statistics


def rectifying(model):
    return sum(isinstance(block, FusedBlock) for block in model.modules())


@pytest.mark.parametrize(
    ("block", "sides", "convolutions"),
    [
        (BasicBlock, (64, 36), 1 + 2 * BLOCKS),
        (BasicBlock, (65, 65), 2 * BLOCKS),
        (BasicBlock, (64, 34), 2 * BLOCKS),
        (BasicBlock, (34, 64), 2 * BLOCKS),
        (Bottleneck, (32, 32), 1 + 3 * BLOCKS),
    ],
)
def test_a_model_that_rectifies_while_it_convolves_answers_the_same(block, sides, convolutions):
    model = with_statistics(small(block))
    images = torch.randn(2, 3, *sides, dtype=torch.float64)
    with torch.inference_mode():
        expected = model(images)
    names, kept = dict(model.named_parameters()), set(model.state_dict())
    fuse_conv_bn_relu(model)
    assert isinstance(model.conv1, FusedStem)
    assert all(parameter is names[name] for name, parameter in model.named_parameters())
    assert kept == set(model.state_dict())
    with torch.inference_mode():
        assert torch.equal(model(images), expected)
        found, seen = traced(model, images, fullgraph=True)
    torch.testing.assert_close(found, expected)
    # The first too, and maxima of neighbours instead of pooling, where both sides are made of fours
    in_fours = all(side % 4 == 0 for side in sides)
    assert sum("conv_relu" in each for each in seen) == convolutions
    assert not any("batch_norm" in each for each in seen)
    assert any("maximum" in each for each in seen) == in_fours


def test_what_is_no_number_is_none_in_the_answer_and_the_other_images_keep_theirs():
    model = with_statistics(small())
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    images[1, 0, 14, 14] = torch.nan
    with torch.inference_mode():
        expected = model(images)
        fuse_conv_bn_relu(model)
        found, _ = traced(model, images)
    assert found[1].isnan().all()
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_a_model_that_is_trained_after_all_answers_as_it_did():
    model = with_statistics(small())
    images = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    other = deepcopy(model).train()
    fuse_conv_bn_relu(model)
    with torch.no_grad():
        found, seen = traced(model.train(), images)
        torch.testing.assert_close(found, other(images))
    assert sum("batch_norm" in each for each in seen) == 2 + 2 * BLOCKS  # the first, and one beside a block


FIRST = ["conv1", "bn1", "relu", "maxpool"]


def tinted(model, images):
    return models.ResNet._forward_impl(model, images + model.bn1(model.conv1(images)).mean())


class TintedWithin(models.ResNet):
    _forward_impl = tinted


class TintedBefore(models.ResNet):
    forward = tinted


# A forward pass of its own: in its class, or given to it
TINTED = {
    "a forward pass of its class": lambda: with_statistics(small(kind=TintedBefore)),
    "a way within it": lambda: with_statistics(small(kind=TintedWithin)),
    "a forward pass that it was given": lambda: given_a_pass("forward"),
    "a way within that it was given": lambda: given_a_pass("_forward_impl"),
}


def given_a_pass(name):
    model = with_statistics(small())
    setattr(model, name, MethodType(tinted, model))
    return model


@pytest.mark.parametrize(
    "why",
    [
        "few channels",
        "another convolution",
        "another norm",
        "a norm that learns",
        "another rectification",
        "another pooling",
        "a convolution in training",
        "pooling in training",
        "one of a part",
        *(f"somebody listens to {name}" for name in FIRST),
        "inside another model",
        *TINTED,
    ],
)
def test_another_first_convolution_stays_as_it_is(why):
    model = with_statistics(small())
    if why == "few channels":
        model.conv1, model.bn1 = nn.Conv2d(3, 60, 7, 2, 3).eval(), nn.BatchNorm2d(60).eval()
    if why == "another convolution":
        model.conv1 = nn.Conv2d(3, 64, 3, 2, 1).eval()
    if why == "another norm":
        model.bn1 = nn.GroupNorm(8, 64)
    if why == "a norm that learns":
        model.bn1.train()
    if why == "another rectification":
        model.relu = nn.LeakyReLU().eval()
    if why == "another pooling":
        model.maxpool = nn.MaxPool2d(2).eval()
    if why == "a convolution in training":
        model.conv1.train()
    if why == "pooling in training":
        model.maxpool.train()
    if why in TINTED:
        model = TINTED[why]()
    if why == "one of a part":
        model.bn1.forward = lambda images: 2 * images
    if why.startswith("somebody listens"):
        getattr(model, why.split()[-1]).register_forward_hook(lambda *_: None)
    if why == "inside another model":
        model = nn.Sequential(model)
    before = [type(part) for part in model.modules() if not isinstance(part, BasicBlock)]
    fuse_conv_bn_relu(model)
    assert [type(part) for part in model.modules() if not isinstance(part, FusedBlock)] == before
    assert rectifying(model) == BLOCKS


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
    model = with_statistics(small(Bottleneck, groups=32, width_per_group=4) if why == "groups" else small())
    if why == "few channels":
        model.layer1[0] = BasicBlock(60, 60).double().eval()
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
    fuse_blocks(model)
    assert rectifying(model) == (0 if why in {"groups", "another norm"} else BLOCKS - 1)


@pytest.mark.parametrize(
    ("training", "precision", "blocks"),
    [(False, "bf16", 8), (False, "fp16", 8), (False, "fp32", 0), (False, "tf32", 0), (True, "bf16", 0)],
)
def test_they_stand_in_where_a_model_infers_in_half_precision(training, precision, blocks):
    model = models.resnet18(weights=None).train(training)
    replace_slow_layers(model, precision)
    assert rectifying(model) == blocks
    assert isinstance(model.conv1, FusedStem) == (blocks > 0)


def test_what_a_model_asks_for_is_counted_as_without_them():
    model, info = build_model("resnet18", device="meta")
    plan = plan_data("imagenet", info, batch_size=2)
    expected = count(model.eval(), plan)
    fuse_conv_bn_relu(model)
    assert rectifying(model) == 8
    assert count(model, plan) == expected
