"""NRP, Table II: training SegFormer MiT-B4 and DeepLabV3+ ResNet-101 on Cityscapes. docs/suites/segmentation.md"""

from __future__ import annotations

import pytest

from pytest_accel import accelerators, cpu, on

# How each is trained; the heads of a SegFormer learn ten times as fast as what is below them.
SEGFORMER = {
    "optimizer": "adamw",
    "lr": 6e-5,
    "weight_decay": 0.01,
    "lr_scale": {"decoder": 10, "segmentation_head": 10},
}
DEEPLAB = {"optimizer": "sgd", "lr": 0.01, "weight_decay": 5e-4}
MODELS = {
    "segformer_b4": ("zoo/segformer-b4", SEGFORMER),  # crops of 1024 x 1024
    "deeplabv3plus_r101": ("zoo/deeplabv3plus-r101", DEEPLAB),  # 512 x 1024
}


@cpu
@pytest.mark.parametrize(
    ("model", "settings"),
    [("zoo/segformer-b0", SEGFORMER), ("zoo/deeplabv3plus-r18", DEEPLAB)],
    ids=["segformer_b0", "deeplabv3plus_r18"],
)
def test_small_training(train, model, settings):
    train(model, data="cityscapes", image_size=64, batch_size=2, precision="fp32", **settings)


@on(accelerators(memory_gb=16, dtype="half", devices=(1, 4)))
@pytest.mark.accel(reference="nrp/train/{model}/cityscapes")
# The batch that the study's framework gives a device, and one for a large device.
@pytest.mark.parametrize(
    ("model", "batch_size"),
    [("segformer_b4", 1), ("segformer_b4", 8), ("deeplabv3plus_r101", 2), ("deeplabv3plus_r101", 8)],
)
def test_training(train, model, batch_size):
    name, settings = MODELS[model]
    # Eight are for a device with the memory: where they do not fit, that is an answer, and no failure.
    train(
        name,
        data="cityscapes",
        batch_size=batch_size,
        precision="half",
        may_not_fit=batch_size == 8,
        **settings,
    )
