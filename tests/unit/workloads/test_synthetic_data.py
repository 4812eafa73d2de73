"""Batches are synthetic, seeded, distinct, and shaped by the model that eats them."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from pytest_accel.workloads.build import _task, make_plan
from pytest_accel.workloads.input_pipeline import ROTATION_BYTES
from pytest_accel.workloads.models.build import ModelInfo
from pytest_accel.workloads.tasks import check_data
from tests.support.plans import plan_data

CPU = torch.device("cpu")


def info(**changes):
    known = {"name": "m", "task": "classification", "parameters": 1, "convolutional": True}
    return ModelInfo(**known | changes)


IMAGES = info(image_size=64, channels=3)
TOKENS = info(task="language", vocabulary=100, sequence=16)


def make(plan, index=0, seed=0, **options):
    settings = {"device": CPU, "dtype": torch.float32, "memory_format": "contiguous"}
    return plan.make(index, seed=seed, **settings | options)


@pytest.mark.parametrize(
    ("data", "classes"), [("imagenet", 1000), ("cifar100", 100), ("food101", 101), ("mnist", 10)]
)
def test_a_data_set_is_scaled_to_the_models_size(data, classes):
    plan = plan_data(data, IMAGES, batch_size=64)
    images, labels = make(plan)
    assert images.shape == (64, 3, 64, 64)
    assert 0 <= labels.min() <= labels.max() < classes
    assert (plan.work, plan.unit) == (64, "images")


@pytest.mark.parametrize(
    ("data", "shape"), [("cifar100", (3, 32, 32)), ("mnist", (1, 28, 28)), ("imagenet", (3, 224, 224))]
)
def test_a_model_without_a_size_sees_the_datas_own(data, shape):
    assert plan_data(data, info(own=True), batch_size=1).shape == shape


def test_targets_are_the_next_tokens():
    plan = plan_data(None, TOKENS, batch_size=4)
    inputs, targets = make(plan)
    assert inputs.shape == targets.shape == (4, 16)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert (plan.work, plan.unit) == (64, "tokens")


def test_one_seed_gives_the_same_batches_and_no_two_of_them_are_alike():
    plan = plan_data(None, IMAGES, batch_size=2)
    assert torch.equal(make(plan, 1)[0], make(plan, 1)[0])
    batches = [make(plan, index, seed)[0] for seed in (0, 1) for index in range(4)]
    assert all(not torch.equal(a, b) for i, a in enumerate(batches) for b in batches[:i])


def test_images_come_in_the_memory_format_and_type_asked_for():
    plan = plan_data(None, IMAGES, batch_size=2)
    images, _ = make(plan, dtype=torch.bfloat16, memory_format="channels_last")
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert images.dtype == torch.bfloat16


def test_large_batches_are_fewer_but_never_one():
    assert plan_data(None, IMAGES, batch_size=2).rotation(torch.float32) == 4
    three = ROTATION_BYTES // (3 * 64 * 64 * 4) // 3
    assert plan_data(None, IMAGES, batch_size=three).rotation(torch.float32) == 3
    assert plan_data(None, IMAGES, batch_size=10**6).rotation(torch.float32) == 2


@pytest.mark.parametrize(
    ("data", "model", "match"),
    [
        ("imagnet", IMAGES, "Did you mean 'imagenet'"),
        ("tokens", IMAGES, "does not fit .*, a model for classification"),
        ("cifar100", TOKENS, "Valid: tokens"),
        ("tokens", info(own=True), "needs sequence= and vocabulary="),
    ],
)
def test_data_that_does_not_fit_is_refused(data, model, match):
    def plan():
        check_data(data)
        make_plan(data, _task(data, model), model, batch_size=2)

    with pytest.raises(ValueError, match=match):
        plan()


@pytest.mark.parametrize(
    "plan", [plan_data(None, IMAGES, batch_size=2), plan_data(None, TOKENS, batch_size=2)]
)
def test_every_rank_draws_its_own_batches_and_rank_0_those_of_a_single_device(plan):
    drawn = [make(plan, index, rank=rank)[0] for rank in range(3) for index in range(4)]
    assert not any(torch.equal(one, other) for one, other in combinations(drawn, 2))
    assert torch.equal(drawn[0], make(plan)[0])
