"""CARAML: ResNet50 over batch sizes, its rate and the energy of an epoch of ImageNet. docs/suites/resnet50_energy.md"""

from __future__ import annotations

import pytest

from pytest_accel import accelerators, cpu, on

IMAGES = 1_281_167  # of an epoch
BATCHES = [2**power for power in range(4, 13)]  # 16 to 4096


@cpu
def test_small_energy(train):
    """Its rate alone: nothing counts the energy of a CPU yet."""
    train("resnet18", data="imagenet", image_size=64, batch_size=16, epoch_size=IMAGES)


@on(accelerators(memory_gb=16, dtype="half"), "gc200")
@pytest.mark.accel(
    budget="8s", reference="caraml/resnet50/{batch_size}"
)  # the counter ticks ten times a second
@pytest.mark.parametrize(
    "batch_size", [pytest.param(each, marks=() if each == 256 else pytest.mark.sweep) for each in BATCHES]
)
def test_energy(train, batch_size):
    train(
        "resnet50",
        data="imagenet",
        batch_size=batch_size,
        micro_batch_size={16: None, 0.9: 16},  # an IPU adds up gradients of as many images as it has room for
        precision="half",
        epoch_size=IMAGES,
        may_not_fit=True,
    )
