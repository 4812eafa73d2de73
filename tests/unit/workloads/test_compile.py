"""What is compiled how, where nobody says it: by the operations of a step and by its layers, which are what it launches."""

from __future__ import annotations

from functools import cache, partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pytest_accel.workloads.compile import RECOMPILE_LIMIT, Compiler, resolve_compile
from pytest_accel.workloads.config import StepConfig
from pytest_accel.workloads.data.sources import RotatingSource
from pytest_accel.workloads.input_pipeline import InputPipeline
from pytest_accel.workloads.models.build import build_model
from tests.support.plans import plan_data


@pytest.fixture(scope="module")
def built():
    return cache(partial(build_model, device="meta"))


WHOLE, PIECES, LAUNCHED = ("default", True), ("reduce-overhead", False), ("default", False)


@pytest.fixture(scope="module")
def settled(built):
    def settle(
        model,
        data,
        batch_size,
        *,
        micro_batches=1,
        varied=False,
        threaded=False,
        recordable=True,
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
            device=device,
            ranks=ranks,
        )
        return resolve_compile(
            config,
            module,
            plan_data(data, info, batch_size=batch_size),
            InputPipeline(source=RotatingSource(()), configuration={}, threaded=threaded, varied=varied),
            cache_key=(model, data),  # counted once
            recordable=recordable,
        )

    return settle


@pytest.mark.parametrize(
    ("model", "data", "batch_size", "way"),
    [
        ("zoo/wide_resnet", "cifar100", 32, WHOLE),  # half a TFLOP
        ("zoo/wide_resnet", "cifar100", 256, LAUNCHED),  # 3.7, in 29 layers
        ("resnet152", "imagenet", 160, PIECES),  # 11, in 311 layers
        ("resnet152", "imagenet", 256, LAUNCHED),
    ],
)
def test_a_step_of_little_work_a_launch_replays_its_launches(settled, model, data, batch_size, way):
    assert settled(model, data, batch_size) == way
    assert settled(model, data, batch_size, varied=True) == LAUNCHED  # one shape after the other
    assert settled(model, data, batch_size, threaded=True) == PIECES  # which work beside what is recorded
    assert settled(model, data, batch_size, ranks=SimpleNamespace(size=2)) == LAUNCHED


def test_less_is_won_where_parts_are_recorded_one_by_one(settled, built, monkeypatch):
    model, _ = built("resnet152")
    monkeypatch.setattr(model, "compiled_apart", [model.layer1], raising=False)
    assert settled("resnet152", "imagenet", 160) == LAUNCHED
    assert settled("resnet152", "imagenet", 64) == PIECES


SHORT = ("zoo/wide_resnet", "cifar100", 32)


def test_what_cannot_be_recorded_whole_is_in_pieces(settled):
    assert settled(*SHORT, recordable=False) == PIECES
    assert settled(*SHORT, replay=False) == PIECES
    assert settled(*SHORT, recordable=False, micro_batches=2) == LAUNCHED  # pieces cannot add gradients up
    assert settled(*SHORT, micro_batches=2) == WHOLE


def test_who_says_how_is_heard(settled):
    assert settled(*SHORT, compile=None) == (None, False)
    assert settled(*SHORT, compile="max-autotune") == ("max-autotune", False)
    assert settled(*SHORT, compile=None, replay=True) == (None, True)
    assert settled("resnet152", "imagenet", 256, replay=True) == WHOLE
    assert settled(*SHORT, device="cpu") == (None, False)


def test_only_what_is_compiled_apart_may_be_of_many_kinds():
    limits = torch._dynamo.config
    whole, apart = nn.Linear(2, 2), nn.Linear(2, 2)
    apart.compiled_apart = [apart]
    before = limits.recompile_limit
    for mode, model, limit in (
        ("default", whole, before),
        (None, apart, before),
        ("default", apart, RECOMPILE_LIMIT),
    ):
        with Compiler(mode=mode).limits(model):
            assert limits.recompile_limit == limit
        assert limits.recompile_limit == before
