"""Default of compile and replay: by the operations of a step and the number of its layers."""

from __future__ import annotations

from functools import cache, partial
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from pytest_accel.measure.ranks import Alone
from pytest_accel.workloads.compile import resolve_compile
from pytest_accel.workloads.config import StepConfig
from pytest_accel.workloads.data.sources import RotatingSource
from pytest_accel.workloads.input_pipeline import InputPipeline
from pytest_accel.workloads.models.build import build_model
from tests.support.plans import plan_data


@pytest.fixture(scope="module")
def built():
    return cache(partial(build_model, device="meta"))


WHOLE, PARTS, LAUNCHED = ("default", True), ("reduce-overhead", False), ("default", False)


@pytest.fixture(scope="module")
def resolved(built):
    def resolve(
        model,
        data,
        batch_size,
        *,
        micro_batches=1,
        varied=False,
        threaded=False,
        device="cuda",
        ranks=None,
        **chosen,
    ):
        module, info = built(model)
        config = StepConfig.of(
            "train",
            model,
            {
                "batch_size": batch_size,
                "micro_batch_size": batch_size // micro_batches if micro_batches > 1 else None,
                **chosen,
            },
            device=torch.device(device),
            ranks=ranks or Alone(),
        )
        return resolve_compile(
            config,
            module,
            info,
            plan_data(data, info, batch_size=batch_size),
            InputPipeline(source=RotatingSource(()), configuration={}, threaded=threaded, varied=varied),
        )

    return resolve


@pytest.mark.parametrize(
    ("model", "data", "batch_size", "way"),
    [
        ("zoo/wide_resnet", "cifar100", 32, WHOLE),  # half a TFLOP
        ("zoo/wide_resnet", "cifar100", 256, LAUNCHED),  # 3.7, in 29 layers
        ("resnet152", "imagenet", 160, PARTS),  # 11, in 311 layers
        ("resnet152", "imagenet", 256, LAUNCHED),
    ],
)
def test_step_with_little_work_per_launch_is_replayed(resolved, model, data, batch_size, way):
    assert resolved(model, data, batch_size) == way
    assert resolved(model, data, batch_size, varied=True) == LAUNCHED  # one shape after the other
    assert (
        resolved(model, data, batch_size, threaded=True) == PARTS
    )  # decoding threads run beside the recorded launches
    assert resolved(model, data, batch_size, ranks=SimpleNamespace(size=2)) == LAUNCHED


def test_separately_compiled_parts_are_replayed_at_smaller_batches(resolved, built, monkeypatch):
    model, _ = built("resnet152")
    monkeypatch.setattr(model, "compiled_apart", [model.layer1], raising=False)
    assert resolved("resnet152", "imagenet", 160) == LAUNCHED
    assert resolved("resnet152", "imagenet", 64) == PARTS


SHORT = ("zoo/wide_resnet", "cifar100", 32)


def test_step_that_cannot_be_recorded_whole_is_recorded_in_parts(resolved):
    assert resolved(*SHORT, loss=F.cross_entropy) == PARTS
    assert resolved(*SHORT, replay=False) == PARTS
    assert (
        resolved(*SHORT, loss=F.cross_entropy, micro_batches=2) == LAUNCHED
    )  # parts cannot accumulate gradients
    assert resolved(*SHORT, micro_batches=2) == WHOLE


def test_explicit_compile_and_replay_are_respected(resolved):
    assert resolved(*SHORT, compile=None) == (None, False)
    assert resolved(*SHORT, compile="max-autotune") == ("max-autotune", False)
    assert resolved(*SHORT, compile=None, replay=True) == (None, True)
    assert resolved("resnet152", "imagenet", 256, replay=True) == WHOLE
    assert resolved(*SHORT, device="cpu") == (None, False)
