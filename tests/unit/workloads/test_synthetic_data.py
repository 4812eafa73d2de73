"""Synthetic batches: shapes, seeds and ranks, for every task."""

from itertools import combinations

import pytest
import torch
from torch.utils._pytree import tree_leaves

from pytest_accel.workloads.build import make_batch
from pytest_accel.workloads.input_pipeline import ROTATION_BYTES, ModelInfo
from pytest_accel.workloads.tasks.segmentation import MaskPlan
from pytest_accel.workloads.tasks.text import QuestionPlan
from tests.support.plans import plan_data, scene_plan

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
def test_images_are_scaled_to_the_size_of_the_model(data, classes):
    plan = plan_data(data, IMAGES, batch_size=64)
    images, labels = make(plan)
    assert images.shape == (64, 3, 64, 64)
    assert 0 <= labels.min() <= labels.max() < classes
    assert (plan.work, plan.unit) == (64, "images")


def test_targets_are_the_next_tokens():
    plan = plan_data(None, TOKENS, batch_size=4)
    inputs, targets = make(plan)
    assert inputs.shape == targets.shape == (4, 16)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert (plan.work, plan.unit) == (64, "tokens")


def test_large_batches_are_few_but_at_least_two():
    assert plan_data(None, IMAGES, batch_size=2).rotation(torch.float32) == 4
    three = ROTATION_BYTES // (3 * 64 * 64 * 4 + 8) // 3
    assert plan_data(None, IMAGES, batch_size=three).rotation(torch.float32) == 3
    assert plan_data(None, IMAGES, batch_size=10**6).rotation(torch.float32) == 2


PLANS = [
    plan_data(None, IMAGES, batch_size=2),
    plan_data(None, TOKENS, batch_size=2),
    scene_plan(),
    MaskPlan(name="cityscapes", batch_size=2, crop=(16, 32)),
    QuestionPlan(name="squad", batch_size=2, vocabulary=30522, sequence=64),
]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_batches_differ_by_index_seed_and_rank_and_repeat_with_them(plan):
    keys = [
        {"index": index, "seed": seed, "rank": rank} for index in (0, 1) for seed in (0, 1) for rank in (0, 1)
    ]
    drawn = [tree_leaves(make(plan, **key)) for key in keys]
    for one, other in combinations(drawn, 2):
        assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    for key, batch in zip(keys, drawn, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(batch, tree_leaves(make(plan, **key)), strict=True))


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_meta_batch_has_the_shapes_and_types_of_a_real_one(plan):
    real, meta = tree_leaves(make(plan)), tree_leaves(plan.on_meta())
    assert [(each.shape, each.dtype) for each in real] == [(each.shape, each.dtype) for each in meta]


@pytest.mark.parametrize(
    ("data", "sizes", "shapes"),
    [
        ("cityscapes", {"image_size": 32}, [(2, 3, 32, 32), (2, 32, 32)]),
        ("squad", {}, [(2, 384)] * 3 + [(2,)] * 2),
        ("squad", {"sequence": 32, "vocabulary": 1100}, [(2, 32)] * 3 + [(2,)] * 2),
    ],
)
def test_batch_for_a_users_model_has_the_sizes_of_the_call(data, sizes, shapes):
    batch = tree_leaves(make_batch(data, batch_size=2, device=CPU, **sizes))
    assert [tuple(each.shape) for each in batch] == shapes
    wrong = dict.fromkeys(sizes, 0) or {"sequence": 0}
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))}: 0 is not a positive whole number"):
        make_batch(data, batch_size=1, device=CPU, **wrong)
