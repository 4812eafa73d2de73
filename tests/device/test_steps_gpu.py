"""Steps on a real GPU: every precision and compile mode, graph replay, memory; nothing waits for the device."""

import gc

import pytest
import torch

from pytest_accel.measure.arguments import OutOfMemory
from pytest_accel.workloads.precision import PRECISIONS
from pytest_accel.workloads.step import InferStep, TrainStep
from tests.support.steps import losses

SIZES = {"resnet18": {"image_size": 64}, "zoo/gpt-tiny": {}}
# Compiling takes long: every precision eagerly, and each mode once.
TRAINING = [
    *((model, precision, None) for model in SIZES for precision in PRECISIONS),
    ("resnet18", "fp16", "default"),
    ("resnet18", "bf16", "reduce-overhead"),
]
INFERENCE = [
    *((model, precision, None) for model in SIZES for precision in PRECISIONS),
    ("resnet18", "bf16", "default"),
]


@pytest.mark.parametrize(("model", "precision", "mode"), TRAINING)
def test_training_works_without_waiting(gpu, no_sync, model, precision, mode):
    with TrainStep.build(
        model, batch_size=8, device=gpu, precision=precision, compile=mode, **SIZES[model]
    ) as step:
        losses(step, 8)
        no_sync(step)
        step.check()
        expected = "channels_last" if model == "resnet18" else "contiguous"
        assert step.configuration["memory_format"] == expected


@pytest.mark.parametrize(("model", "precision", "mode"), INFERENCE)
def test_inference_works_without_waiting(gpu, no_sync, model, precision, mode):
    with InferStep.build(
        model, batch_size=8, device=gpu, precision=precision, compile=mode, **SIZES[model]
    ) as step:
        for _ in range(6):
            step()
        no_sync(step)
        step.check()


def test_out_of_memory_names_the_batch_and_frees_the_device(gpu):
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    with pytest.raises(OutOfMemory, match="NOT made smaller"):
        TrainStep.build("resnet18", batch_size=10**6, device=gpu)
    gc.collect()
    assert torch.cuda.memory_allocated() <= before + 2**20


@pytest.mark.parametrize("replay", [False, True])
def test_closing_a_step_frees_its_memory(gpu, replay):
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    with TrainStep.build("resnet18", batch_size=64, device=gpu, compile=None, replay=replay) as step:
        losses(step, 6)
        assert torch.cuda.memory_allocated() > before
    assert torch.cuda.memory_allocated() <= before + 64 * 2**20  # cuBLAS keeps its workspace


REPLAYED = {
    "sgd": ("resnet18", {"image_size": 64}),
    "adamw, clipped": ("zoo/gpt-tiny", {"clip": 1.0}),
    "micro-batches": ("zoo/gpt-tiny", {"micro_batch_size": 2}),
    "a loader": ("zoo/wide_resnet-tiny", {"data": "cifar100", "workers": 1}),
}


@pytest.mark.parametrize("case", REPLAYED)
def test_replayed_step_trains_as_a_launched_one(gpu, no_sync, case):
    model, options = REPLAYED[case]
    found = {}
    for replay in (True, False):
        asked = {"device": gpu, "batch_size": 8, "precision": "bf16", "compile": None, "replay": replay}
        with TrainStep.build(model, **asked | options) as step:
            found[replay] = losses(step, 12)
            if case != "a loader":  # it waits for its batches
                no_sync(step)
            assert step.configuration.get("replay", False) is replay
    assert found[True] == pytest.approx(found[False], rel=0.02)
    assert len({*found[True]}) == 12


def test_replayed_inference_answers_every_batch(gpu):
    answers = {}
    for replay in (True, False):
        asked = {"device": gpu, "precision": "bf16", "compile": "default", "replay": replay}
        with InferStep.build("resnet18", batch_size=8, image_size=64, **asked) as step:
            taken = []
            for _ in range(8):
                step()
                taken.append(step.output.float().clone())
            answers[replay] = torch.stack(taken)
    torch.testing.assert_close(answers[True], answers[False], rtol=0.05, atol=0.05)
    assert not torch.equal(answers[True][-1], answers[True][-2])  # batches differ


def test_short_step_is_replayed_by_default_and_fp16_is_not(gpu):
    short = {"data": "cifar100", "batch_size": 8, "device": gpu}
    with TrainStep.build("zoo/wide_resnet-tiny", precision="bf16", **short) as step:
        assert (step.configuration["compile"], step.configuration["replay"]) == ("default", True)
        assert len({*losses(step, 8)}) == 8
    with TrainStep.build("zoo/wide_resnet-tiny", precision="fp16", **short) as step:  # with a scaler
        assert step.configuration["compile"] == "reduce-overhead"
        assert "replay" not in step.configuration


def test_replayed_step_draws_new_dropout(gpu):
    """The same batches come again, the weights hardly move, and the losses differ."""
    asked = {"sequence": 64, "batch_size": 8, "device": gpu, "precision": "bf16", "lr": 1e-9}
    with TrainStep.build("zoo/bert-tiny", **asked, compile="default", replay=True) as step:
        found = losses(step, 6 + 8 * step.configuration["distinct_batches"])[6:]
    again = found[:: step.configuration["distinct_batches"]]
    assert len({*again}) == len(again) == 8
