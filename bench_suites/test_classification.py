"""NRP, Table I: training image classifiers on CIFAR-100, upscaled to their input, and on Food101. docs/suites/classification.md"""

from __future__ import annotations

import pytest

from pytest_accel import accelerators, cpu, on

# What the study counts, in millions of parameters, and the batch of one device by its memory in GB.
MODELS = {
    "resnet50": (25.6, 256),
    "resnet152": (60.2, {40: 256, 24: 128, 16: 64}),
    "vit_l_32": (306.5, {24: 256, 16: 128}),
    "vit_h_14": (633.5, {64: 16, 40: 8, 24: 4, 16: 1}),  # 518 pixels
    "swin_t": (28.3, {24: 256, 16: 128}),
    "swin_b": (87.8, {24: 128, 16: 64}),
}


@cpu
@pytest.mark.parametrize(
    ("model", "image_size", "batch_size"),
    [("resnet18", 64, 8), ("timm/vit_tiny_patch16_224", 64, 16)],
    ids=["resnet18", "vit_tiny"],
)
def test_small_training(train, model, image_size, batch_size):
    train(model, data="cifar100", image_size=image_size, batch_size=batch_size, precision="fp32")


@on(accelerators(memory_gb=16, dtype="half", devices=(1, 4)))
@pytest.mark.accel(reference="nrp/train/{model}/{data}")
@pytest.mark.parametrize("data", ["cifar100", "food101"])
@pytest.mark.parametrize("model", MODELS)
def test_training(train, model, data):
    millions, batch_size = MODELS[model]
    # The study's counts are those of models with ImageNet's 1,000 classes.
    train(model, data=data, batch_size=batch_size, precision="half", num_classes=1000, millions=millions)
