"""Language models: training steps of a GPT, in tokens per second."""

from __future__ import annotations

import pytest

from pytest_accel import cpu, on


@cpu
def test_small_gpt_training(train):
    train("zoo/gpt-tiny", batch_size=4, precision="fp32")


@on("a100 b200 gb200 gh200 h100 h200")
@pytest.mark.accel(reference="caraml/gpt/{size}")
@pytest.mark.parametrize(("size", "batch_size"), [("117m", 16), ("800m", 8)], ids=["117m", "800m"])
def test_gpt_training(train, size, batch_size):
    train(f"zoo/gpt-{size}", batch_size=batch_size, precision="bf16")
