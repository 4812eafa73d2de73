"""Options and missing data of every task: errors with the remedy, synthetic data in place of a missing set."""

from __future__ import annotations

import pytest

from pytest_accel.workloads.data.files import DataError, SyntheticDataWarning
from pytest_accel.workloads.data.sources import RotatingSource
from pytest_accel.workloads.step import TrainStep
from pytest_accel.workloads.tasks.masks import MaskPlan
from pytest_accel.workloads.tasks.text import QuestionPlan, TokenPlan
from tests.support.plans import scene_plan, step_config

pytest.importorskip("segmentation_models_pytorch")
pytest.importorskip("transformers")

DINO, SEGFORMER, BERT, GPT = "zoo/dino-tiny", "zoo/segformer-b0", "zoo/bert-tiny", "zoo/gpt-tiny"
SIZES = {
    DINO: {"image_size": 64},
    SEGFORMER: {"image_size": 32},
    BERT: {"sequence": 64},
    GPT: {"sequence": 16},
}
DATA = {DINO: "coco", SEGFORMER: "cityscapes", BERT: "squad", GPT: "oscar"}
PLANS = [
    scene_plan(),
    MaskPlan(name="cityscapes", batch_size=2, crop=(16, 32)),
    QuestionPlan(name="squad", batch_size=2, vocabulary=30522, sequence=64),
    TokenPlan(name="oscar", batch_size=2, vocabulary=1024, sequence=16),
]


@pytest.mark.parametrize(
    ("model", "options", "problem"),
    [
        ("resnet18", {"data": "coco"}, "data: 'coco' does not fit resnet18, a model for classification"),
        ("resnet18", {"data": "oscar"}, "data: 'oscar' does not fit resnet18.*Valid: imagenet"),
        (DINO, {"data": "imagenet"}, "data: 'imagenet' does not fit zoo/dino-tiny"),
        (SEGFORMER, {"data": "imagenet"}, "'imagenet' does not fit zoo/segformer-b0.*Valid: cityscapes"),
        (BERT, {"data": "imagenet"}, "does not fit zoo/bert-tiny, a model for answering. Valid: squad"),
        (GPT, {"data": "imagenet"}, "does not fit zoo/gpt-tiny, a model for language. Valid: tokens, oscar"),
        ("maskrcnn_resnet50_fpn", {"data": "coco"}, "learns more than boxes"),
        (DINO, {"label_smoothing": 0.1}, "label_smoothing: detection has none"),
        (SEGFORMER, {"label_smoothing": 0.1}, "label_smoothing: segmentation has none"),
        (BERT, {"label_smoothing": 0.1}, "label_smoothing: question answering has none. Leave it out"),
        *(
            (model, {"decode": "device"}, f"decode: 'device' is not possible for {DATA[model]}")
            for model in DATA
        ),
        (DINO, {"decode": "host"}, "decode: synthetic images are not encoded"),
        (BERT, {"decode": "host"}, "decode: 'host' is not possible for squad"),
        (DINO, {"source": "resident"}, "source: 'resident' is not possible for coco"),
        (SEGFORMER, {"source": "resident"}, "source: 'resident' is not possible for cityscapes"),
        (
            BERT,
            {"source": "loader"},
            "source: 'loader' is not possible for squad. Valid: auto, synthetic, resident",
        ),
        (GPT, {"source": "loader"}, "source: 'loader' is not possible for oscar"),
        (DINO, {"workers": 2}, "source: a loader reads files, and coco is not here.*--accel-data"),
        (SEGFORMER, {"workers": 1}, "source: .*--accel-data"),
        (BERT, {"workers": 1}, "workers: squad is read from memory, without a loader. Leave workers out"),
        (GPT, {"workers": 2}, "workers: .*Leave workers out"),
        (BERT, {"sequence": 513}, "sequence: 513 is too much for zoo/bert-tiny. Valid: 512 or less"),
        (BERT, {"sequence": 8}, "sequence: 8 tokens .* are too few. Valid: 16 tokens or more"),
        (
            BERT,
            {"vocabulary": 40_000},
            "vocabulary: 40000 is too much for zoo/bert-tiny. Valid: 30522 or less",
        ),
        (
            BERT,
            {"num_classes": 2},
            "num_classes: zoo/bert-tiny reads tokens, and has no classes. Leave it out",
        ),
        (SEGFORMER, {"num_classes": 256}, "num_classes: 256 are too many.*Valid: 255 or less"),
        (BERT, {"model_options": {"heads": 3}}, "heads: 3 do not divide a width of 128"),
    ],
)
def test_options_that_do_not_fit_a_task_are_refused_with_the_remedy(model, options, problem):
    sizes = {"batch_size": 2, "data": DATA.get(model)} | SIZES.get(model, {})
    with pytest.raises(ValueError, match=problem):
        TrainStep.build(model, **sizes | options)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_missing_set_becomes_synthetic_unless_it_is_required(plan, tmp_path, recwarn):
    def opened(**options):
        return plan.open(step_config(**options))

    for options in ({}, {"data_root": tmp_path, "source": "synthetic"}):
        found = opened(**options)
        assert isinstance(found.source, RotatingSource)
        assert found.configuration == {"data_source": "synthetic", "distinct_batches": 4}
    assert not recwarn.list
    with pytest.warns(SyntheticDataWarning, match="not found.*Synthetic data replaces it"):
        assert isinstance(opened(data_root=tmp_path).source, RotatingSource)
    for root in (None, tmp_path):
        with pytest.raises(DataError, match=r"(?s)Real data is required"):
            opened(data_root=root, data_required=True)
