"""NRP, Figure 2: inference over ImageNet's 50,000 validation images, and the latency of one. docs/suites/inference.md"""

from __future__ import annotations

import pytest

from pytest_accel import accelerators, cpu, on

VALIDATION_IMAGES = 50_000
NVIDIA = accelerators(memory_gb=16, dtype="bf16", vendor="nvidia")


@cpu
@pytest.mark.parametrize(
    ("model", "batch_size"), [("resnet50", 1), ("timm/vit_tiny_patch16_224", 4)], ids=["resnet50", "vit_tiny"]
)
def test_small_inference(infer, model, batch_size):
    infer(
        model, data="imagenet", batch_size=batch_size, epoch_size=VALIDATION_IMAGES, latency=batch_size == 1
    )


@on(accelerators(memory_gb=16, dtype="half"), "a100x4")
@pytest.mark.accel(reference="nrp/infer/{model}")
@pytest.mark.parametrize("model", ["resnet50", "swin_t"])
def test_inference(infer, model):
    infer(model, data="imagenet", batch_size=1024, precision="half", epoch_size=VALIDATION_IMAGES)


@on(NVIDIA)
@pytest.mark.accel(reference="nrp/infer/{model}")
@pytest.mark.parametrize("model", ["resnet50"])
def test_inference_tuned(infer, model):
    """As test_inference, with fused convolution, batch norm and ReLU."""
    infer(model, data="imagenet", batch_size=1024, precision="bf16", epoch_size=VALIDATION_IMAGES, tuned=True)


@on(accelerators(memory_gb=16, dtype="half"))
@pytest.mark.parametrize("model", ["resnet50", "swin_t"])
def test_latency(infer, model):
    infer(model, data="imagenet", source="synthetic", batch_size=1, precision="half", latency=True)


@on(NVIDIA)
@pytest.mark.parametrize("model", ["resnet50"])
def test_latency_tuned(infer, model):
    """As test_latency, with the kernels of test_inference_tuned."""
    infer(
        model, data="imagenet", source="synthetic", batch_size=1, precision="bf16", latency=True, tuned=True
    )
