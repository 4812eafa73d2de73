"""Image classification: training steps, in images per second."""

from __future__ import annotations

import pytest

from pytest_accel import a100, b200, cpu, gb200, gh200, h100, h200, l40s


@cpu
@pytest.mark.parametrize(
    ("model", "image_size", "batch_size"),
    [("resnet18", 64, 8), ("timm/vit_tiny_patch16_224", 64, 16)],
    ids=["resnet18", "vit_tiny"],
)
def test_small_training(train, model, image_size, batch_size):
    train(model, data="cifar100", image_size=image_size, batch_size=batch_size, precision="fp32")


@a100
@b200
@gb200
@gh200
@h100
@h200
@l40s
@pytest.mark.parametrize("model", ["resnet50", "swin_t", "vit_l_32"])
def test_training(train, model):
    train(model, data="imagenet", batch_size=256, precision="bf16")
