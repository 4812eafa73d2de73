"""Input pipelines on a real GPU: the same pixels as on the host, errors that name the file, no waiting."""

from pathlib import Path

import pytest
import torch

from pytest_accel.workloads.data.files import DataError
from pytest_accel.workloads.measured_step import evaluate
from pytest_accel.workloads.step import InferStep, TrainStep
from tests.support.data_sets import write_cifar_binary, write_food101, write_imagenet_folders

TINY = {"batch_size": 4, "image_size": 64, "precision": "fp32", "compile": None}


def batches(step, count):
    found = [next(step._source) for _ in range(count)]
    torch.cuda.synchronize()
    return [(inputs.float().cpu(), labels.cpu()) for inputs, labels in found]


def built(build, root, device, **options):
    return build("resnet18", data_root=root, device=device, **{**TINY, **options})


@pytest.mark.parametrize("workers", [0, 2])
def test_loaded_batches_equal_those_of_the_host(gpu, tmp_path, workers):
    write_imagenet_folders(tmp_path, train=12)
    options = {"data": "imagenet", "workers": workers, "decode": "host"}
    with (
        built(TrainStep.build, tmp_path, gpu, **options) as there,
        built(TrainStep.build, tmp_path, "cpu", **options) as here,
    ):
        for (inputs, labels), (expected, same) in zip(batches(there, 6), batches(here, 6), strict=True):
            assert torch.equal(labels, same)
            torch.testing.assert_close(inputs, expected, atol=1e-5, rtol=1e-5)


def test_images_decoded_on_the_gpu_are_like_those_of_the_host(gpu, tmp_path):
    write_imagenet_folders(tmp_path, test=8)
    options = {"data": "imagenet", "workers": 1}  # the test images in their order, their middle
    with (
        built(InferStep.build, tmp_path, gpu, **options) as there,
        built(InferStep.build, tmp_path, "cpu", **options) as here,
    ):
        assert there.configuration["decode"] == "device"
        for (inputs, labels), (expected, same) in zip(batches(there, 4), batches(here, 4), strict=True):
            assert torch.equal(labels, same)
            # Another decoder, and no antialiasing: alike, not equal.
            assert (inputs - expected).abs().mean() < 0.25
            assert torch.corrcoef(torch.stack([inputs.flatten(), expected.flatten()]))[0, 1] > 0.8


def test_resident_batches_equal_those_of_the_host(gpu, tmp_path):
    write_cifar_binary(tmp_path, train=20)
    options = {"data": "cifar100", "augment": False}
    with (
        built(TrainStep.build, tmp_path, gpu, **options) as there,
        built(TrainStep.build, tmp_path, "cpu", **options) as here,
    ):
        for (inputs, labels), (expected, same) in zip(batches(there, 8), batches(here, 8), strict=True):
            assert torch.equal(labels, same)
            torch.testing.assert_close(inputs, expected, atol=1e-4, rtol=1e-4)


def test_torn_photograph_is_reported_with_its_path(gpu, tmp_path):
    write_food101(tmp_path, train=8)
    torn = sorted((tmp_path / "food-101" / "images").rglob("*.jpg"))
    for path in torn:
        Path(path).write_bytes(path.read_bytes()[:60])
    with (
        built(TrainStep.build, tmp_path, gpu, data="food101", workers=1) as step,
        pytest.raises(DataError, match=r"food-101/images/.*\.jpg: does not decode"),
    ):
        batches(step, 4)


@pytest.mark.parametrize(("source", "precision"), [("resident", "fp16"), ("loader", "bf16")])
def test_launch_bound_step_is_recorded_and_learns(gpu, tmp_path, source, precision):
    write_cifar_binary(tmp_path, train=64)
    step = TrainStep.build(
        "zoo/wide_resnet-tiny",
        data="cifar100",
        data_root=tmp_path,
        source=source,
        batch_size=32,
        precision=precision,
        device=gpu,
        lr=0.05,
    )
    with step:
        replayed = (step.configuration["compile"], step.configuration.get("replay", False))
        assert replayed == (("default", True) if precision == "bf16" else ("reduce-overhead", False))
        losses = []
        for number in range(60):
            step()
            if number % 20 == 19:
                losses.append(step.loss_value())
        step.check()
        assert losses[-1] < losses[0]
        assert 0 <= evaluate(step) <= 1


def test_steps_with_a_loader_do_not_wait_for_the_gpu(gpu, no_sync, tmp_path):
    write_cifar_binary(tmp_path, train=64)
    for source in ("resident", "loader"):
        with built(TrainStep.build, tmp_path, gpu, data="cifar100", source=source) as step:
            for _ in range(3):
                step()
            no_sync(step, 3)
