"""Layers that stand in for others: the same sums, the same parameters, and unseen where nothing is compiled."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchvision import models
from torchvision.models.resnet import BasicBlock

from pytest_accel.workloads.kernels import (
    DeferredReLU,
    ReluMaxPool,
    replace_slow_layers,
)
from pytest_accel.workloads.kernels.resnet import STEMS, Stem, is_pooling, is_stem
from tests.support.graphs import traced

# Pooling needs it, and torch's wheels for aarch64 CPUs come without it.
TRITON = find_spec("triton") is not None


@pytest.mark.parametrize("arrange", STEMS.values(), ids=STEMS)
@pytest.mark.parametrize(("height", "width"), [(8, 8), (16, 10), (2, 2), (224, 32)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_stem_convolves_as_torch_does_forward_and_backward(arrange, height, width, bias):
    random = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, height, width, dtype=torch.float64, generator=random)
    weight = torch.randn(5, 3, 7, 7, dtype=torch.float64, generator=random, requires_grad=True)
    shift = torch.randn(5, dtype=torch.float64, generator=random) if bias else None
    expected = F.conv2d(images, weight, shift, stride=2, padding=3)
    passed_back = torch.randn(expected.shape, dtype=torch.float64, generator=random)
    (gradient,) = torch.autograd.grad(expected, weight, passed_back)
    arranged, arranged_weight, places = arrange(images, weight)
    found = F.conv2d(arranged, arranged_weight, shift, **places)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, weight, passed_back)[0], gradient)


@pytest.mark.parametrize("precision", STEMS)
def test_a_model_keeps_its_parameters_and_what_it_computes_eagerly(precision):
    model = models.resnet18(weights=None, num_classes=4)
    names = dict(model.named_parameters())
    images = torch.randn(2, 3, 32, 32)
    expected = model(images)
    replace_slow_layers(model, precision)
    assert isinstance(model.conv1, Stem)
    assert isinstance(model.relu, DeferredReLU) is TRITON
    assert isinstance(model.maxpool, ReluMaxPool) is TRITON
    assert all(parameter is names[name] for name, parameter in model.named_parameters())
    kept = set(models.resnet18(weights=None, num_classes=4).state_dict()) - set(model.state_dict())
    assert {name.rpartition(".")[2] for name in kept} == {"num_batches_tracked"}
    assert torch.equal(model(images), expected)


def test_the_resnet_inside_another_model_keeps_its_pooling():
    model = nn.Sequential(models.resnet18(weights=None), nn.ReLU())
    replace_slow_layers(model, "bf16")
    assert isinstance(model[0].conv1, Stem)
    assert type(model[0].maxpool) is nn.MaxPool2d


class Reading(models.ResNet):
    def forward(self, images):
        return self.relu(self.bn1(self.conv1(images))).mean() + super().forward(images)


def test_a_model_with_a_forward_pass_of_its_own_keeps_its_pooling():
    model = Reading(BasicBlock, [1, 1, 1, 1])
    replace_slow_layers(model, "bf16")
    assert isinstance(model.conv1, Stem)  # which convolves, and no more
    assert type(model.relu) is nn.ReLU
    assert type(model.maxpool) is nn.MaxPool2d


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_model_that_infers_does_not_pool_as_in_training(precision):
    """Where there is no gradient nobody asks where the maxima were."""
    model = models.resnet18(weights=None).eval()
    replace_slow_layers(model, precision)
    assert not any(isinstance(layer, DeferredReLU | ReluMaxPool) for layer in model.modules())
    assert (type(model.maxpool) is nn.MaxPool2d) == (precision == "fp32")


@pytest.mark.parametrize("size", [32, 33], ids=["even", "odd"])
def test_a_compiled_model_computes_the_same(size):
    model = models.resnet18(weights=None, num_classes=4).double().eval()
    images = torch.randn(2, 3, size, size, dtype=torch.float64)
    expected = model(images)
    replace_slow_layers(model, "bf16")
    found, seen = traced(model, images)
    torch.testing.assert_close(found, expected)
    assert any("pad" in each for each in seen) == (size == 32)


@pytest.mark.parametrize(
    ("model", "precision"),
    [(models.mobilenet_v3_small, "bf16"), (models.swin_t, "fp16"), (models.resnet18, "tf32")],
)
def test_other_models_and_precisions_keep_their_first_layer(model, precision):
    model = model(weights=None)
    before = [type(layer) for layer in model.modules()]
    replace_slow_layers(model, precision)
    changed = {type(layer) for layer in model.modules()} - set(before)
    assert changed <= {DeferredReLU, ReluMaxPool}


@pytest.mark.parametrize(
    "other",
    [
        {"kernel_size": 3, "padding": 1},
        {"stride": 1},
        {"padding": 2},
        {"dilation": 2},
        {"padding_mode": "reflect"},
        {"in_channels": 1},
    ],
)
def test_another_convolution_is_no_stem(other):
    plain = {"in_channels": 3, "out_channels": 8, "kernel_size": 7, "stride": 2, "padding": 3}
    assert is_stem(nn.Conv2d(**plain))
    assert not is_stem(nn.Conv2d(**{**plain, **other}))


@pytest.mark.parametrize(
    "other",
    [{"kernel_size": 2}, {"stride": 1}, {"padding": 0}, {"ceil_mode": True}, {"return_indices": True}],
)
def test_another_pooling_is_left(other):
    plain = {"kernel_size": 3, "stride": 2, "padding": 1}
    assert is_pooling(nn.MaxPool2d(**plain))
    assert is_pooling(nn.MaxPool2d((3, 3), (2, 2), (1, 1)))
    assert not is_pooling(nn.MaxPool2d(**{**plain, **other}))


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


@pytest.mark.skipif(not TRITON, reason="triton is not installed")
def test_the_kernels_pool_as_torch_does(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # on the CPU; read when triton is imported
    ran = subprocess.run(
        [sys.executable, "-c", KERNELS], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.stdout.split() == ["alike"] * 3, ran.stderr


BUILD = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

SHARED_BYTES = 232_448  # that a program may have on an H100 or H200

def build(kernel, capability, pointers, **constants):
    whole = len(kernel.arg_names) - len(pointers) - len(constants)
    kinds = [f"*{kind}" for kind in pointers] + ["i32"] * whole + ["constexpr"] * len(constants)
    signature = dict(zip(kernel.arg_names, kinds, strict=True))
    built = compile(
        ASTSource(fn=kernel, signature=signature, constexprs=constants),
        target=GPUTarget("cuda", capability, 32),
    )
    fits = built.asm["cubin"] and built.metadata.shared <= SHARED_BYTES
    print("built" if fits else f"{kernel.__name__}: {built.metadata.shared} bytes")
"""
OF_LAYERS = """
from pytest_accel.workloads.kernels import pooling

for capability, kind in ((80, "fp32"), (90, "bf16"), (100, "fp16")):
    sizes = {"CHANNELS": 64, "PLACES": pooling.PLACES}
    build(pooling._forward, capability, [kind, kind, "u8"], **sizes)
    build(pooling._backward, capability, [kind, "u8", kind], **sizes)
"""


@pytest.mark.skipif(not TRITON, reason="triton is not installed")
def test_kernels_compile_for_gpus_that_are_not_here(tmp_path, monkeypatch):
    if tuple(int(part) for part in version("triton").split(".")[:2]) < (3, 4):
        pytest.skip("an older triton is asked in another way")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    ran = subprocess.run(
        [sys.executable, "-c", f"{BUILD}\n{OF_LAYERS}"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.stdout.splitlines() == ["built"] * 6, ran.stdout + ran.stderr
