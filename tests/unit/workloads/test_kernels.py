"""Tuned models: custom layers where asked for, with the same results and parameters; else the library's own model."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchvision import models
from torchvision.models.resnet import BasicBlock, Bottleneck

from pytest_accel.workloads import build, kernels
from pytest_accel.workloads.demand import count
from pytest_accel.workloads.kernels import ReluMaxPool, replace_slow_layers
from pytest_accel.workloads.kernels.resnet import (
    FusedBlock,
    FusedStem,
    Stem,
    fuse_conv_bn_relu,
    stem_space_to_depth,
)
from pytest_accel.workloads.models.build import build_model
from pytest_accel.workloads.step import InferStep, TrainStep
from tests.support.graphs import traced
from tests.support.plans import plan_data
from tests.support.resnets import BLOCKS, small, with_statistics

STEP = {"data": "imagenet", "image_size": 32, "batch_size": 2, "precision": "bf16",
        "memory_format": "channels_last", "compile": "default"}  # fmt: skip


@pytest.fixture
def on_nvidia(monkeypatch):
    """The CPU counts as an NVIDIA GPU; steps are built for it and never called."""
    monkeypatch.setattr(kernels, "is_nvidia", lambda _: True)


def parts_of(model):
    return [type(part) for part in model.modules()], set(model.state_dict())


@pytest.mark.usefixtures("on_nvidia")
@pytest.mark.parametrize("kind", [TrainStep, InferStep])
def test_model_is_the_librarys_own_unless_tuned(kind, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: compiled.append(options) or function)
    with kind.build("resnet18", **STEP) as step:
        assert parts_of(step.parts.model) == parts_of(models.resnet18(weights=None))
        assert "tuned" not in step.configuration
    with kind.build("resnet18", **STEP, tuned=True) as step:
        model = step.parts.model
        assert (
            isinstance(model.conv1, FusedStem)
            is isinstance(model.layer1[0], FusedBlock)
            is not model.training
        )
        assert isinstance(model.conv1, Stem)
        assert step.configuration["tuned"] is True
    plain, tuned = (each["options"] for each in compiled)
    assert tuned == plain | {"max_autotune_pointwise": True}


@pytest.mark.usefixtures("on_nvidia")
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"compile": None}, "compile=None"),
        ({"precision": "fp32"}, "in fp32"),
        ({"model": "timm/resnet50"}, "timm/resnet50"),
        ({"model": models.resnet18}, "resnet18"),
    ],
)
def test_tuned_is_refused_before_anything_is_built_where_it_replaces_nothing(monkeypatch, changes, named):
    monkeypatch.setattr(build, "build_model", None)
    with pytest.raises(ValueError, match=rf"^tuned: .* This is .*{named}.* Without tuned=True the model"):
        TrainStep.build(**{"model": "resnet18", **STEP, "tuned": True, **changes})


def test_tuned_is_refused_on_other_devices():
    with pytest.raises(ValueError, match=r"^tuned: its kernels are for .* NVIDIA GPU\. This is .* on cpu\."):
        InferStep.build("resnet18", **STEP, tuned=True)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (16, 10), (2, 2), (224, 32)])
@pytest.mark.parametrize("bias", [False, True])
def test_rearranged_stem_equals_conv2d_forward_and_backward(height, width, bias):
    random = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, height, width, dtype=torch.float64, generator=random)
    weight = torch.randn(5, 3, 7, 7, dtype=torch.float64, generator=random, requires_grad=True)
    shift = torch.randn(5, dtype=torch.float64, generator=random) if bias else None
    expected = F.conv2d(images, weight, shift, stride=2, padding=3)
    passed_back = torch.randn(expected.shape, dtype=torch.float64, generator=random)
    (gradient,) = torch.autograd.grad(expected, weight, passed_back)
    found = F.conv2d(*stem_space_to_depth(images, weight), shift)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, weight, passed_back)[0], gradient)


def test_model_keeps_its_parameters_and_its_eager_outputs():
    model = models.resnet18(weights=None, num_classes=4)
    names = dict(model.named_parameters())
    images = torch.randn(2, 3, 32, 32)
    expected = model(images)
    replace_slow_layers(model)
    assert isinstance(model.conv1, Stem)
    assert (type(model.relu), type(model.maxpool)) == (nn.Identity, ReluMaxPool)
    assert all(parameter is names[name] for name, parameter in model.named_parameters())
    kept = set(models.resnet18(weights=None, num_classes=4).state_dict()) - set(model.state_dict())
    assert {name.rpartition(".")[2] for name in kept} == {"num_batches_tracked"}
    assert torch.equal(model(images), expected)


@pytest.mark.parametrize("size", [32, 33], ids=["even", "odd"])
def test_compiled_model_computes_the_same(size):
    model = models.resnet18(weights=None, num_classes=4).double()
    images = torch.randn(2, 3, size, size, dtype=torch.float64)
    expected = model(images)
    replace_slow_layers(model)
    found, seen = traced(model, images)
    torch.testing.assert_close(found, expected)
    assert any("pad" in each for each in seen) == (size == 32)


# Fused conv-BN-ReLU, for inference.


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


@pytest.mark.parametrize(
    "options",
    [{"groups": 32, "width_per_group": 4}, {"norm_layer": lambda width: nn.GroupNorm(8, width)}],
    ids=["groups", "another norm"],
)
def test_other_blocks_are_not_fused(options):
    model = with_statistics(small(Bottleneck, **options))
    fuse_conv_bn_relu(model)
    assert fused_blocks(model) == 0
    assert isinstance(model.conv1, FusedStem) == ("groups" in options)


def test_fusing_does_not_change_the_operation_count():
    model, info = build_model("resnet18", device="meta")
    plan = plan_data("imagenet", info, batch_size=2)
    expected = count(model.eval(), plan)
    fuse_conv_bn_relu(model)
    assert fused_blocks(model) == 8
    assert count(model, plan) == expected


# Pooling.

KERNELS = """
import torch
import triton
from torch.nn import functional as F
from pytest_accel.workloads.kernels import pooling

torch.manual_seed(0)
for count, channels, height, width in ((1, 16, 2, 2), (3, 16, 8, 12), (2, 64, 6, 4)):
    images = torch.randn(count, channels, height, width).to(memory_format=torch.channels_last)
    images[0, :, :2] = -images[0, :, :2].abs()  # windows in which none is above zero
    images.requires_grad_()
    expected = F.max_pool2d(F.relu(images), 3, 2, 1)
    passed_back = torch.randn_like(expected)
    (gradient,) = torch.autograd.grad(expected, images, passed_back)
    maxima, which = pooling._empty_maxima(images)
    pixels = pooling._empty_pixels(maxima, which)
    places = count * height * width // 4
    grid = (triton.cdiv(places, pooling.PLACES),)
    sizes = {"CHANNELS": channels, "PLACES": pooling.PLACES}
    pooling._forward[grid](images.detach(), maxima, which, places, height, width, **sizes)
    pooling._backward[grid](passed_back, which, pixels, places, height, width, **sizes)
    torch.testing.assert_close(maxima, expected.detach())
    torch.testing.assert_close(pixels, gradient)
    print("alike")
"""


# torch's wheels for aarch64 CPUs come without it.
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_pooling_kernels_equal_max_pool2d_forward_and_backward(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # on the CPU; read when triton is imported
    ran = subprocess.run(
        [sys.executable, "-c", KERNELS], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.stdout.split() == ["alike"] * 3, ran.stderr
