"""Tuned models on a real GPU: the same results and gradients as the library's own."""

import pytest
import torch
from torch.nn import functional as F
from torchvision import models

from pytest_accel.workloads.kernels import ReluMaxPool
from pytest_accel.workloads.kernels.resnet import conv_relu, fuse_conv_bn_relu
from pytest_accel.workloads.step import InferStep, TrainStep
from tests.support.resnets import with_statistics
from tests.support.steps import losses


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_relu_max_pool_and_its_gradient_equal_torchs(gpu, dtype):
    random = torch.Generator(gpu).manual_seed(0)
    images = torch.randn(3, 64, 30, 16, device=gpu, dtype=dtype, generator=random)
    images = images.contiguous(memory_format=torch.channels_last).requires_grad_()
    expected = F.max_pool2d(F.relu(images), 3, 2, 1) * 2
    passed_back = torch.randn(expected.shape, device=gpu, dtype=dtype, generator=random)
    (gradient,) = torch.autograd.grad(expected, images, passed_back)
    torch.compiler.reset()
    pooled = ReluMaxPool()
    found = torch.compile(lambda images: pooled(images) * 2)(images)
    assert torch.equal(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, images, passed_back)[0], gradient)


def test_tuned_resnet_learns_the_same(gpu):
    def trained(**options):
        asked = {"data": "imagenet", "image_size": 64, "batch_size": 32, "device": gpu, "lr": 0.01}
        with TrainStep.build("resnet18", precision="bf16", **asked, **options) as step:
            return torch.tensor(losses(step, 6))

    torch.testing.assert_close(trained(tuned=True), trained(), atol=0.05, rtol=0.01)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_tuned_resnet_gives_the_answers_of_the_stock_one(gpu, precision):
    def answer(**options):
        asked = {"data": "imagenet", "image_size": 64, "batch_size": 16, "device": gpu}
        with InferStep.build("resnet18", precision=precision, **asked, **options) as step:
            step()
            step.check()
            return step.output.float().clone()

    stock = answer()
    torch.testing.assert_close(answer(tuned=True), stock, atol=0.02 * float(stock.abs().max()), rtol=0)


@pytest.mark.parametrize(
    ("model", "dtype", "batch_size"),
    [(models.resnet50, torch.bfloat16, 32), (models.resnet18, torch.float16, 1)],
)
def test_fused_resnet_is_as_exact_as_the_stock_one(gpu, model, dtype, batch_size):
    stock = with_statistics(model(num_classes=4)).to(gpu)
    images = torch.randn(batch_size, 3, 96, 96, device=gpu, dtype=dtype)
    images = images.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        expected = stock(images.double())
        half = stock.to(dtype).to(memory_format=torch.channels_last)
        unfused = half(images)
        fuse_conv_bn_relu(half)
        torch.compiler.reset()
        fused = torch.compile(half, fullgraph=True)(images)
    largest = expected.abs().max()
    errors = [float((each - expected).abs().max() / largest) for each in (fused, unfused)]
    assert errors[0] < max(0.02, 2 * errors[1])


def convolution(gpu, images, out_channels, pixels):
    """Images of 64 x 56 x 56 in bf16, with weight and bias of a convolution."""
    tensors = (
        torch.randn(images, 64, 56, 56, device=gpu, dtype=torch.bfloat16),
        torch.randn(out_channels, 64, pixels, pixels, device=gpu, dtype=torch.bfloat16),
    )
    last = (each.contiguous(memory_format=torch.channels_last) for each in tensors)
    return *last, torch.randn(out_channels, device=gpu, dtype=torch.bfloat16)


def test_conv_relu_does_not_read_its_uninitialized_output(gpu):
    """torch passes the output to cuDNN as a tensor to be added, times zero."""
    arguments = convolution(gpu, 64, 64, 3)
    output = conv_relu(*arguments, None, stride=[1, 1], padding=[1, 1]).fill_(torch.nan)
    address = output.data_ptr()
    del output
    found = conv_relu(*arguments, None, stride=[1, 1], padding=[1, 1])
    assert found.data_ptr() == address
    assert torch.isfinite(found).all()


def test_conv_relu_takes_more_elements_than_an_int32(gpu):
    images, weight, bias = convolution(gpu, 2800, 256, 1)
    found = conv_relu(images, weight, bias, None, stride=[1, 1], padding=[0, 0])
    assert found.numel() > 2**31
    expected = F.relu(F.conv2d(images[-2:], weight, bias))
    torch.testing.assert_close(found[-2:], expected, atol=0.1, rtol=0.02)


def test_tuned_inference_step_launches_no_batch_norm(gpu):
    def kernels(**options):
        asked = {"data": "imagenet", "batch_size": 64, "precision": "bf16", "device": gpu}
        with InferStep.build("resnet18", **asked, **options) as step:
            for _ in range(5):
                step()
            step.check()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                step()
                torch.accelerator.synchronize()
        return [event.name for event in profile.events()]

    names = kernels(tuned=True)
    assert not any("batch_norm" in name for name in names)
    assert "_forward" not in names  # of the max-pool, whose indices only training needs
    assert sum("batch_norm" in name for name in kernels()) > 15
