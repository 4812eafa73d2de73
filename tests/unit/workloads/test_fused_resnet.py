"""Fused conv-BN-ReLU of ResNets: the same outputs and parameters; models that differ are not changed."""

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


def fused_blocks(model):
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
def test_fused_model_computes_the_same(block, sides, convolutions):
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
    # The stem is fused, and pooling becomes maxima of neighbours, where both sides are multiples of four.
    in_fours = all(side % 4 == 0 for side in sides)
    assert sum("conv_relu" in each for each in seen) == convolutions
    assert not any("batch_norm" in each for each in seen)
    assert any("maximum" in each for each in seen) == in_fours


def test_nan_in_one_image_stays_in_its_output():
    model = with_statistics(small())
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    images[1, 0, 14, 14] = torch.nan
    with torch.inference_mode():
        expected = model(images)
        fuse_conv_bn_relu(model)
        found, _ = traced(model, images)
    assert found[1].isnan().all()
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_fused_model_in_training_mode_computes_the_same():
    model = with_statistics(small())
    images = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    other = deepcopy(model).train()
    fuse_conv_bn_relu(model)
    with torch.no_grad():
        found, seen = traced(model.train(), images)
        torch.testing.assert_close(found, other(images))
    assert (
        sum("batch_norm" in each for each in seen) == 2 + 2 * BLOCKS
    )  # of the stem, of each block, of the downsampling


class Tinted(models.ResNet):
    def forward(self, images):
        return super().forward(images + self.bn1(self.conv1(images)).mean())


def replace_part(name, part):
    return lambda model: setattr(model, name, part.eval())


def override_forward(model):
    model.forward = MethodType(Tinted.forward, model)


OTHER_STEMS = {
    "another convolution": replace_part("conv1", nn.Conv2d(3, 64, 3, 2, 1)),
    "another norm": replace_part("bn1", nn.GroupNorm(8, 64)),
    "another activation": replace_part("relu", nn.LeakyReLU()),
    "another pooling": replace_part("maxpool", nn.MaxPool2d(2)),
    "norm in training mode": lambda model: model.bn1.train(),
    "forward of the model overridden": override_forward,
    "forward of a part overridden": lambda model: setattr(model.bn1, "forward", lambda images: 2 * images),
    "hook on a part": lambda model: model.relu.register_forward_hook(lambda *_: None),
    "inside another model": nn.Sequential,
    "subclass with its own forward": lambda _: with_statistics(small(kind=Tinted)),
}


@pytest.mark.parametrize("change", OTHER_STEMS.values(), ids=OTHER_STEMS)
def test_stem_that_differs_is_not_fused(change):
    model = with_statistics(small())
    changed = change(model)
    model = changed if isinstance(changed, models.ResNet | nn.Sequential) else model
    before = [type(part) for part in model.modules() if not isinstance(part, BasicBlock)]
    fuse_conv_bn_relu(model)
    assert [type(part) for part in model.modules() if not isinstance(part, FusedBlock)] == before
    assert fused_blocks(model) == BLOCKS


class Doubling(nn.Sequential):
    def forward(self, images):
        return 2 * super().forward(images)


def double_downsample(model):
    model.layer2[0].downsample = Doubling(*model.layer2[0].downsample)


OTHER_BLOCKS = {
    "few channels": lambda model: model.layer1.__setitem__(0, BasicBlock(60, 60).double().eval()),
    "norm in training mode": lambda model: model.layer1[0].bn2.train(),
    "another norm": lambda model: setattr(model.layer1[0], "bn1", nn.Identity()),
    "forward overridden": lambda model: setattr(model.layer1[0], "forward", lambda images: 2 * images),
    "forward of a part overridden": lambda model: setattr(
        model.layer1[0].conv1, "forward", lambda images: 2 * images
    ),
    "downsampling with its own forward": double_downsample,
    "hook on a part": lambda model: model.layer1[0].conv2.register_forward_hook(lambda *_: None),
}


@pytest.mark.parametrize("change", OTHER_BLOCKS.values(), ids=OTHER_BLOCKS)
def test_block_that_differs_is_not_fused(change):
    model = with_statistics(small())
    change(model)
    fuse_blocks(model)
    assert fused_blocks(model) == BLOCKS - 1


def test_grouped_convolutions_are_not_fused():
    model = with_statistics(small(Bottleneck, groups=32, width_per_group=4))
    fuse_blocks(model)
    assert fused_blocks(model) == 0


@pytest.mark.parametrize(
    ("training", "precision", "blocks"),
    [(False, "bf16", 8), (False, "fp16", 8), (False, "fp32", 0), (False, "tf32", 0), (True, "bf16", 0)],
)
def test_layers_are_fused_for_inference_in_half_precision(training, precision, blocks):
    model = models.resnet18(weights=None).train(training)
    replace_slow_layers(model, precision)
    assert fused_blocks(model) == blocks
    assert isinstance(model.conv1, FusedStem) == (blocks > 0)


def test_fusing_does_not_change_the_operation_count():
    model, info = build_model("resnet18", device="meta")
    plan = plan_data("imagenet", info, batch_size=2)
    expected = count(model.eval(), plan)
    fuse_conv_bn_relu(model)
    assert fused_blocks(model) == 8
    assert count(model, plan) == expected
