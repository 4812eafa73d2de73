"""Layers that stand in for others, compiled for a real GPU: what they compute, and what their gradients are."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it
from torchvision import models

from pytest_accel.markers import platform_mark
from pytest_accel.workloads import assembly, rectifying
from pytest_accel.workloads.layers import RectifiedMaxPool, RectifiedWhenPooled
from pytest_accel.workloads.rectifying import rectified_convolution, rectify
from pytest_accel.workloads.steps import InferStep, TrainStep
from tests.support.resnets import settled

pytestmark = [
    platform_mark(name) for name in ("a100", "b200", "gb200", "gh200", "h100", "h200", "l4", "l40s")
]


@pytest.fixture
def gpu(accel_device):
    return accel_device


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_pooling_passes_back_what_torch_does(gpu, dtype):
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.relu, self.pool = RectifiedWhenPooled(), RectifiedMaxPool()

        def forward(self, images):
            return self.pool(self.relu(images)) * 2

    random = torch.Generator(gpu).manual_seed(0)
    images = torch.randn(3, 64, 30, 16, device=gpu, dtype=dtype, generator=random)
    images = images.contiguous(memory_format=torch.channels_last).requires_grad_()
    expected = F.max_pool2d(F.relu(images), 3, 2, 1) * 2
    passed_back = torch.randn(expected.shape, device=gpu, dtype=dtype, generator=random)
    (gradient,) = torch.autograd.grad(expected, images, passed_back)
    torch.compiler.reset()
    found = torch.compile(Pooled())(images)
    assert torch.equal(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, images, passed_back)[0], gradient)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_resnet_learns_the_same_with_them(gpu, monkeypatch, precision):
    def losses():
        step = TrainStep.build(
            "resnet18",
            data="imagenet",
            image_size=64,
            batch_size=32,
            precision=precision,
            device=gpu,
            lr=0.01,
        )
        with step:
            found = []
            for _ in range(6):
                step()
                found.append(step.loss_value())
        return torch.tensor(found)

    standing_in = losses()
    monkeypatch.setattr(assembly, "stand_in_for_slow_layers", lambda *_: None)
    torch.testing.assert_close(standing_in, losses(), atol=0.05, rtol=0.01)


@pytest.mark.parametrize("batch_size", [1, 32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model", [models.resnet18, models.resnet50])
def test_a_model_that_rectifies_while_it_convolves_answers_as_in_double(gpu, model, dtype, batch_size):
    whole = settled(model(num_classes=4)).to(gpu)
    images = torch.randn(batch_size, 3, 96, 96, device=gpu, dtype=dtype)
    images = images.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        expected = whole(images.double())
        half = whole.to(dtype).to(memory_format=torch.channels_last)
        launched = half(images)
        rectify(half)
        torch.compiler.reset()
        found = torch.compile(half, fullgraph=True)(images)
    largest = expected.abs().max()
    apart = [float((each - expected).abs().max() / largest) for each in (found, launched)]
    assert apart[0] < max(0.02, 2 * apart[1])


def to_be_convolved(gpu, images, out_channels, pixels):
    """So many images of 64 x 56 x 56 in bf16, with weight and shift of a convolution over so many pixels."""
    tensors = (
        torch.randn(images, 64, 56, 56, device=gpu, dtype=torch.bfloat16),
        torch.randn(out_channels, 64, pixels, pixels, device=gpu, dtype=torch.bfloat16),
    )
    last = (each.contiguous(memory_format=torch.channels_last) for each in tensors)
    return *last, torch.randn(out_channels, device=gpu, dtype=torch.bfloat16)


def test_a_rectified_convolution_reads_nothing_of_what_lay_where_it_writes(gpu):
    """Torch hands cuDNN the place of the result as a tensor to be added, times zero."""
    asked = to_be_convolved(gpu, 64, 64, 3)
    place = rectified_convolution(*asked, None, stride=[1, 1], padding=[1, 1]).fill_(torch.nan)
    was = place.data_ptr()
    del place
    found = rectified_convolution(*asked, None, stride=[1, 1], padding=[1, 1])
    assert found.data_ptr() == was
    assert torch.isfinite(found).all()


def test_more_pixels_than_an_int_can_count_are_rectified(gpu):
    images, weight, shift = to_be_convolved(gpu, 2800, 256, 1)
    found = rectified_convolution(images, weight, shift, None, stride=[1, 1], padding=[0, 0])
    assert found.numel() > 2**31
    expected = F.relu(F.conv2d(images[-2:], weight, shift))
    torch.testing.assert_close(found[-2:], expected, atol=0.1, rtol=0.02)


@pytest.mark.parametrize("batch_size", [1, 64], ids=["replayed", "launched"])
def test_a_step_that_infers_has_them(gpu, monkeypatch, batch_size):
    def kernels():
        asked = {"data": "imagenet", "batch_size": batch_size, "precision": "bf16", "device": gpu}
        with InferStep.build("resnet50", **asked) as step:
            for _ in range(5):
                step()
            step.check()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                step()
                torch.accelerator.synchronize()
        return [event.name for event in profile.events()]

    names = kernels()
    assert not any("batch_norm" in name for name in names)
    assert "_forward" not in names  # of pooling, which keeps for a gradient what nobody asks for
    monkeypatch.setattr(rectifying, "rectify", lambda _: None)
    assert sum("batch_norm" in name for name in kernels()) > 40
