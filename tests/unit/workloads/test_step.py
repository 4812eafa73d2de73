"""Steps: training and inference, configuration, errors of steps that do no work, memory."""

import gc
import json
import math
import re
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_accel.measure.arguments import OutOfMemory, StepError
from pytest_accel.storage.baselines import configuration_hash
from pytest_accel.workloads import kernels
from pytest_accel.workloads.data.files import DataError
from pytest_accel.workloads.step import InferStep, TrainStep

GPT = {"layers": 1, "width": 32, "heads": 2}


def mlp():
    """Return a user's model; dropout makes the step draw random numbers."""
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
        ("swin_t", {"image_size": 32}),
        ("timm/vit_tiny_patch16_224", {"image_size": 32, "data": "food101"}),
        ("zoo/gpt-tiny", {"sequence": 16}),
        ("resnet18", {"image_size": 32, "precision": "bf16"}),
        ("zoo/gpt-tiny", {"sequence": 16, "precision": "bf16"}),
        (mlp, {"data": "mnist", "label_smoothing": 0.1}),
    ],
)
def test_named_and_own_models_train(model, choices):
    with TrainStep.build(model, batch_size=2, **choices) as step:
        run(step).check()
        assert math.isfinite(step.loss_value())


@pytest.mark.parametrize(
    ("model", "choices"),
    [
        ("resnet18", {"image_size": 32, "precision": "bf16"}),
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


# Steps that do no work.


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"lr": 0.0}, "parameters did not move in 3 steps"),
        # Weight decay alone moves the parameters.
        ({"loss": lambda logits, targets: (logits * 0).sum(), "optimizer": "sgd"}, "every gradient is zero"),
        ({"loss": lambda logits, targets: logits.sum() * math.nan}, "the loss is nan after 3 steps"),
        ({"model": lambda: mlp().requires_grad_(False)}, "no parameter requires a gradient"),
    ],
)
def test_step_that_trains_nothing_is_an_error(options, problem):
    with pytest.raises(StepError, match=problem), train_mlp(**options) as step:
        run(step).check()


def test_output_that_is_not_finite_is_an_error():
    class Diverged(nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(1)) / 0

    with (
        InferStep.build(lambda: Diverged(784, 10), data="mnist", batch_size=2) as step,
        pytest.raises(StepError, match="not finite in fp32"),
    ):
        run(step).check()


# Configuration.

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


def test_configuration_has_the_model_and_not_the_device():
    with train_mlp() as step:
        assert step.configuration["model"].endswith("test_step.mlp")
        assert not {"device", "platform", "threads"} & set(step.configuration)
        assert all(
            isinstance(value, str | int | float | bool | None) for value in step.configuration.values()
        )


def test_defaults_on_a_cpu_are_eager():
    with TrainStep.build("resnet18", batch_size=2, image_size=32) as step:
        chosen = step.configuration
        assert (chosen["compile"], chosen["memory_format"]) == (None, "contiguous")
        assert (chosen["optimizer"], chosen["optimizer_kernel"]) == ("sgd", "fused")
    with InferStep.build("resnet18", batch_size=2, image_size=32) as step:
        assert step.configuration["memory_format"] == "channels_last"


def test_fewer_classes_than_the_data_has_are_refused_with_the_remedy():
    tiny = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 10))
    with pytest.raises(ValueError, match="Pass num_classes=10"):
        TrainStep.build(lambda: tiny, data="imagenet", batch_size=2)


# Memory.


def test_batch_that_does_not_fit_is_not_made_smaller():
    with pytest.raises(OutOfMemory, match=r"resnet18: a batch of 1000000000 did not fit .* NOT made smaller"):
        TrainStep.build("resnet18", batch_size=10**9, image_size=224)
    with pytest.raises(OutOfMemory, match=r"a batch of 1000000000 did not fit.* smaller micro_batch_size"):
        TrainStep.build("resnet18", batch_size=2 * 10**9, micro_batch_size=10**9, image_size=224)


def step_that_raises(error):
    class Raising(nn.Linear):
        def forward(self, x):
            raise error

    return InferStep.build(lambda: Raising(784, 10), data="mnist", batch_size=2)


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB\nmore"),
            "Tried to allocate 8 GiB",
        ),
        *(
            (RuntimeError(text), text)
            for text in (
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
                "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
                "Triton Error [CUDA]: out of memory",
                "Cuda failure 2 'out of memory'",
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
            )
        ),
        (RuntimeError("inductor raised:\n  CUDA out of memory.\nSet VERBOSE=1"), "CUDA out of memory."),
    ],
)
def test_out_of_memory_in_a_step_names_the_batch_and_the_reason(error, reported):
    expected = f"a batch of 2 did not fit.*torch said: .*{re.escape(reported)}$"
    with step_that_raises(error) as step, pytest.raises(OutOfMemory, match=expected):
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
def test_other_errors_that_mention_memory_are_not_changed(said):
    with step_that_raises(said) as step:
        with pytest.raises(type(said)) as error:
            step()
        assert error.value is said


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


