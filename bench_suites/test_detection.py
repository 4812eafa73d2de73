"""NRP, Table II: training Faster R-CNN ResNet-50 and DINO Swin-L on COCO. docs/suites/detection.md"""

from __future__ import annotations

import pytest

from pytest_accel import accelerators, cpu, on

# Faster R-CNN's schedule begins slowly and on trained weights; with random ones, the clip stands for both.
FASTER_RCNN = {"optimizer": "sgd", "lr": 0.02, "weight_decay": 1e-4, "clip": 1.0}
DINO = {
    "optimizer": "adamw",
    "lr": 1e-4,
    "weight_decay": 1e-4,
    "lr_scale": {"neck.backbone.": 0.1},
    "clip": 0.1,
}
RECOMPUTING = {"model_options": {"checkpoint": True}}  # the backbone's activations, as it was published


@cpu
@pytest.mark.parametrize(
    ("model", "settings"),
    [("fasterrcnn_mobilenet_v3_large_320_fpn", FASTER_RCNN), ("zoo/dino-tiny", DINO)],
    ids=["faster_rcnn_mobilenet", "dino_tiny"],
)
def test_small_training(train, model, settings):
    train(model, data="coco", image_size=64, batch_size=2, precision="fp32", **settings)


@on(accelerators(memory_gb=16, dtype="half", devices=(1, 4)))
@pytest.mark.accel(reference="nrp/train/faster_rcnn_r50_fpn/coco")
def test_faster_rcnn(train):
    train("fasterrcnn_resnet50_fpn", data="coco", batch_size=2, precision="half", **FASTER_RCNN)


@on(accelerators(memory_gb=40, dtype="half", devices=(1, 4)))
@pytest.mark.accel(reference="nrp/train/dino_swin_l/coco")
@pytest.mark.parametrize("scales", ["4scale", "5scale"])
def test_dino(train, scales):
    train(f"zoo/dino-swin-l-{scales}", data="coco", batch_size=2, precision="half", **DINO, **RECOMPUTING)
