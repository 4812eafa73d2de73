"""The loader-bound stream's benchmark: three workers decode JPEGs for a device that trains several times as fast.

Batches are small, so that a process takes seconds: as many as workers come together, and a run needs some twenty such bursts.
"""

from __future__ import annotations

from collections.abc import Callable

from pytest_accel import on


@on("a100 gh200 h100 h200")
def test_starved(train: Callable[..., object], accel_data: Callable[[str], object]) -> None:
    accel_data("imagenet")
    train(
        "resnet50",
        data="imagenet",
        source="loader",
        decode="host",
        workers=3,
        batch_size=64,
        precision="bf16",
        compile=None,
    )
