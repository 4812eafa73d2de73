"""Layers that stand in for others, compiled for a real GPU: what they compute, and what their gradients are."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

from pytest_accel.marks import platform_mark
from pytest_accel.workloads import assembly
from pytest_accel.workloads.layers import RectifiedMaxPool, RectifiedWhenPooled
from pytest_accel.workloads.steps import TrainStep

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
