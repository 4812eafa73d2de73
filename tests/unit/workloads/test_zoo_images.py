"""The zoo's models of images, and the sizes of those that studies used."""

from __future__ import annotations

import pytest
import torch

from pytest_accel.workloads import TrainStep, build_model
from pytest_accel.workloads.build import _check_parameters
from tests.support.plans import counted_flops, plan_data


def test_the_wide_resnet_has_the_parameters_of_olivias_guide():
    model, info = build_model("zoo/wide_resnet", num_classes=100, device="meta")
    assert info.parameters == 17_175_412
    assert (info.task, info.convolutional) == ("classification", True)
    plan = plan_data("cifar100", info, batch_size=1)
    assert plan.shape == (3, 32, 32)
    assert counted_flops(model, plan) / 2 == pytest.approx(2.41e9, rel=0.005)  # multiply-adds, forward


@pytest.mark.parametrize(("channels", "size", "classes"), [(3, 32, 100), (1, 28, 10), (1, 8, 10), (2, 40, 7)])
def test_the_wide_resnet_takes_any_small_image(channels, size, classes):
    model, info = build_model("zoo/wide_resnet-tiny", num_classes=classes, channels=channels)
    assert model(torch.randn(2, channels, size, size)).shape == (2, classes)
    assert info.channels == channels


@pytest.mark.parametrize("name", ["zoo/autoencoder", "zoo/autoencoder-tiny"])
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32), (1, 8)])
def test_the_autoencoder_returns_the_shape_that_it_was_given(name, channels, size):
    model, info = build_model(name, channels=channels, device="meta")
    images = torch.empty(2, channels, size, size, device="meta")
    assert model(images).shape == images.shape
    assert info.task == "reconstruction"


def test_what_the_autoencoder_keeps_is_smaller_than_the_image():
    model, _ = build_model("zoo/autoencoder", channels=3, device="meta")
    images = torch.empty(1, 3, 32, 32, device="meta")
    kept = model.bottleneck(model.encoder(images))
    assert kept.shape == (1, 16, 8, 8)
    assert kept.numel() < images.numel()


def test_the_autoencoder_learns_to_return_what_it_was_given():
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
        assert step.flops_per_step > 0


def test_the_wide_autoencoder_trains_as_its_suite_has_it():
    step = TrainStep.build(
        "zoo/autoencoder", data="mnist", batch_size=2, optimizer="adam"
    )  # SGD at .01 explodes
    losses = []
    for _ in range(8):
        step()
        losses.append(step.loss_value())
    assert losses[-1] < losses[0]
    assert max(losses) < 2 * losses[0]


def test_the_autoencoder_has_no_classes_to_be_asked_for():
    _, info = build_model("zoo/autoencoder-tiny", num_classes=10)
    assert info.task == "reconstruction"


@pytest.mark.parametrize(
    ("name", "options", "millions"),
    [
        ("resnet50", {}, 25.6),
        ("resnet152", {}, 60.2),
        ("vit_l_32", {}, 306.5),
        ("vit_h_14", {"image_size": 518}, 633.5),
        ("swin_t", {}, 28.3),
        ("swin_b", {}, 87.8),
    ],
)
def test_the_models_of_the_studies_have_their_parameters(name, options, millions):
    _, info = build_model(name, num_classes=1000, device="meta", **options)
    _check_parameters(millions, info)
    for wrong in (round(millions - 0.1, 1), round(millions + 0.1, 1)):
        with pytest.raises(ValueError, match=f"million parameters, not {wrong}: it is not the model"):
            _check_parameters(wrong, info)


def test_millions_are_compared_to_the_digits_given():
    _, info = build_model("resnet50", device="meta")  # 25,557,032
    for right in (25.6, 25.56, 25.557, 26):
        _check_parameters(right, info)
    for wrong in (25.5, 25.55, 25.61, 25):
        with pytest.raises(ValueError, match="millions: resnet50 has"):
            _check_parameters(wrong, info)


def test_a_model_that_is_not_the_studys_is_refused_when_a_step_is_built():
    with pytest.raises(ValueError, match=r"millions: resnet18 has 11.7 million parameters, not 25.6"):
        TrainStep.build("resnet18", batch_size=2, image_size=32, millions=25.6)
    with TrainStep.build("resnet18", batch_size=2, image_size=32, millions=11.7) as step:
        assert "millions" not in step.configuration