def test_failed_build_restores_the_flags():
    with pytest.raises(StepError):
        train_mlp(model=lambda: mlp().requires_grad_(False), precision="bf16")
    assert torch.backends.cudnn.benchmark is False


# The timed function.


@pytest.mark.parametrize("kind", [TrainStep, InferStep])
def test_step_reads_no_value_from_the_device_and_prints_nothing(kind, monkeypatch, capsys):
    with kind.build(mlp, data="mnist", batch_size=2) as step:
        step()  # optimizers set up their state on the first

        def refuse(*args, **kwargs):
            raise AssertionError("the step read a value from the device")

        for name in ("item", "tolist", "cpu", "numpy", "__float__", "__bool__"):
            monkeypatch.setattr(torch.Tensor, name, refuse)
        run(step)
        monkeypatch.undo()
    assert capsys.readouterr() == ("", "")


def test_operations_are_those_of_the_architecture():
    with TrainStep.build("zoo/gpt-tiny", batch_size=2, sequence=16, model_options=GPT) as train:
        width, tokens, vocabulary = 32, 32, 4096
        products = 12 * width**2 + width * vocabulary  # weights that each token meets once
        attention = 2 * 16 * width  # scores and mixing, over the whole sequence
        assert train.demand.flops == 6 * tokens * (products + attention)
    with InferStep.build("resnet18", batch_size=2, image_size=224) as infer:
        assert infer.demand.flops / 2 / 2 == pytest.approx(1.814e9, rel=1e-3)  # torchvision: 1.814 GMAC


def test_model_that_cannot_be_traced_has_no_operation_count():
    class Peeking(nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(1) * float(x.sum() > -1e9))

    with InferStep.build(lambda: Peeking(784, 10), data="mnist", batch_size=2) as step:
        run(step).check()
        assert step.demand.flops is None


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


def test_model_with_several_outputs_needs_a_loss():
    class Two(nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(1)), x

    with train_mlp(model=lambda: Two(784, 10)) as step, pytest.raises(TypeError, match="Pass loss="):
        step()
    with train_mlp(model=lambda: Two(784, 10), loss=lambda out, targets: out[0].square().mean()) as step:
        run(step).check()


# Baselines and global batches.


@pytest.mark.parametrize(
    ("build", "suite", "node_id", "work"),
    [
        (TrainStep.build, "cnn", "test_cnn.py::test_cnn_tuned[resnet50]", 256),
        (InferStep.build, "inference", "test_inference.py::test_inference_tuned[resnet50]", 1024),
    ],
)
def test_configuration_equals_that_of_committed_baselines(monkeypatch, build, suite, node_id, work):
    """The step is built small on the CPU; values of the H200 are filled in."""
    monkeypatch.setattr(kernels, "is_nvidia", lambda _: True)
    stored = json.loads((Path(__file__).parents[3] / f"baselines/h200/{suite}.json").read_text())
    entry = stored["benchmarks"][f"bench_suites/{node_id}"]
    on_h200 = {"compile": "default", "memory_format": "channels_last", "tuned": True}
    with build("resnet50", data="imagenet", batch_size=2, precision="bf16", **on_h200) as step:
        configuration = dict(step.configuration)
    configuration["batch_size"] = work
    if "optimizer_kernel" in configuration:
        configuration["optimizer_kernel"] = "fused"
    assert configuration == entry["configuration"]
    assert configuration_hash(configuration, work, "images") == entry["configuration_hash"]


def test_configuration_of_gpt_equals_that_of_its_baseline():
    """The model is built with one layer and a small vocabulary; the real sizes are filled in."""
    stored = json.loads((Path(__file__).parents[3] / "baselines/h200/gpt.json").read_text())
    entry = stored["benchmarks"]["bench_suites/test_gpt.py::test_gpt_training[117m]"]
    small = {"model_options": {"layers": 1}, "vocabulary": 64, "sequence": 16, "compile": "default"}
    with TrainStep.build("zoo/gpt-117m", batch_size=1, precision="bf16", **small) as step:
        configuration = dict(step.configuration)
    assert configuration.pop("model.layers") == 1
    sizes = {"batch_size": 16, "parameters": 123_606_528, "vocabulary": 50_257, "input_shape": "1024"}
    assert configuration | sizes == entry["configuration"]
