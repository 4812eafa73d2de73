"""PEARC'22: convolutional networks on ImageNet, over batch sizes, precisions and devices. docs/suites/cnn.md"""

from __future__ import annotations

from itertools import product

import pytest

from pytest_accel import accelerators, cpu, gc200, on

ONE = accelerators(memory_gb=16, dtype="half")
NVJPEG = accelerators(memory_gb=16, dtype="half", vendor="nvidia")
NODE = accelerators(memory_gb=16, dtype="half", devices=(1, 2, 4, 8))
TWO_NODES = accelerators(memory_gb=16, dtype="half", devices=(8, 16), nodes=2)
# The batch of one device by its memory in GB; an IPU has .9.
MODELS = {
    "resnet50": {16: 256, 0.9: 16},  # v1.5: the stride is in the 3 x 3 convolution, as torchvision has it
    "efficientnet_b0": {24: 256, 16: 128},
    "efficientnet_b4": {80: 128, 40: 64, 24: 32, 16: 16},  # 380 pixels
    "mobilenet_v3_small": {16: 256, 0.9: 16},
    "mobilenet_v3_large": {16: 256, 0.9: 16},
}
# The study splits its EfficientNets over two and four IPUs. It gives one figure of two A100 and one of four V100.
PLATFORMS = {model: on("gc200") for model, sizes in MODELS.items() if 0.9 in sizes}
PLATFORMS["efficientnet_b0"] = on("a100x2 v100x4")
BATCHES = [2**power for power in range(1, 13)]  # 2 to 4096
ON_IPU = {("resnet50", "fp16", batch_size) for batch_size in BATCHES[:4]}  # the study's largest is 20
DTYPES = {dtype: on(accelerators(memory_gb=16, dtype=dtype)) for dtype in ("tf32", "bf16", "fp16", "fp32")}
SWEEP = [
    pytest.param(*row, marks=(*DTYPES[row[1]], gc200) if row in ON_IPU else DTYPES[row[1]])
    for row in product(MODELS, DTYPES, BATCHES)
]
# Weak: every device keeps its batch. Strong: the devices share one.
SCALING = {
    "weak": {"batch_size": 256},
    "strong": {"global_batch_size": {64: 1024, 40: 512, 16: 256}},
}


@cpu
def test_small_cnn(train):
    train("mobilenet_v3_small", data="imagenet", image_size=64, batch_size=8)


@on(ONE)
@pytest.mark.accel(reference="pearc22/cnn/{model}")
@pytest.mark.parametrize("model", [pytest.param(model, marks=PLATFORMS.get(model, ())) for model in MODELS])
def test_cnn(train, model):
    train(model, data="imagenet", image_size=_pixels(model), batch_size=MODELS[model], precision="half")


@on(accelerators(memory_gb=40, dtype="bf16", vendor="nvidia"))
@pytest.mark.accel(reference="pearc22/cnn/{model}")
@pytest.mark.parametrize("model", ["resnet50"])
def test_cnn_tuned(train, model):
    """As test_cnn, with custom kernels for the stem and its pooling."""
    train(model, data="imagenet", image_size=224, batch_size=MODELS[model], precision="bf16", tuned=True)


@pytest.mark.sweep
@pytest.mark.accel(budget="2s", reference="pearc22/batch/{model}/{batch_size}")
@pytest.mark.parametrize(("model", "precision", "batch_size"), SWEEP)
def test_batch(train, model, precision, batch_size):
    """`-k "resnet50 and bf16 and 256"` selects one; a batch that does not fit is said, and never made smaller."""
    train(
        model,
        data="imagenet",
        image_size=_pixels(model),
        source="synthetic",
        batch_size=batch_size,
        precision=precision,
        may_not_fit=True,
    )


@on(NODE, TWO_NODES)
@pytest.mark.accel(reference="pearc22/cnn/resnet50")
@pytest.mark.parametrize("scaling", SCALING)
def test_scaling(train, scaling):
    train("resnet50", data="imagenet", precision="half", **SCALING[scaling])


@on(ONE, "gc200")
@pytest.mark.accel(reference="pearc22/cnn/resnet50")
def test_first_epoch(converge):
    """The first epoch, which compiles, against the second."""
    converge(
        "resnet50",
        data="imagenet",
        source="synthetic",
        batch_size={16: 256, 0.9: 16},
        precision="half",
        epochs=2,
        epoch_size=25_600,
    )


@on(NVJPEG)
@pytest.mark.parametrize("decode", ["device", "host"])
def test_loading(train, accel_data, decode):
    """ResNet50 fed with JPEGs (--accel-data): decoded on the device they must leave it nine tenths of its rate."""
    accel_data("imagenet")
    least = 0.9 if decode == "device" else None
    train(
        "resnet50",
        data="imagenet",
        source="loader",
        decode=decode,
        batch_size={24: 256, 16: 128},
        precision="half",
        min_loader_efficiency=least,
    )


def _pixels(model: str) -> int:
    return 380 if model == "efficientnet_b4" else 224
