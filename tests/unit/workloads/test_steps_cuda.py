"""What only a CUDA device shows: half precision with a scaler, CUDA graphs, memory; skipped elsewhere."""

from __future__ import annotations

import gc

import pytest
import torch

from pytest_accel.measure.errors import OutOfMemory
from pytest_accel.workloads import InferStep, TrainStep
from pytest_accel.workloads.precision import PRECISIONS
from tests.support.steps import losses

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none")


def run(step, steps=8):
    for _ in range(steps):
        step()
    return step


def no_sync(step):
    """Run steps in which any wait for the device is an error."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(step)
    finally:
        torch.cuda.set_sync_debug_mode("default")


SIZES = {"resnet18": {"image_size": 64}, "vit_b_16": {"image_size": 64}, "zoo/gpt-tiny": {}}

# Compiling takes long: every precision eagerly, and each mode where its figures are quoted.
TRAINING = [
    *((model, precision, None) for model in ("resnet18", "zoo/gpt-tiny") for precision in PRECISIONS),
    ("resnet18", "fp16", "default"),
    ("resnet18", "bf16", "reduce-overhead"),
    ("zoo/gpt-tiny", "bf16", "default"),
    ("zoo/gpt-tiny", "fp16", "reduce-overhead"),
]
INFERENCE = [
    *((model, precision, None) for model in SIZES for precision in PRECISIONS),
    ("resnet18", "bf16", "default"),
    ("resnet18", "fp16", "reduce-overhead"),
]


@pytest.mark.parametrize(("model", "precision", "mode"), TRAINING)
def test_training_works_and_never_waits(model, precision, mode):
    choices = {"device": "cuda", "precision": precision, "compile": mode, **SIZES[model]}
    with TrainStep.build(model, batch_size=8, **choices) as step:
        run(step)
        no_sync(step)
        step.check()
        expected = "channels_last" if model == "resnet18" else "contiguous"
        assert step.configuration["memory_format"] == expected


@pytest.mark.parametrize(("model", "precision", "mode"), INFERENCE)
def test_inference_works_and_never_waits(model, precision, mode):
    choices = {"device": "cuda", "precision": precision, "compile": mode, **SIZES[model]}
    with InferStep.build(model, batch_size=8, **choices) as step:
        run(step)
        no_sync(step)
        step.check()


def test_one_seed_gives_the_same_loss():
    losses = []
    for _ in range(2):
        with TrainStep.build(
            "zoo/gpt-tiny", batch_size=8, device="cuda", precision="bf16", compile=None
        ) as step:
            losses.append(run(step).loss_value())
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_a_batch_that_does_not_fit_is_named_and_its_memory_freed():
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    with pytest.raises(OutOfMemory, match="NOT made smaller"):
        TrainStep.build("resnet18", batch_size=10**6, device="cuda")
    gc.collect()
    assert torch.cuda.memory_allocated() <= before + 2**20


def test_closing_gives_the_memory_back():
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    with TrainStep.build("resnet18", batch_size=64, device="cuda", compile=None) as step:
        run(step)
        assert torch.cuda.memory_allocated() > before
    assert torch.cuda.memory_allocated() <= before + 64 * 2**20  # cuBLAS keeps its workspace


REPLAYED = {
    "sgd": ("resnet18", {"image_size": 64, "batch_size": 8}),
    "adamw, clipped": ("zoo/gpt-tiny", {"clip": 1.0, "batch_size": 8}),
    "micro-batches": ("zoo/gpt-tiny", {"batch_size": 8, "micro_batch_size": 2}),
    "a loader": ("zoo/wide_resnet-tiny", {"data": "cifar100", "batch_size": 8, "workers": 1}),
}


@pytest.mark.parametrize("mode", [None, "default"])
@pytest.mark.parametrize("case", REPLAYED)
def test_a_replayed_step_trains_as_one_that_is_launched(case, mode):
    model, choices = REPLAYED[case]
    found = {}
    for replay in (True, False):
        asked = {**choices, "device": "cuda", "precision": "bf16", "compile": mode, "replay": replay}
        with TrainStep.build(model, **asked) as step:
            found[replay] = losses(step, 12)
            if case != "a loader":  # which waits for its batches
                no_sync(step)
            step.check()
            assert step.configuration.get("replay", False) is replay
    assert found[True] == pytest.approx(found[False], rel=0.02)
    assert len({*found[True]}) == 12


@pytest.mark.parametrize("mode", [None, "default"])
def test_a_replayed_inference_answers_what_it_is_asked(mode):
    answers = {}
    for replay in (True, False):
        choices = {"device": "cuda", "precision": "bf16", "compile": mode, "replay": replay}
        with InferStep.build("resnet18", batch_size=8, image_size=64, **choices) as step:
            taken = []
            for _ in range(8):
                step()
                taken.append(step.output.float().clone())
            no_sync(step)
            answers[replay] = torch.stack(taken)
    torch.testing.assert_close(answers[True], answers[False], rtol=0.05, atol=0.05)
    assert not torch.equal(answers[True][-1], answers[True][-2])  # batches differ


def test_closing_a_replayed_step_gives_the_memory_back():
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    with TrainStep.build("resnet18", batch_size=64, device="cuda", compile=None, replay=True) as step:
        run(step)
        assert torch.cuda.memory_allocated() > before
    assert torch.cuda.memory_allocated() <= before + 64 * 2**20


def test_a_short_step_is_replayed_unasked_and_one_that_cannot_be_is_not():
    short = {"data": "cifar100", "batch_size": 8, "device": "cuda"}
    with TrainStep.build("zoo/wide_resnet-tiny", precision="bf16", **short) as step:
        assert (step.configuration["compile"], step.configuration["replay"]) == ("default", True)
        assert len({*losses(step, 8)}) == 8
    with TrainStep.build("zoo/wide_resnet-tiny", precision="fp16", **short) as step:  # with a scaler
        assert step.configuration["compile"] == "reduce-overhead"
        assert "replay" not in step.configuration


def test_a_replayed_step_draws_new_dropout_every_time():
    """The same batches come again and again, the weights all but stand still, and the losses differ."""
    asked = {
        "sequence": 64,
        "batch_size": 8,
        "device": "cuda",
        "precision": "bf16",
        "lr": 1e-9,
        "replay": True,
    }
    with TrainStep.build("zoo/bert-tiny", **asked, compile="default") as step:
        found = losses(step, 6 + 8 * step.configuration["distinct_batches"])[6:]
    again = found[:: step.configuration["distinct_batches"]]
    assert len({*again}) == len(again) == 8
