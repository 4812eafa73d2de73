"""Validation of step options before a model is built."""

from dataclasses import fields

import pytest
import torch
from torch import nn

from pytest_accel.measure.rounds import Alone
from pytest_accel.workloads import build
from pytest_accel.workloads.config import BATCH_SIZES, StepConfig, StepOptions, TrainOptions
from pytest_accel.workloads.step import InferStep, TrainStep

SEGFORMER, DINO, GPT, BERT = "zoo/segformer-b0", "zoo/dino-tiny", "zoo/gpt-tiny", "zoo/bert-tiny"


@pytest.fixture
def nothing_is_built(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a model was built")

    monkeypatch.setattr(build, "build_model", refuse)


def own(num_classes=3):
    return nn.Linear(3, num_classes)


@pytest.mark.usefixtures("nothing_is_built")
@pytest.mark.parametrize(
    ("model", "choices", "said"),
    [
        (SEGFORMER, {"image_size": 0}, "image_size: 0 is not a positive whole number"),
        (GPT, {"vocabulary": True}, "vocabulary: True is not a positive whole number"),
        (GPT, {"batch_size": 2.0}, "batch_size: 2.0 is not a positive whole number"),
        (GPT, {"batch_size": None, "global_batch_size": 2.0}, "global_batch_size: 2.0 is not a positive"),
        (GPT, {"micro_batch_size": 0}, "micro_batch_size: 0 is not a positive whole number"),
        (GPT, {"batch_size": 12, "micro_batch_size": 5}, "does not divide the batch of 12.*Choose a divisor"),
        (GPT, {"micro_batch_size": 1, "compile": "reduce-overhead"}, "cannot accumulate.* Write 'default'"),
        (GPT, {"batch_size": None}, "batch_size, global_batch_size: give one"),
        (GPT, {"global_batch_size": 16}, "batch_size, global_batch_size: give one"),
        (GPT, {"batch_size": {40: 8}}, "of unknown GB.*memory_gb in the table of its platform"),
        (GPT, {"batch_size": {40: 8}, "memory_gb": 16}, "no entry for this device, of 16 GB. Write an entry"),
        (GPT, {"workers": -1}, "workers: -1 .*Valid: 0 or more"),
        (GPT, {"prefetch": 0}, "prefetch: 0 is not a positive whole number"),
        (GPT, {"source": "resident", "workers": 1}, "workers: 1 with source='resident'"),
        (GPT, {"source": "synthetic", "workers": 0}, "workers: 0 with source='synthetic'"),
        (own(), {}, r"an instance of Linear. Pass .* a function that returns the module"),
        (None, {}, "model: None. Pass a name"),
        (GPT, {"compile": "max-autotone"}, "Did you mean 'max-autotune'"),
        (GPT, {"memory_format": "channels-last"}, "Did you mean 'channels_last'"),
        (GPT, {"source": "disk"}, "source: 'disk' is not known"),
        (GPT, {"decode": "hosst"}, "Did you mean 'host'"),
        (GPT, {"optimizer": "sdg"}, "Did you mean 'sgd'"),
        (GPT, {"precision": "tf32"}, "not possible on cpu"),
        (BERT, {"image_size": 64}, "image_size: zoo/bert-tiny reads tokens.*Leave image_size out"),
        ("resnet18", {"vocabulary": 64}, "vocabulary: resnet18 reads images.*Leave vocabulary out"),
        (own, {"data": "mnist", "sequence": 64}, "sequence: .*own reads images"),
        (
            DINO,
            {"model_options": {"num_classes": 5}},
            "num_classes is an argument of every step. Write it beside",
        ),
        (own, {"data": "mnist", "model_options": {"seed": 5}}, r"seed is an argument .* functools\.partial"),
        (GPT, {"lr_scale": {"blocks": 0.0}}, "blocks.*: 0.0 is not a positive number"),
        (GPT, {"clip": 0.0}, "clip: 0.0 is not a positive number"),
        (GPT, {"clip": float("nan")}, "clip: nan is not a positive number"),
    ],
)
def test_wrong_option_is_refused_before_a_model_is_built(model, choices, said):
    with pytest.raises(ValueError, match=said):
        TrainStep.build(model, **{"batch_size": 2} | choices)


@pytest.mark.parametrize(
    ("choices", "stored"),
    [
        ({"batch_size": {40: 8, 16: 4}, "precision": "half"}, {"batch_size": 4, "precision": "bf16"}),
        (
            {"global_batch_size": {24: 8}, "precision": "single"},
            {"global_batch_size": 8, "precision": "fp32", "scaling": "strong"},
        ),
        ({"batch_size": 8, "micro_batch_size": {25: 4, 1: 2}}, {"batch_size": 8, "micro_batch_size": 2}),
        ({"batch_size": 8, "micro_batch_size": {16: None, 1: 2}}, {"batch_size": 8}),
    ],
)
def test_what_depends_on_the_device_is_stored_as_it_was_chosen(choices, stored):
    with TrainStep.build(own, data="mnist", memory_gb=24, model_options={}, loss=_mean, **choices) as step:
        found = {name: step.configuration.get(name) for name in (*BATCH_SIZES, "precision", "scaling")}
        assert {name: value for name, value in found.items() if value is not None} == {
            "precision": "fp32"
        } | stored


def _mean(output, targets):
    return output.mean()


@pytest.mark.parametrize("model", ["resnet18", "timm/resnet18", GPT, BERT, DINO, SEGFORMER, own])
def test_model_options_that_a_library_does_not_take_are_named(model):
    with pytest.raises(ValueError, match=r"model_options: .* does not take all of layerz: .*Leave out"):
        TrainStep.build(
            model, batch_size=2, data="imagenet" if model is own else None, model_options={"layerz": 3}
        )


def test_typed_keywords_are_the_fields_of_the_configuration():
    """The TypedDict gives editors and mypy the names; the dataclass has the defaults."""
    by_session = {"model", "task", "device", "ranks", "autocast", "data_root", "data_required"}
    assert set(TrainOptions.__annotations__) == {each.name for each in fields(StepConfig)} - by_session
    assert set(StepOptions.__annotations__) < set(TrainOptions.__annotations__)


def test_unknown_keyword_names_the_nearest():
    with pytest.raises(ValueError, match=r"^batchsize: unknown keyword of train\. Did you mean 'batch_size'"):
        TrainStep.build("resnet18", batchsize=4)
    with pytest.raises(ValueError, match=r"^optimizer: unknown keyword of infer"):
        InferStep.build("resnet18", batch_size=4, optimizer="sgd")


@pytest.mark.parametrize(
    ("device", "given", "resolved"),
    [("cpu", True, "default"), ("cpu", False, None), ("cpu", "auto", "auto"), ("cuda", True, "auto")],
)
def test_compile_is_a_switch_too(device, given, resolved):
    options = {"batch_size": 2, "compile": given}
    config = StepConfig.of("train", own, options, ranks=Alone(), device=torch.device(device))
    assert config.compile == resolved
