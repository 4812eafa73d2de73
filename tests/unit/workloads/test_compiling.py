"""What is compiled how, where nobody says it: by the operations of a step and by its layers, which are what it launches."""

from __future__ import annotations

from functools import cache, partial

import pytest
import torch
from torch import nn

from pytest_accel.workloads.choices import Choices
from pytest_accel.workloads.compiling import KINDS_OF_PART, Compiler, settle_compile
from pytest_accel.workloads.models import build_model
from pytest_accel.workloads.tasks import plan_data


@pytest.fixture(scope="module")
def built():
    return cache(partial(build_model, device="meta"))


@pytest.mark.parametrize(
    ("model", "data", "batch_size", "mode"),
    [
        ("zoo/wide_resnet", "cifar100", 32, "reduce-overhead"),  # half a TFLOP
        ("zoo/wide_resnet", "cifar100", 256, "default"),  # 3.7, in 29 layers
        ("resnet152", "imagenet", 64, "reduce-overhead"),  # 4.4, in 311 layers
        ("resnet152", "imagenet", 256, "default"),
    ],
)
def test_a_step_of_little_work_a_launch_replays_its_launches(built, model, data, batch_size, mode):
    module, info = built(model)
    choices = Choices(model=model, batch_size=batch_size, device="cuda")
    plan = plan_data(data, info, batch_size=batch_size)

    def settled(*, micro_batches=1, varied=False):
        return settle_compile(
            choices,
            module,
            plan,
            task="train",
            threaded=False,
            varied=varied,
            known_as=None,
            micro_batches=micro_batches,
        )

    assert settled() == mode
    assert settled(micro_batches=2) == "default"  # graphs cannot add gradients up
    assert settled(varied=True) == "default"  # nor be recorded for one shape after the other


def test_only_what_is_compiled_apart_may_be_of_many_kinds():
    limits = torch._dynamo.config
    whole, apart = nn.Linear(2, 2), nn.Linear(2, 2)
    apart.compiled_apart = [apart]
    before = limits.recompile_limit
    for mode, model, limit in (
        ("default", whole, before),
        (None, apart, before),
        ("default", apart, KINDS_OF_PART),
    ):
        with Compiler(mode=mode).limits(model):
            assert limits.recompile_limit == limit
        assert limits.recompile_limit == before
