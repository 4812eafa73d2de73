"""Image classification: inference steps, in images per second."""

from __future__ import annotations

import pytest

from pytest_accel import a100, b200, cpu, gb200, gh200, h100, h200, l40s


@cpu
@pytest.mark.parametrize(
    ("model", "batch_size"), [("resnet50", 1), ("timm/vit_tiny_patch16_224", 4)], ids=["resnet50", "vit_tiny"]
)
def test_small_inference(infer, model, batch_size):
    infer(model, data="imagenet", batch_size=batch_size, precision="fp32")


@a100
@b200
@gb200
@gh200
@h100
@h200
@l40s
@pytest.mark.parametrize("model", ["resnet50", "swin_t"])
def test_inference(infer, model):
    infer(model, data="imagenet", batch_size=1024, precision="bf16")
