"""Steps train or infer for real, say what they are, and are caught when they do not."""

from __future__ import annotations

import gc
import json
import math
import re
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_accel.measure.errors import OutOfMemory
from pytest_accel.storage.baselines import configuration_hash
from pytest_accel.workloads import InferStep, StepError, TrainStep
from pytest_accel.workloads.data.errors import DataError

GPT = {"layers": 1, "width": 32, "heads": 2}


def mlp():
    """A callable of a user's, with dropout so that the step draws random numbers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 10))


def run(step, steps=3):
    for _ in range(steps):
        step()
    return step


def train_mlp(**changes):
    return TrainStep.build(changes.pop("model", mlp), **{"data": "mnist", "batch_size": 8} | changes)


@pytest.mark.parametrize(
    ("model", "choices"),
    [
        ("resnet18", {"image_size": 32}),
        ("mobilenet_v3_small", {"image_size": 32, "data": "cifar100"}),
        ("swin_t", {"image_size": 32}),
        ("timm/vit_tiny_patch16_224", {"image_size": 32, "data": "food101"}),
        ("timm/resnet18", {"image_size": 32, "optimizer": "adam"}),
        ("zoo/gpt-tiny", {"sequence": 16}),
        ("resnet18", {"image_size": 32, "precision": "bf16"}),
        ("zoo/gpt-tiny", {"sequence": 16, "precision": "bf16"}),
        (mlp, {"data": "mnist", "label_smoothing": 0.1}),
    ],
)
def test_named_and_own_models_train(model, choices):
    with TrainStep.build(model, batch_size=2, **choices) as step:
        run(step).check()
        assert step.parameters_moved()
        assert math.isfinite(step.loss_value())


@pytest.mark.parametrize(
    ("model", "choices"),
    [
        ("resnet18", {"image_size": 32, "precision": "bf16"}),
        ("vit_b_16", {"image_size": 32}),
        ("swin_t", {"image_size": 32}),
        ("zoo/gpt-tiny", {"sequence": 16, "precision": "bf16"}),
        (mlp, {"data": "mnist"}),
    ],
)
def test_named_and_own_models_infer(model, choices):
    with InferStep.build(model, batch_size=2, **choices) as step:
        run(step).check()
        half = choices.get("precision") == "bf16"
        assert step.output.dtype == (torch.bfloat16 if half else torch.float32)
        assert step.output.is_inference()


def test_one_seed_gives_the_same_loss_to_the_last_bit():
    losses = []
    for seed in (5, 5, 6):
        with train_mlp(seed=seed) as step:
            losses.append(run(step).loss_value())
    assert losses[0] == losses[1] != losses[2]


def test_training_learns_its_batches():
    with train_mlp(optimizer="adamw", lr=1e-2) as step:
        first = run(step, 1).loss_value()
        assert run(step, 200).loss_value() < first / 2


def test_work_is_counted_in_images_or_tokens():
    with train_mlp() as images, TrainStep.build("zoo/gpt-tiny", batch_size=2, sequence=16) as tokens:
        assert (images.work, images.unit) == (8, "images")
        assert (tokens.work, tokens.unit) == (32, "tokens")


# A step that trains nothing.


def test_a_learning_rate_of_zero_is_caught():
    with train_mlp(lr=0.0) as step, pytest.raises(StepError, match="parameters did not move in 3 steps"):
        run(step).check()


def test_a_frozen_model_is_caught():
    with pytest.raises(StepError, match="no parameter requires a gradient"):
        train_mlp(model=lambda: mlp().requires_grad_(False))


def test_weight_decay_alone_is_not_training():
    with train_mlp(loss=lambda logits, targets: (logits * 0).sum(), optimizer="sgd") as step:
        run(step)
        assert step.parameters_moved()
        with pytest.raises(StepError, match="every gradient is zero"):
            step.check()


def test_a_loss_that_is_not_finite_is_caught():
    with (
        train_mlp(loss=lambda logits, targets: logits.sum() * math.nan) as step,
        pytest.raises(StepError, match="the loss is nan after 3 steps"),
    ):
        run(step).check()


def test_an_output_that_is_not_finite_is_caught():
    class Diverged(nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(1)) / 0

    with (
        InferStep.build(lambda: Diverged(784, 10), data="mnist", batch_size=2) as step,
        pytest.raises(StepError, match="not finite in fp32"),
    ):
        run(step).check()


@pytest.mark.parametrize("kind", [TrainStep, InferStep])
def test_a_step_that_never_ran_is_caught(kind):
    with (
        kind.build(mlp, data="mnist", batch_size=2) as step,
        pytest.raises(StepError, match="no step has run"),
    ):
        step.check()


# What defines a benchmark.

BASE = {"batch_size": 2, "image_size": 32}
CHANGES = {
    "batch_size": 4,
    "data": "cifar100",
    "precision": "bf16",
    "image_size": 64,
    "num_classes": 7,
    "memory_format": "channels_last",
    "compile": "default",
    "cudnn_benchmark": False,
    "seed": 1,
    "optimizer": "adam",
    "lr": 0.5,
    "loss": lambda logits, targets: logits.sum(),
    "label_smoothing": 0.1,
    "model_options": {"zero_init_residual": True},
}


@pytest.fixture(scope="module")
def base_configuration():
    with TrainStep.build("resnet18", **BASE) as step:
        return step.configuration


@pytest.mark.parametrize("name", CHANGES)
def test_every_argument_changes_the_configuration(name, base_configuration):
    with TrainStep.build("resnet18", **BASE | {name: CHANGES[name]}) as step:
        assert step.configuration != base_configuration


def test_the_model_changes_the_configuration_and_the_device_does_not_stand_in_it():
    with train_mlp() as step:
        assert step.configuration["model"].endswith("test_step.mlp")
        assert not {"device", "platform", "threads"} & set(step.configuration)
        assert all(
            isinstance(value, str | int | float | bool | None) for value in step.configuration.values()
        )


def test_defaults_on_a_cpu_are_eager_and_as_measured():
    with TrainStep.build("resnet18", batch_size=2, image_size=32) as step:
        chosen = step.configuration
        assert (chosen["compile"], chosen["memory_format"]) == (None, "contiguous")
        assert (chosen["optimizer"], chosen["optimizer_kernel"]) == ("sgd", "fused")
    with InferStep.build("resnet18", batch_size=2, image_size=32) as step:
        assert step.configuration["memory_format"] == "channels_last"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"batchsize": 4}, "batchsize: unknown keyword; did you mean batch_size\\?"),
        ({"batch_size": 0}, "batch_size: 0"),
        ({"compile": "max-autotone"}, "Did you mean 'max-autotune'"),
        ({"memory_format": "channels-last"}, "Did you mean 'channels_last'"),
        ({"optimizer": "sdg"}, "Did you mean 'sgd'"),
        ({"precision": "tf32"}, "not possible on cpu"),
        ({"data": "imagenet"}, "Pass num_classes=10"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_is_valid(changes, match):
    tiny = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 10))
    with pytest.raises(ValueError, match=match):
        TrainStep.build(
            lambda: tiny,
            **{"data": "cifar100", "batch_size": 2, "num_classes": 10} | changes | _classes(changes),
        )


def _classes(changes):
    return {"num_classes": None} if changes.get("data") == "imagenet" else {}


def test_a_missing_batch_size_is_asked_for():
    with pytest.raises(ValueError, match="batch_size: missing"):
        TrainStep.build("resnet18")


# Memory.


def test_a_batch_that_does_not_fit_is_named_and_not_made_smaller():
    with pytest.raises(OutOfMemory, match=r"resnet18: a batch of 1000000000 did not fit .* NOT made smaller"):
        TrainStep.build("resnet18", batch_size=10**9, image_size=224)


def step_that_raises(error):
    class Raising(nn.Linear):
        def forward(self, x):
            raise error

    return InferStep.build(lambda: Raising(784, 10), data="mnist", batch_size=2)


def test_running_out_of_memory_inside_a_step_is_named():
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB\nmore text")
    with (
        step_that_raises(error) as step,
        pytest.raises(OutOfMemory, match=r"a batch of 2 did not fit.*Tried to allocate 80 GiB$"),
    ):
        step()


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "CUDA error: out of memory",
        "Triton Error [CUDA]: out of memory",
        "Cuda failure 2 'out of memory'",
        "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
    ],
)
def test_so_is_that_of_a_library_which_torch_passes_on(words):
    with (
        step_that_raises(RuntimeError(words)) as step,
        pytest.raises(OutOfMemory, match="a batch of 2 did not fit.*torch said: " + re.escape(words)),
    ):
        step()


def test_of_many_lines_the_one_is_told_that_says_so():
    words = (
        "backend='inductor' raised:\n  CUDA out of memory. Tried to allocate 2 GiB\nSet TORCHDYNAMO_VERBOSE=1"
    )
    with (
        step_that_raises(RuntimeError(words)) as step,
        pytest.raises(OutOfMemory, match=r"torch said: CUDA out of memory. Tried to allocate 2 GiB$"),
    ):
        step()


@pytest.mark.parametrize(
    "said",
    [
        StepError("the third rank: CUDA out of memory"),
        DataError("loader: a worker was killed.\nIt ran out of memory: CUDA out of memory, it said"),
        RuntimeError(
            "No valid triton configs. OutOfMemoryError: out of resource: triton_mm Required: 294912 Hardware limit:232448"
        ),
    ],
    ids=["of a step", "of data", "a kernel's"],
)
def test_another_error_that_speaks_of_memory_passes_as_it_is(said):
    with step_that_raises(said) as step:
        with pytest.raises(type(said)) as error:
            step()
        assert error.value is said


def test_another_error_of_the_model_passes_as_it_is():
    with InferStep.build(lambda: nn.Linear(3, 10), data="mnist", batch_size=2) as step:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as error:
            step()
        assert not isinstance(error.value, StepError)


def test_closing_frees_the_model_and_restores_the_flags():
    before = (torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark)
    step = run(train_mlp(precision="bf16"))
    model = weakref.ref(step.parts.model)
    assert torch.backends.cudnn.benchmark is True
    step.close()
    step.close()  # twice does no harm
    gc.collect()
    assert model() is None
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark) == before


def test_a_build_that_fails_leaves_no_flag_behind():
    with pytest.raises(StepError):
        train_mlp(model=lambda: mlp().requires_grad_(False), precision="bf16")
    assert torch.backends.cudnn.benchmark is False


# The timed part.


@pytest.mark.parametrize("kind", [TrainStep, InferStep])
def test_a_step_neither_reads_a_value_nor_prints(kind, monkeypatch, capsys):
    with kind.build(mlp, data="mnist", batch_size=2) as step:
        step()  # optimizers set up their state on the first

        def refuse(*args, **kwargs):
            raise AssertionError("the step read a value from the device")

        for name in ("item", "tolist", "cpu", "numpy", "__float__", "__bool__"):
            monkeypatch.setattr(torch.Tensor, name, refuse)
        run(step)
        monkeypatch.undo()
    assert capsys.readouterr() == ("", "")


def test_flops_are_those_of_the_architecture():
    with TrainStep.build("zoo/gpt-tiny", batch_size=2, sequence=16, model_options=GPT) as train:
        width, tokens, vocabulary = 32, 32, 4096
        products = 12 * width**2 + width * vocabulary  # weights that each token meets once
        attention = 2 * 16 * width  # scores and mixing, over the whole sequence
        assert train.flops_per_step == 6 * tokens * (products + attention)
    with InferStep.build("resnet18", batch_size=2, image_size=224) as infer:
        assert infer.flops_per_step / 2 / 2 == pytest.approx(1.814e9, rel=1e-3)  # torchvision: 1.814 GMAC


def test_a_model_that_cannot_be_traced_has_no_flops():
    class Peeking(nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(1) * float(x.sum() > -1e9))

    with InferStep.build(lambda: Peeking(784, 10), data="mnist", batch_size=2) as step:
        run(step).check()
        assert step.flops_per_step is None


def test_forward_and_loss_are_compiled_as_one_graph(monkeypatch):
    """Through the tracer but not through the C++ compiler: that takes a minute, and CUDA has its own tests."""
    compile_function, ways, losses = torch.compile, [], []

    def traced(function, *, options, dynamic):
        ways.append(options)
        return compile_function(function, backend="eager", fullgraph=True, dynamic=dynamic)

    monkeypatch.setattr(torch, "compile", traced)
    for mode in (None, "default", "reduce-overhead"):
        choices = {"sequence": 16, "precision": "bf16", "model_options": GPT, "compile": mode}
        with TrainStep.build("zoo/gpt-tiny", batch_size=2, **choices) as step:
            run(step).check()
            losses.append(step.loss_value())
    assert ways == [{}, {"triton.cudagraphs": True}]
    assert losses[1] == losses[2] == pytest.approx(losses[0], rel=1e-4)  # a compiler is given another GELU


def test_a_model_with_several_outputs_is_told_how_to_train():
    class Two(nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(1)), x

    with train_mlp(model=lambda: Two(784, 10)) as step, pytest.raises(TypeError, match="Pass loss="):
        step()
    with train_mlp(model=lambda: Two(784, 10), loss=lambda out, targets: out[0].square().mean()) as step:
        run(step).check()


class Greedy:
    """A source that finds no memory for its next batch."""

    loads, buffered, burst = True, 0, 1

    def __next__(self):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB")

    def close(self):
        pass


@pytest.mark.parametrize("build", [TrainStep.build, InferStep.build])
def test_memory_that_runs_out_while_loading_is_named_too(build):
    def compute_only(step):
        with step.computing_only():
            step()

    for use in (lambda step: step(), lambda step: step.load(), compute_only):
        with build("resnet18", data="cifar100", image_size=32, batch_size=2) as step:
            step._source = Greedy()
            with pytest.raises(OutOfMemory, match=r"resnet18: a batch of 2 did not fit"):
                use(step)


# Ranks. Those of real gangs are in tests/distributed/test_process_group.py.


@pytest.mark.parametrize(
    ("build", "suite", "node_id", "work"),
    [
        (TrainStep.build, "cnn", "test_cnn.py::test_cnn[resnet50]", 256),
        (InferStep.build, "inference", "test_inference.py::test_inference[resnet50]", 1024),
    ],
)
def test_committed_baselines_are_of_what_is_built_today(build, suite, node_id, work):
    """Built small and on the CPU; what the H200 has otherwise is put in."""
    stored = json.loads((Path(__file__).parents[3] / f"baselines/h200/{suite}.json").read_text())
    entry = stored["benchmarks"][f"bench_suites/{node_id}"]
    on_h200 = {"compile": "default", "memory_format": "channels_last"}
    with build("resnet50", data="imagenet", batch_size=2, precision="bf16", **on_h200) as step:
        configuration = dict(step.configuration)
    configuration["batch_size"] = work
    if "optimizer_kernel" in configuration:
        configuration["optimizer_kernel"] = "fused"
    assert configuration == entry["configuration"]
    assert configuration_hash(configuration, work, "images") == entry["configuration_hash"]


def test_the_committed_baseline_of_gpt_is_of_what_is_built_today():
    """Built of one layer, one sequence and no vocabulary to speak of; what the real one has is put in."""
    stored = json.loads((Path(__file__).parents[3] / "baselines/h200/gpt.json").read_text())
    entry = stored["benchmarks"]["bench_suites/test_gpt.py::test_gpt_training[117m]"]
    small = {"model_options": {"layers": 1}, "vocabulary": 64, "sequence": 16, "compile": "default"}
    with TrainStep.build("zoo/gpt-117m", batch_size=1, precision="bf16", **small) as step:
        configuration = dict(step.configuration)
    assert configuration.pop("model.layers") == 1
    sizes = {"batch_size": 16, "parameters": 123_606_528, "vocabulary": 50_257, "input_shape": "1024"}
    assert configuration | sizes == entry["configuration"]


def test_a_global_batch_on_one_device_is_its_batch():
    with train_mlp(batch_size=None, global_batch_size=16) as step:
        assert step.work == 16
        assert step.configuration["global_batch_size"] == 16
        assert step.configuration["scaling"] == "strong"
        assert "batch_size" not in step.configuration


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"global_batch_size": 16}, "batch_size and global_batch_size: give one"),
        ({"batch_size": None, "global_batch_size": 0}, "global_batch_size: 0 is not a positive whole number"),
    ],
)
def test_a_global_batch_that_means_nothing_is_refused(choices, words):
    with pytest.raises(ValueError, match=words):
        train_mlp(**choices)
