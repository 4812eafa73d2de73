"""SegFormer and DeepLabV3+: published sizes, the layers of their library, one graph."""

import copy
from importlib.util import find_spec

import pytest
import torch

from pytest_accel.workloads.models import build
from pytest_accel.workloads.models.build import build_model
from pytest_accel.workloads.tasks.segmentation import MaskPlan
from tests.support.graphs import traced

# Found, not imported: every worker of xdist would.
pytestmark = pytest.mark.skipif(
    find_spec("segmentation_models_pytorch") is None, reason="needs segmentation-models-pytorch"
)
SEGFORMER, DEEPLAB = "zoo/segformer-b0", "zoo/deeplabv3plus-r18"


@pytest.fixture(scope="module")
def models():
    """One of each, never changed: a test takes a copy."""
    return {name: build_model(name) for name in (SEGFORMER, DEEPLAB)}


def images(count=2, size=(64, 64), seed=0):
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("name", "parameters", "crop"),
    [
        ("zoo/segformer-b0", 3_719_027, (1024, 1024)),
        ("zoo/segformer-b4", 61_373_395, (1024, 1024)),
        ("zoo/deeplabv3plus-r18", 14_540_214, (512, 1024)),
        ("zoo/deeplabv3plus-r101", 52_062_582, (512, 1024)),
    ],
)
def test_models_have_the_published_parameters_and_crop(name, parameters, crop):
    model, info = build_model(name)
    assert (info.parameters, info.task, info.crop) == (parameters, "segmentation", crop)
    # A Mix Transformer's blocks have a convolution or two for five linear layers, and read tokens: channels last.
    assert info.convolutional
    if name == "zoo/segformer-b4":
        blocks = [getattr(model.encoder, f"block{stage}") for stage in (1, 2, 3, 4)]
        assert [len(each) for each in blocks] == [3, 8, 27, 3]
        assert [each[0].attn.q.in_features for each in blocks] == [64, 128, 320, 512]


def test_classes_and_the_width_of_the_decoder_can_be_chosen():
    model, info = build_model(SEGFORMER, num_classes=7, decoder_channels=768)
    assert info.parameters == 6_091_123 - 12 * 769  # with 19 classes, less 12 of them
    assert model.segmentation_head[0].out_channels == 7
    model, _ = build_model(DEEPLAB, num_classes=7, decoder_channels=64)
    assert [each.shape for each in model(images())] == [(2, 7, 64, 64)] * 2


def test_missing_library_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setattr(build, "find_spec", lambda name: None if "segmentation" in name else find_spec(name))
    with pytest.raises(ValueError, match=r"zoo/segformer-b0.*: pip install segmentation-models-pytorch$"):
        build_model(SEGFORMER)


@pytest.mark.parametrize("name", [SEGFORMER, DEEPLAB])
def test_layers_are_those_of_the_library(models, name):
    model, _ = models[name]
    network = getattr(model, "network", model)
    packages = {type(part).__module__.partition(".")[0] for part in network.modules()}
    assert "segmentation_models_pytorch" in packages
    assert "pytest_accel" not in packages


def test_deeplab_returns_the_librarys_output_and_in_training_an_auxiliary_one(models):
    model = copy.deepcopy(models[DEEPLAB][0]).train()
    torch.manual_seed(0)  # of dropout
    main, auxiliary = model(images())
    torch.manual_seed(0)
    assert torch.equal(main, model.network(images()))
    assert main.shape == auxiliary.shape == (2, 19, 64, 64)
    with torch.inference_mode():
        assert torch.equal(model.eval()(images()), model.network(images()))


@pytest.mark.parametrize("name", [SEGFORMER, DEEPLAB])
def test_forward_and_loss_are_one_graph(models, name):
    model = copy.deepcopy(models[name][0]).train().to(memory_format=torch.channels_last)
    plan = MaskPlan(name="cityscapes", batch_size=2, crop=(64, 64))
    loss = plan.loss(0.0)[1]
    batch = plan.make(0, seed=0, device=torch.device("cpu"), memory_format="channels_last")
    found, _ = traced(lambda inputs, masks: loss(model(inputs), masks), *batch, fullgraph=True)
    assert torch.isfinite(found)
