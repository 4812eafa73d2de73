"""What both machines ran: a matrix product in two sizes, and a few steps of training."""

import pytest
import torch
from pytest_accel import on

MACHINES = "cpu a100 gh200 h100 h200"


@on(MACHINES)
@pytest.mark.parametrize("size", [256, 1024])
def test_matrix_product(accel, size):
    left, right = (torch.randn(size, size, device=accel.device) for _ in range(2))
    flops = 2 * size**3
    accel.measure(
        lambda: left @ right, work=flops / 1e9, unit="GFLOP", flops=flops, configuration={"size": size}
    )


@on(MACHINES)
def test_training(train):
    train("resnet18", data="cifar100", image_size=64, batch_size=16)
