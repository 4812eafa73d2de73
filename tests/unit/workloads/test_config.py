"""Validation of step options before a model is built."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import nn

from pytest_accel.workloads import InferStep, TrainStep, build
from pytest_accel.workloads.config import StepConfig, StepOptions, TrainOptions
from pytest_accel.workloads.models.build import zoo_models
from pytest_accel.workloads.models.dino import DINO_SHAPES, build_dino, count_tokens

SEGFORMER, DEEPLAB = "zoo/segformer-b0", "zoo/deeplabv3plus-r18"
DINO, GPT, BERT = "zoo/dino-tiny", "zoo/gpt-tiny", "zoo/bert-tiny"


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
        # Sizes.
        (SEGFORMER, {"image_size": 0}, "image_size: 0 is not a positive whole number"),
        (SEGFORMER, {"image_size": 64.0}, "image_size: 64.0 is not a positive whole number"),
        ("resnet18", {"image_size": -1}, "image_size: -1 is not a positive whole number"),
        (DINO, {"num_classes": 0}, "num_classes: 0 is not a positive whole number"),
        (GPT, {"sequence": -3}, "sequence: -3 is not a positive whole number"),
        (BERT, {"sequence": 0}, "sequence: 0 is not a positive whole number"),
        (GPT, {"vocabulary": True}, "vocabulary: True is not a positive whole number"),
        (GPT, {"model_options": {"sequence": 0}}, "sequence: 0 is not a positive whole number"),
        (GPT, {"batch_size": 2.0}, "batch_size: 2.0 is not a positive whole number"),
        (GPT, {"batch_size": None, "global_batch_size": 2.0}, "global_batch_size: 2.0 is not a positive"),
        (GPT, {"micro_batch_size": 1.0}, "micro_batch_size: 1.0 is not a positive whole number"),
        (GPT, {"micro_batch_size": 0}, "micro_batch_size: 0 is not a positive whole number"),
        (GPT, {"batch_size": 12, "micro_batch_size": 5}, "does not divide the batch of 12.*Choose a divisor"),
        (GPT, {"micro_batch_size": 1, "compile": "reduce-overhead"}, "cannot accumulate.* Write 'default'"),
        (GPT, {"batch_size": None}, "batch_size: missing"),
        (GPT, {"global_batch_size": 16}, "batch_size and global_batch_size: give one"),
        # Names.
        (GPT, {"compile": "max-autotone"}, "Did you mean 'max-autotune'"),
        (GPT, {"memory_format": "channels-last"}, "Did you mean 'channels_last'"),
        (GPT, {"optimizer": "sdg"}, "Did you mean 'sgd'"),
        (GPT, {"precision": "tf32"}, "not possible on cpu"),
        # Options of another kind of model.
        (GPT, {"image_size": 64}, "image_size: zoo/gpt-tiny reads tokens.*write sequence="),
        (BERT, {"image_size": 64}, "image_size: zoo/bert-tiny reads tokens.*Leave image_size out"),
        (DINO, {"sequence": 64}, "sequence: zoo/dino-tiny reads images.*write image_size="),
        ("resnet18", {"vocabulary": 64}, "vocabulary: resnet18 reads images.*Leave vocabulary out"),
        (own, {"data": "mnist", "sequence": 64}, "sequence: .*own reads images"),
        # Masks are bytes.
        (SEGFORMER, {"num_classes": 256}, "num_classes: 256 are too many.*Valid: 255 or less"),
        ("fcn_resnet50", {"num_classes": 300}, "num_classes: 300 are too many"),
        (own, {"data": "cityscapes", "num_classes": 300}, "num_classes: 300 are too many"),
        # Options that the builder does not take.
        (GPT, {"model_options": {"layerz": 3}}, "does not take 'layerz'. Did you mean 'layers'.*Valid: "),
        (BERT, {"model_options": {"layerz": 3}}, "does not take 'layerz'. Did you mean 'layers'"),
        (DINO, {"model_options": {"querys": 3}}, "does not take 'querys'. Did you mean 'queries'"),
        (SEGFORMER, {"model_options": {"width": 3}}, "'width'. Valid: decoder_channels"),
        (DINO, {"model_options": {"num_classes": 5}}, "Write num_classes=5 beside model_options"),
        ("resnet18", {"model_options": {"num_classes": 5}}, "Write num_classes=5 beside model_options"),
        (own, {"data": "mnist", "model_options": {"num_classes": 5}}, r"partial\(model, num_classes=5\)"),
        # Updates.
        (GPT, {"lr_scale": 0.1}, "lr_scale: 0.1 names no parameters. Write {'backbone': 0.1}"),
        (GPT, {"lr_scale": {"blocks": "1"}}, "lr_scale: '1' for 'blocks' is not a positive number"),
        (GPT, {"clip": "1"}, "clip: '1' is not a positive number"),
        (GPT, {"clip": True}, "clip: True is not a positive number"),
        (GPT, {"clip": 0.0}, "clip: 0.0 is not a positive number"),
        (GPT, {"clip": float("nan")}, "clip: nan is not a positive number"),
        (GPT, {"lr_scale": {"1.": 0.0}}, "lr_scale: 0.0 for '1.' is not a positive number"),
        (GPT, {"weight_decay": -0.1}, "weight_decay: -0.1 is not"),
        (GPT, {"weight_decay": "1"}, "weight_decay: '1' is not a number of 0 or more"),
    ],
)
def test_wrong_option_is_refused_before_a_model_is_built(model, choices, said):
    with pytest.raises(ValueError, match=said):
        TrainStep.build(model, **{"batch_size": 2} | choices)


@pytest.mark.usefixtures("nothing_is_built")
@pytest.mark.parametrize(
    ("model", "choices", "said"),
    [
        (SEGFORMER, {"image_size": 50}, "image_size: 50 x 50 .* multiples of 32"),
        (DEEPLAB, {"image_size": 50}, "image_size: 50 x 50 .* multiples of 8"),
        (DEEPLAB, {"batch_size": 1}, "^batch_size: DeepLabV3 .*Valid: 2 or more"),
        (DEEPLAB, {"micro_batch_size": 1}, "^micro_batch_size: DeepLabV3 .*Valid: 2 or more"),
        ("deeplabv3_mobilenet_v3_large", {"batch_size": 1}, "^batch_size: DeepLabV3 .*Valid: 2 or more"),
        (DINO, {"image_size": 32}, r'21 tokens .* 30 boxes.*model_options={"queries": 21}'),
        (DINO, {"model_options": {"queries": 10**6}}, "cannot propose 1000000 boxes"),
        ("zoo/dino-swin-l-4scale", {"image_size": 50}, "image_size: 50 .* multiple of 4"),
    ],
)
def test_sizes_that_a_model_cannot_take_are_refused_before_it_is_built(model, choices, said):
    with pytest.raises(ValueError, match=said):
        TrainStep.build(model, **{"batch_size": 2} | choices)


@pytest.mark.parametrize(
    ("model", "choices"),
    [
        (DEEPLAB, {"batch_size": 1, "image_size": 64}),  # one image is enough for inference
        (SEGFORMER, {"batch_size": 1, "image_size": 64, "num_classes": 255}),
        (DINO, {"batch_size": 1, "image_size": 32, "model_options": {"queries": 21}}),
        (GPT, {"batch_size": 1, "sequence": 8, "model_options": {"layers": 1}}),
    ],
)
def test_smallest_valid_sizes_are_accepted(model, choices, monkeypatch):
    class BuiltError(Exception):
        pass

    def built(*_, **__):
        raise BuiltError

    monkeypatch.setattr(build, "build_model", built)
    with pytest.raises(BuiltError):
        InferStep.build(model, **choices)


@pytest.mark.parametrize("model", ["resnet18", "timm/resnet18", own])
def test_model_options_that_a_library_does_not_take_are_named(model):
    with pytest.raises(ValueError, match=r"model_options: .* does not take all of layerz: .*Leave out"):
        TrainStep.build(model, batch_size=2, data="imagenet", model_options={"layerz": 3})


def test_every_zoo_model_lists_its_options():
    assert [name for name, model in zoo_models().items() if not model.options] == []


@pytest.mark.parametrize("size", [(32, 32), (64, 48), (50, 72)])
def test_token_count_equals_that_of_the_model(size):
    with torch.device("meta"):
        tokens, _, _ = build_dino("dino-tiny").neck(torch.empty(1, 3, *size), torch.ones(1, 1, 2))
    assert count_tokens(DINO_SHAPES["dino-tiny"], *size) == tokens.shape[1]


def test_typed_keywords_are_the_fields_of_the_configuration():
    """The TypedDict gives editors and mypy the names; the dataclass has the defaults."""
    by_session = {"model", "task", "device", "ranks", "data_root", "data_required"}
    assert set(TrainOptions.__annotations__) == {each.name for each in fields(StepConfig)} - by_session
    assert set(StepOptions.__annotations__) < set(TrainOptions.__annotations__)


def test_unknown_keyword_names_the_nearest():
    with pytest.raises(ValueError, match=r"^batchsize: unknown keyword; did you mean batch_size\?"):
        TrainStep.build("resnet18", batchsize=4)
    with pytest.raises(ValueError, match=r"^optimizer: unknown keyword"):
        InferStep.build("resnet18", batch_size=4, optimizer="sgd")
