"""Sources of batches from options: resident, loader and synthetic; evaluation; steps on real data."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from pytest_accel.measure.arguments import StepError
from pytest_accel.workloads.data.images import open_images
from pytest_accel.workloads.data.sources import BatchSource, LoaderSource
from pytest_accel.workloads.step import InferStep, TrainStep
from pytest_accel.workloads.tasks.images import ImagePlan
from tests.support.data_sets import (
    write_cifar_binary,
    write_food101,
    write_imagenet_folders,
    write_mnist,
    write_shards,
)
from tests.support.plans import step_config
from tests.support.processes import children

SHAPES = {
    "cifar100": (100, (3, 32, 32)),
    "mnist": (10, (1, 28, 28)),
    "digits": (10, (1, 8, 8)),
    "food101": (101, (3, 32, 32)),
    "imagenet": (1000, (3, 32, 32)),
}
WRITERS = {
    "cifar100": write_cifar_binary,
    "mnist": write_mnist,
    "food101": write_food101,
    "imagenet": write_imagenet_folders,
    "shards": lambda root: write_shards(root / "imagenet/train"),
}


def plan_for(name, batch_size=4, **changes):
    classes, shape = SHAPES[name]
    plan = ImagePlan(name=name, batch_size=batch_size, classes=classes, shape=shape)
    return replace(plan, **changes)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    made = {}
    for name, write in WRITERS.items():
        made[name] = tmp_path_factory.mktemp(name)
        write(made[name])
    return made


def check_batches(found, plan, steps=3):
    for _ in range(steps):
        inputs, targets = next(found.source)
        assert inputs.shape == (plan.batch_size, *plan.shape)
        assert inputs.dtype == torch.float32
        assert bool(torch.isfinite(inputs).all())
        assert targets.shape == (plan.batch_size,)
        assert 0 <= targets.min() <= targets.max() < plan.classes


RESIDENT = {"data_source": "resident", "data_images": 20, "augment": True}
LOADED = {"workers": "auto", "prefetch": 2}
FILES = {"data_source": "files", "data_images": 7, "augment": True, "decode": "host"}
SYNTHETIC = {"data_source": "host-synthetic"}


@pytest.mark.parametrize(
    ("name", "folder", "choices", "kind", "expected"),
    [
        ("cifar100", "cifar100", {}, BatchSource, RESIDENT),
        ("mnist", "mnist", {}, BatchSource, RESIDENT),
        (
            "cifar100",
            "cifar100",
            {"workers": 2, "prefetch": 3, "cpus": 1},
            LoaderSource,
            RESIDENT | {"data_source": "arrays", "workers": 2, "prefetch": 3, "loader_cpus": 1},
        ),
        (
            "cifar100",
            "cifar100",
            {"source": "loader", "task": "infer"},
            LoaderSource,
            LOADED | {"data_source": "arrays", "data_images": 8},
        ),
        ("food101", "food101", {}, LoaderSource, FILES | LOADED),
        ("imagenet", "shards", {}, LoaderSource, FILES | LOADED | {"data_source": "shards"}),
        ("imagenet", "imagenet", {"workers": 0}, LoaderSource, FILES | LOADED | {"workers": 0}),
        ("imagenet", None, {"workers": 0}, LoaderSource, SYNTHETIC | LOADED | {"workers": 0}),
        ("imagenet", None, {"source": "loader"}, LoaderSource, SYNTHETIC | LOADED),
    ],
)
def test_source_follows_the_set_and_the_options(opened, roots, name, folder, choices, kind, expected):
    found = opened(plan_for(name), data_root=roots[folder] if folder else None, **choices)
    assert type(found.source) is kind
    assert found.configuration == expected
    assert (found.order is None) == (folder is None)
    check_batches(found, plan_for(name))
    if choices.get("prefetch"):
        assert (found.source.buffered >= 6, found.source.burst) == (True, 2)


def test_inference_reads_the_test_images_in_order(opened, roots):
    images = open_images(roots["cifar100"], "cifar100", "test")
    found = opened(plan_for("cifar100"), data_root=roots["cifar100"], task="infer")
    labels = torch.cat([next(found.source)[1] for _ in range(2)])
    assert torch.equal(labels, images.labels)
    assert "augment" not in found.configuration


def test_augmentation_changes_training_images_only(opened, roots):
    root = roots["cifar100"]
    plain, cut = (
        next(opened(plan_for("cifar100"), data_root=root, augment=on).source)[0] for on in (False, True)
    )
    assert not torch.equal(plain, cut)
    same = [
        next(opened(plan_for("cifar100"), data_root=root, augment=on, task="infer").source)[0]
        for on in (False, True)
    ]
    assert torch.equal(*same)
    assert opened(plan_for("cifar100"), data_root=root, augment=False).configuration["augment"] is False


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"source": "resident"}, "source: 'resident' is not possible for food101.* Valid: auto, loader"),
        ({"decode": "device"}, "decode: 'device' is not possible for food101 on cpu. Valid: auto, host"),
    ],
)
def test_impossible_sources_are_refused_with_the_valid_ones(opened, roots, choices, words):
    with pytest.raises(ValueError, match=words):
        opened(plan_for("food101"), data_root=roots["food101"], **choices)


def test_labels_without_an_output_of_the_model_are_refused(opened, roots):
    """On CUDA they would end the process."""
    plan = plan_for("cifar100", classes=10)
    with pytest.raises(
        ValueError, match=r"num_classes: 10 do not fit the labels of cifar100 here, .*Leave it out"
    ):
        opened(plan, data_root=roots["cifar100"])
    opened(plan)  # synthetic labels are drawn to fit
    opened(plan, data_root=roots["cifar100"], task="infer")  # it reads no label
    opened(replace(plan, reconstructs=True), data_root=roots["cifar100"])


def test_color_images_are_not_converted_to_grey(opened, roots):
    with pytest.raises(ValueError, match="cifar100 have 3 channels, and the model reads 1"):
        TrainStep.build("zoo/wide_resnet-tiny", data="cifar100", batch_size=2, model_options={"channels": 1})
    found = opened(plan_for("mnist", shape=(3, 32, 32)), data_root=roots["mnist"])
    check_batches(found, plan_for("mnist", shape=(3, 32, 32)))


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("name", ["cifar100", "food101"])
def test_evaluation_covers_the_test_set_once_over_all_ranks(roots, name, world, monkeypatch):
    monkeypatch.setattr("pytest_accel.workloads.tasks.images.EVALUATION_BATCH", 3)
    images = open_images(roots[name], name, "test")
    found = []
    for rank in range(world):
        choices = step_config(data_root=roots[name], workers=0, rank=rank, world=world)
        for inputs, labels in plan_for(name).test_batches(choices):
            assert inputs.shape == (len(labels), *SHAPES[name][1])
            found += labels.tolist()
    assert sorted(found) == sorted(images.labels.tolist())


def test_evaluation_closed_early_leaves_no_worker(roots):
    before = children()
    batches = plan_for("food101").test_batches(step_config(data_root=roots["food101"], workers=1))
    next(batches)
    assert len(children() - before) == 1
    batches.close()
    assert children() - before == set()


@pytest.mark.parametrize(
    ("model", "name", "folder", "choices"),
    [
        ("zoo/wide_resnet-tiny", "cifar100", "cifar100", {"workers": 1}),
        ("zoo/wide_resnet-tiny", "digits", "cifar100", {}),
        ("zoo/autoencoder-tiny", "mnist", "mnist", {}),
        ("resnet18", "food101", "food101", {"image_size": 32, "workers": 1}),
        ("resnet18", "imagenet", "imagenet", {"image_size": 32}),
    ],
)
@pytest.mark.parametrize("kind", [TrainStep, InferStep])
def test_steps_run_on_real_data(kind, roots, model, name, folder, choices):
    before = children()
    with kind.build(model, data=name, batch_size=4, data_root=roots[folder], **choices) as step:
        assert step.loads
        for _ in range(3):
            step()
        step.check()
        with step.computing_only():
            assert not step.loads
            step()
        step.load()
        assert step.loads
        assert step.configuration["data_source"] != "synthetic"
    assert children() - before == set()


def test_failed_build_leaves_no_worker(roots):
    def frozen():
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 100)).requires_grad_(False)

    before = children()
    with pytest.raises(StepError, match="no parameter requires a gradient") as caught:
        TrainStep.build(frozen, data="cifar100", batch_size=2, data_root=roots["cifar100"], workers=1)
    assert children() - before == set()
    assert caught.value is not None  # its traceback is alive, and held no worker


def test_configuration_keys_of_synthetic_data_are_stable():
    with TrainStep.build("zoo/wide_resnet-tiny", data="cifar100", batch_size=2, data_root=None) as step:
        assert list(step.configuration) == [
            *(
                "definition",
                "task",
                "model",
                "parameters",
                "data",
                "batch_size",
                "input_shape",
                "num_classes",
            ),
            *("data_source", "distinct_batches", "precision", "memory_format", "compile"),
            *("cudnn_benchmark", "seed", "optimizer", "optimizer_kernel", "lr", "loss", "label_smoothing"),
        ]
