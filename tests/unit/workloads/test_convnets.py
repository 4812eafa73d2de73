"""Wide ResNet and autoencoder of the zoo, and published parameter counts."""

from __future__ import annotations

import pytest
import torch

from pytest_accel.workloads.models.build import build_model
from pytest_accel.workloads.step import TrainStep
from tests.support.plans import counted_flops, plan_data


def test_wide_resnet_has_the_published_parameters():
    model, info = build_model("zoo/wide_resnet", num_classes=100, device="meta")
    assert info.parameters == 17_175_412
    assert (info.task, info.convolutional) == ("classification", True)
    plan = plan_data("cifar100", info, batch_size=1)
    assert plan.shape == (3, 32, 32)
    assert counted_flops(model, plan) / 2 == pytest.approx(2.41e9, rel=0.005)  # multiply-adds, forward


@pytest.mark.parametrize(("channels", "size", "classes"), [(3, 32, 100), (1, 28, 10), (1, 8, 10), (2, 40, 7)])
def test_wide_resnet_takes_any_small_image(channels, size, classes):
    model, info = build_model("zoo/wide_resnet-tiny", num_classes=classes, channels=channels)
    assert model(torch.randn(2, channels, size, size)).shape == (2, classes)
    assert info.channels == channels


@pytest.mark.parametrize("name", ["zoo/autoencoder", "zoo/autoencoder-tiny"])
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32), (1, 8)])
def test_autoencoder_returns_the_shape_of_its_input(name, channels, size):
    model, info = build_model(name, channels=channels, device="meta")
    images = torch.empty(2, channels, size, size, device="meta")
    assert model(images).shape == images.shape
    assert info.task == "reconstruction"


def test_autoencoder_learns_its_input():
    with TrainStep.build(
        "zoo/autoencoder-tiny", data="digits", batch_size=32, optimizer="adamw", lr=3e-3
    ) as step:
        assert step.configuration["loss"] == "mse"
        step()
        first = step.loss_value()
        for _ in range(20):
            step()
        step.check()
        assert step.loss_value() < 0.6 * first
        assert step.demand.flops > 0


def test_wrong_millions_are_refused():
    with pytest.raises(ValueError, match=r"millions: resnet18 has 11.7 million parameters, not 25.6"):
        TrainStep.build("resnet18", batch_size=2, image_size=32, millions=25.6)
    with TrainStep.build("resnet18", batch_size=2, image_size=32, millions=11.7) as step:
        assert "millions" not in step.configuration
