"""CARAML: training a GPT on one device and on a node, over global batches, in tokens a second. docs/suites/gpt.md"""

from __future__ import annotations

import pytest

from pytest_accel import accelerators, cpu, cpux2, on

ONE = accelerators(memory_gb=40, dtype="half")
SMALL = accelerators(memory_gb=16, dtype="half")
ONE_OR_FOUR = accelerators(memory_gb=40, dtype="half", devices=(1, 4))
BATCHES = [2**power for power in range(4, 13)]  # 16 to 4096 sequences, of all devices together
# Of one device by its memory in GB: where sixteen do not fit, CARAML's micro-batch.
BATCH = {"117m": 16, "800m": {64: 16, 40: 4}}
AT_ONCE = [8, 24, 32, 40]  # and 16 in test_gpt_training; what a device has no room for is DOES-NOT-FIT


@cpu
def test_small_gpt_training(train):
    train("zoo/gpt-tiny", batch_size=4, precision="fp32")


@cpu
def test_small_gpt_batch(train):
    train("zoo/gpt-tiny", global_batch_size=4, micro_batch_size=2, precision="fp32")


@cpux2
def test_small_gpt_large(train):
    train("zoo/gpt-tiny", batch_size=2, precision="fp32", sharding="fsdp", model_options={"checkpoint": True})


@on(ONE)
@pytest.mark.accel(reference="caraml/gpt/{size}")
@pytest.mark.parametrize("size", [pytest.param("117m", marks=on(SMALL)), "800m"])
def test_gpt_training(train, size):
    train(f"zoo/gpt-{size}", batch_size=BATCH[size], precision="half", may_not_fit=size == "800m")


@on(ONE)
@pytest.mark.accel(reference="caraml/gpt/800m")
def test_gpt_texts(train):
    """On texts of OSCAR in the tokens of GPT-2, where --accel-data has them."""
    train("zoo/gpt-800m", data="oscar", batch_size=BATCH["800m"], precision="half", may_not_fit=True)


@pytest.mark.sweep
@on(ONE_OR_FOUR, "mi250x8")
@pytest.mark.accel(
    timeout="60min", reference="caraml/gpt/{size}/{batch}"
)  # a step of 4096 takes a minute and more
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("size", ["117m", "800m"])
def test_gpt_batch(train, size, batch):
    """CARAML's sweep: the devices share a batch, and each adds up gradients of micro-batches of four."""
    train(f"zoo/gpt-{size}", global_batch_size=batch, micro_batch_size=4, precision="half", may_not_fit=True)


@pytest.mark.sweep
@on(ONE)
@pytest.mark.accel(reference="caraml/gpt/800m")
@pytest.mark.parametrize("batch", AT_ONCE)
def test_gpt_at_once(train, batch):
    """What a larger batch wins on one device: weights are cast once, and updated once, for more tokens."""
    train("zoo/gpt-800m", batch_size=batch, precision="half", may_not_fit=True)


@on(ONE_OR_FOUR)
@pytest.mark.accel(process_group=True)
@pytest.mark.parametrize("size", ["13b", "175b"])
def test_gpt_large(train, size):
    """In shards, over all devices there are; where those are too few it says how many it takes."""
    train(
        f"zoo/gpt-{size}",
        batch_size=4,
        precision="half",
        sharding="fsdp",
        model_options={"checkpoint": True},
        may_not_fit=True,
    )
