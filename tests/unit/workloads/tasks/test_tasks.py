"""Options and missing data of every task: errors with the remedy, synthetic data in place of a missing set."""

from functools import partial
from importlib.util import find_spec

import pytest
import torch

from pytest_accel.workloads.data.files import DataError, SyntheticDataWarning
from pytest_accel.workloads.data.sources import RotatingSource
from pytest_accel.workloads.input_pipeline import ALWAYS_SYNTHETIC
from pytest_accel.workloads.models.build import build_model
from pytest_accel.workloads.step import TrainStep
from pytest_accel.workloads.tasks.images import ImagePlan
from pytest_accel.workloads.tasks.segmentation import MaskPlan
from pytest_accel.workloads.tasks.text import QuestionPlan, TokenPlan
from tests.support.plans import plan_data, scene_plan, step_config

# Found, not imported: every worker of xdist would.
pytestmark = pytest.mark.skipif(
    not (find_spec("segmentation_models_pytorch") and find_spec("transformers")),
    reason="needs segmentation-models-pytorch and transformers",
)

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
    ImagePlan(name="cifar100", batch_size=2, classes=100, shape=(3, 32, 32)),
]


@pytest.mark.parametrize(
    ("model", "options", "problem"),
    [
        ("resnet18", {"data": "imagnet"}, "Did you mean 'imagenet'"),
        ("resnet18", {"data": "coco"}, "data: 'coco' does not fit resnet18, a model for classification"),
        (SEGFORMER, {"data": "imagenet"}, "'imagenet' does not fit zoo/segformer-b0.*Valid: cityscapes"),
        (GPT, {"data": "imagenet"}, "does not fit zoo/gpt-tiny, a model for language. Valid: tokens, oscar"),
        (torch.nn.Identity, {"data": "tokens"}, "needs sequence= and vocabulary="),
        ("maskrcnn_resnet50_fpn", {"data": "coco"}, "is not known"),
        (DINO, {"label_smoothing": 0.1}, "label_smoothing: detection has none"),
        (SEGFORMER, {"label_smoothing": 0.1}, "label_smoothing: segmentation has none"),
        (BERT, {"label_smoothing": 0.1}, "label_smoothing: question answering has none. Leave it out"),
        (DINO, {"decode": "device"}, "decode: 'device' is not possible for coco"),
        (DINO, {"decode": "host"}, "decode: synthetic images are not encoded"),
        (BERT, {"decode": "host"}, "decode: 'host' is not possible for squad"),
        (SEGFORMER, {"source": "resident"}, "source: 'resident' is not possible for cityscapes"),
        (BERT, {"source": "loader"}, "source: 'loader' is not possible for squad .*Valid: auto, synthetic"),
        (GPT, {"workers": 2}, "source: 'loader' is not possible for oscar .*leave it out, and workers="),
        (DINO, {"workers": 2}, "source: a loader reads files, and coco is not here.*--accel-data"),
        (BERT, {"sequence": 513}, "sequence: 513 is too much for zoo/bert-tiny. Valid: 512 or less"),
        (BERT, {"sequence": 8}, "sequence: 8 tokens .* are too few. Valid: 16 tokens or more"),
        (BERT, {"vocabulary": 40_000}, "vocabulary: 40000 is too much for zoo/bert-tiny. Valid: 30522"),
        (BERT, {"num_classes": 2}, "num_classes: zoo/bert-tiny reads tokens, and has no classes. Leave it"),
    ],
)
def test_options_that_do_not_fit_a_task_are_refused_with_the_remedy(model, options, problem):
    sizes = {"batch_size": 2, "data": DATA.get(model)} | SIZES.get(model, {})
    with pytest.raises(ValueError, match=problem):
        TrainStep.build(model, **sizes | options)


