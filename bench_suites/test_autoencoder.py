"""PEARC'22, Table 4: the representative image-compression model on MNIST, over batch sizes. docs/suites/autoencoder.md"""

from __future__ import annotations

import pytest

from pytest_accel import accelerators, cpu, gc200, on

IMAGES = 70_000  # to which the study scales its epochs
ADAM = "adam"  # SGD at our usual rate makes the loss of the wide model infinite within twenty steps


@cpu
def test_small_autoencoder(train):
    train("zoo/autoencoder-tiny", data="mnist", batch_size=10, optimizer=ADAM, epoch_size=IMAGES)


@on(accelerators(memory_gb=8, dtype="single"), "a100x2")
@pytest.mark.accel(reference="pearc22/autoencoder/{batch_size}")
# The study gives an IPU a batch of ten: more does not fit.
@pytest.mark.parametrize("batch_size", [pytest.param(10, marks=gc200), 128, 256, 512])
def test_autoencoder(train, batch_size):
    train(
        "zoo/autoencoder",
        data="mnist",
        batch_size=batch_size,
        precision="single",
        optimizer=ADAM,
        epoch_size=IMAGES,
    )
