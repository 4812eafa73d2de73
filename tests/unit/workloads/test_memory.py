"""Models that cannot fit are refused before they are built."""

import pytest
import torch

from pytest_accel.measure.arguments import OutOfMemory
from pytest_accel.measure.rounds import Alone
from pytest_accel.workloads import build, demand
from pytest_accel.workloads.demand import check_fits
from pytest_accel.workloads.models.build import build_model
from pytest_accel.workloads.step import InferStep, TrainStep
from tests.support.plans import step_config

H200 = 140 * 2**30


@pytest.fixture
def memory(monkeypatch):
    """Every device has as much as this; nothing is built."""

    def give(value):
        monkeypatch.setattr(demand, "device_memory_bytes", lambda device: value)

        def built(*_, **__):
            raise AssertionError("it was built")

        monkeypatch.setattr(build, "build_model", built)

    return give


def parameters(name):
    return build_model(f"zoo/{name}", device="meta")[1].parameters


def test_gpt_175b_on_one_device_reports_how_many_it_takes(memory):
    memory(H200)
    with pytest.raises(OutOfMemory) as caught:
        TrainStep.build("zoo/gpt-175b", batch_size=1, precision="bf16")
    text = str(caught.value)
    assert (
        "zoo/gpt-175b: it cannot fit, and nothing was built. 174.6 billion parameters take 2601.3 GiB" in text
    )
    assert "1 x cpu has 140.0 GiB" in text
    assert "sharding='fsdp' takes at least 19 such devices" in text


def test_shards_are_compared_with_the_memory_of_all_devices(memory):
    config = step_config(model="zoo/gpt-tiny", optimizer="adamw", sharding="fsdp", world=4)
    weights = 4 * parameters("gpt-tiny")
    memory(weights)  # of each device: a quarter of weights, gradients and two states
    assert not check_fits(config, {})  # but not of all weights at once
    memory(weights - 1)
    with pytest.raises(OutOfMemory, match=r"4 x cpu has.*at least 5 such devices"):
        check_fits(config, {})
    memory(weights * 5 // 4 + 1)
    assert check_fits(config, {})
    assert check_fits(step_config(sharding="fsdp"), {})  # not a GPT


@pytest.mark.parametrize(
    ("build_step", "options", "tensors"),
    [
        (TrainStep.build, {"optimizer": "sgd"}, 3),
        (TrainStep.build, {"optimizer": "adamw"}, 4),
        (TrainStep.build, {"optimizer": torch.optim.Adagrad}, 2),  # its states are not known
        (InferStep.build, {"precision": "bf16"}, 1),
    ],
)
def test_weights_gradients_and_optimizer_states_are_counted(memory, build_step, options, tensors):
    needed = parameters("gpt-tiny") * 4 * tensors
    memory(needed - 1)
    with pytest.raises(OutOfMemory, match=r"for weights.*Choose a platform with more memory"):
        build_step("zoo/gpt-tiny", batch_size=1, **options)
    memory(needed)
    with pytest.raises(AssertionError, match="it was built"):
        build_step("zoo/gpt-tiny", batch_size=1, **options)


def test_sharding_needs_a_process_group():
    with pytest.raises(ValueError, match=r"has none.*a100x4.*accel\(process_group=True\)"):
        TrainStep.build("zoo/gpt-tiny", batch_size=1, sharding="fsdp", ranks=Alone())
    with pytest.raises(ValueError, match="Did you mean 'fsdp'"):
        TrainStep.build("zoo/gpt-tiny", batch_size=1, sharding="fsdp2")
