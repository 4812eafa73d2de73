"""Two figures that tell a healthy node from a sick one: arithmetic, and memory."""

import torch
from pytest_accel import on

NODE = "cpu a40"  # cpu stands in where there is no such node: a laptop, the CI of this file


@on(NODE)
def test_matrix_product(accel):
    size = 512 if accel.device.type == "cpu" else 8192
    left, right = (torch.randn(size, size, device=accel.device) for _ in range(2))
    flops = 2 * size**3
    accel.measure(
        lambda: left @ right,
        work=flops / 1e9,
        unit="GFLOP",
        flops=flops,
        precision="fp32",
        configuration={"size": size},
    )


@on(NODE)
def test_copy(accel):
    size = 2**22 if accel.device.type == "cpu" else 2**30
    source = torch.zeros(size, dtype=torch.uint8, device=accel.device)
    target = torch.empty_like(source)
    accel.measure(lambda: target.copy_(source), work=2 * size / 1e9, unit="GB", configuration={"size": size})
