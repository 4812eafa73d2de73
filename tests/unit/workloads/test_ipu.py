"""Steps on an IPU: poptorch is a module with its interface that computes on the host (tests/support/poplar)."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_accel.measure.arguments import OutOfMemory
from pytest_accel.workloads.step import TrainStep
from tests.support.steps import losses

POPLAR = Path(__file__).parents[2] / "support" / "poplar"
ADAPTER = "pytest_accel.workloads.ipu"


@pytest.fixture(scope="module")
def ipu():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(POPLAR)
        for name in ("poptorch", ADAPTER):
            patch.delitem(sys.modules, name, raising=False)
        from pytest_accel.workloads import ipu

        yield ipu
        for name in ("poptorch", ADAPTER):
            sys.modules.pop(name, None)


def images():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))


@pytest.fixture
def train(ipu):
    def build(model=images, **choices):
        choices = {"data": "mnist", "batch_size": 16, **choices}
        return ipu.IpuTrainStep.build(model, device="ipu", **choices)

    return build


@pytest.mark.parametrize(
    ("model", "choices"),
    [
        (images, {"optimizer": "sgd", "lr": 0.1}),
        (images, {"optimizer": "adamw", "weight_decay": 0.1, "micro_batch_size": 4}),
        ("zoo/autoencoder-tiny", {"optimizer": "adam"}),
        ("mobilenet_v3_small", {"data": "imagenet", "image_size": 32, "batch_size": 4}),
    ],
    ids=["sgd", "micro_batches", "autoencoder", "mobilenet"],
)
def test_step_trains_as_on_any_other_device(train, model, choices):
    with train(model, **choices) as step:
        there = losses(step)
        weights = [parameter.detach().clone() for parameter in step.parts.model.parameters()]
        assert step.work == choices.get("batch_size", 16)
    options = {"data": "mnist", "batch_size": 16, "memory_format": "contiguous", **choices}
    micro_batches = options.pop("micro_batch_size", None)
    with TrainStep.build(model, **options) as step:
        here = losses(step)
        if not micro_batches:  # an IPU returns the loss of the last one
            torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-5)
        for mine, other in zip(weights, step.parts.model.parameters(), strict=True):
            torch.testing.assert_close(mine, other.detach(), rtol=1e-3, atol=1e-4)


def test_configuration_says_how_it_ran(train):
    with train(precision="half", batch_size={16: 64, 0.9: 8}, memory_gb=0.9, micro_batch_size=4) as step:
        losses(step)
        assert next(step.parts.model.parameters()).dtype == torch.float16
        assert (
            step.demand.flops == 8 * 3 * 2 * (784 * 16 + 16 * 10) - 8 * 2 * 784 * 16
        )  # no gradient of the images
        expected = {"runtime": "poptorch", "precision": "fp16", "batch_size": 8, "micro_batch_size": 4}
        expected |= {"optimizer_kernel": "poptorch", "loss_scaling": 128.0, "compile": None}
        assert expected.items() <= step.configuration.items()
        assert step.configuration["memory_format"] == "contiguous"


def test_batch_that_does_not_fit_is_said_and_its_micro_batches_do(train):
    with (
        train(batch_size=64) as step,
        pytest.raises(OutOfMemory, match=r"a batch of 64 did not fit .*NOT made smaller"),
    ):
        step()
    with train(batch_size=64, micro_batch_size=16) as step:
        losses(step)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"precision": "bf16"}, "'bf16' is not possible on ipu: .*Valid there: fp32, fp16"),
        ({"clip": 1.0}, "clip: 1.0 is not possible on an IPU. Leave it out"),
        ({"compile": "default"}, "compile: 'default' is not possible on an IPU"),
        ({"optimizer": torch.optim.RMSprop}, "poptorch has sgd, adam, adamw for an IPU"),
    ],
)
def test_what_an_ipu_cannot_do_is_refused(train, choices, said):
    with pytest.raises(ValueError, match=said):
        train(**choices)


def test_inference_runs_the_compiled_model(ipu):
    with ipu.IpuInferStep.build(images, device="ipu", data="mnist", batch_size=8, precision="half") as step:
        step()
        step.check()
        assert step.output.shape == (8, 10)
        assert step.configuration["precision"] == "fp16"