IMAGES = {"work": 2, "unit": "images"}
MASKS = {"data": "cityscapes", "input_shape": "3x32x32", "num_classes": 19, "ignored": 255}
STEPS = {  # those of detectors are in test_scenes.py
    "zoo/autoencoder-tiny": IMAGES | {"data": "imagenet", "input_shape": "3x32x32", "loss": "mse"},
    SEGFORMER: IMAGES | MASKS | {"loss": "pixel_cross_entropy"},
    "zoo/deeplabv3plus-r18": IMAGES | MASKS,
    "lraspp_mobilenet_v3_large": IMAGES | MASKS,
    BERT: {"work": 2, "unit": "sequences", "data": "squad", "sequence": 64, "loss": "span_cross_entropy"},
    GPT: {"work": 32, "unit": "tokens", "data": "tokens", "input_shape": "16", "loss": "cross_entropy"},
}


@pytest.mark.parametrize("model", STEPS)
def test_training_step_of_every_task_reports_its_configuration(model):
    sizes = SIZES.get(model, SIZES[SEGFORMER])
    with TrainStep.build(model, batch_size=2, clip=1.0, **sizes) as step:
        for _ in range(2):
            step()
        step.check()
        assert step.demand.flops > 1e6
        found = step.configuration | {"work": step.work, "unit": step.unit}
    assert (STEPS[model] | {"model": model, "data_source": "synthetic"}).items() <= found.items()


@pytest.mark.parametrize(
    ("shape", "size", "choices"),
    [
        ("3x1024x1024", None, {"model": SEGFORMER}),
        ("3x64x64", 64, {"model": SEGFORMER}),
        ("3x512x1024", None, {"model": "zoo/deeplabv3plus-r18"}),
        ("3x512x1024", None, {"model": torch.nn.Identity, "data": "cityscapes"}),
        ("384", None, {"model": BERT}),
        ("32", None, {"model": BERT, "sequence": 32}),
    ],
)
def test_size_of_a_sample_is_that_of_the_user_or_of_the_model(shape, size, choices):
    given = {name: choices.pop(name) for name in ("sequence",) if name in choices}
    data = choices.pop("data", None)
    _, info = build_model(**choices, image_size=size)
    assert plan_data(data, info, batch_size=3, **given).input_shape == shape


class Own(torch.nn.Module):
    """A user's model of any task, of one layer."""

    def __init__(self, data):
        super().__init__()
        self.data, self.layer = data, torch.nn.Linear(3, 5)
        self.table = torch.nn.Embedding(1100, 2) if data == "squad" else None

    def forward(self, inputs):
        match self.data:
            case "coco":
                return {"colours": self.layer(inputs.images.mean((2, 3))).square().mean()}
            case "cityscapes":
                return self.layer(inputs.movedim(1, -1)).movedim(-1, 1)
        return self.table(inputs.input_ids).unbind(-1)


@pytest.mark.parametrize(
    ("data", "choices"),
    [
        ("coco", {"image_size": 64}),
        ("cityscapes", {"image_size": 32, "num_classes": 5}),
        ("squad", {"sequence": 32, "vocabulary": 1100}),
    ],
)
def test_users_model_of_every_task_trains(data, choices):
    with TrainStep.build(partial(Own, data), data=data, batch_size=2, **choices) as step:
        step()
        step.check()


@pytest.mark.parametrize(
    ("place", "output", "problem"),
    [
        (0, torch.zeros(()), "returned Tensor, and detection needs .* Pass loss="),
        (0, {"boxes": 1.0}, "returned dict, and detection needs .* Pass loss="),
        (1, torch.zeros(2, 19, 2, 4), r"Tensor of \(2, 19, 2, 4\) for masks of \(2, 4, 8\)"),
        (1, torch.zeros(2, 18, 4, 8), "19 classes"),
        (1, [torch.zeros(2, 19, 4, 8)], "returned list.*Pass loss="),
        (2, torch.zeros(2, 64), "returned Tensor, and an answer needs two.*pass loss="),
        (3, (torch.zeros(2, 16),), "returned tuple, and the cross entropy needs logits. Pass loss="),
    ],
)
def test_output_that_a_loss_cannot_take_is_refused_with_the_remedy(place, output, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        PLANS[place].loss(0.0)[1](output, torch.zeros(2, 4, 8, dtype=torch.long))


@pytest.mark.parametrize(
    "plan", [plan for plan in PLANS if plan.name not in ALWAYS_SYNTHETIC], ids=lambda plan: plan.name
)
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
