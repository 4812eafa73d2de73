"""Models by name or callable: sizes, seeds, no downloads."""

from __future__ import annotations

import socket

import pytest
import torch
from torch import nn

from pytest_accel.workloads.models.build import build_model

# Exact counts, as the libraries' documentation and the papers give them.
PARAMETERS = {
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "vit_l_32": 306_535_400,
    "vit_h_14": 633_470_440,  # at 518 px, its own default
    "swin_t": 28_288_354,
    "swin_b": 87_768_224,
    "efficientnet_b0": 5_288_548,
    "efficientnet_b4": 19_341_616,
    "mobilenet_v3_small": 2_542_856,
    "mobilenet_v3_large": 5_483_032,
    "timm/swin_large_patch4_window12_384": 196_735_516,
}


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_parameter_counts_are_those_of_the_papers(name, parameters):
    _, info = build_model(name, device="meta")
    assert info.parameters == parameters


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("resnet50", 224),
        ("vit_h_14", 518),
        ("efficientnet_b4", 380),
        ("inception_v3", 299),
        ("timm/vit_base_patch16_384", 384),
    ],
)
def test_models_report_their_input_size(name, size):
    _, info = build_model(name, device="meta")
    assert (info.image_size, info.channels) == (size, 3)


@pytest.mark.parametrize(
    ("name", "convolutional"),
    [
        ("resnet18", True),
        ("mobilenet_v3_small", True),
        ("vgg16", True),
        ("convnext_tiny", True),
        ("timm/convnext_tiny", True),
        ("vit_b_16", False),
        ("swin_t", False),
        ("timm/vit_tiny_patch16_224", False),
    ],
)
def test_convolutional_models_are_recognized(name, convolutional):
    _, info = build_model(name, device="meta")
    assert info.convolutional is convolutional


def test_callable_builds_a_model():
    _, info = build_model(lambda: nn.Linear(3, 2))
    assert (info.parameters, info.own, info.image_size) == (8, True, None)


def test_callable_that_returns_no_module_is_refused():
    with pytest.raises(TypeError, match="returned int, not an"):
        build_model(lambda: 3)


def test_seed_determines_the_weights_and_not_the_global_state():
    state = torch.random.get_rng_state()
    first, _ = build_model("resnet18", seed=3)
    again, _ = build_model("resnet18", seed=3)
    other, _ = build_model("resnet18", seed=4)
    assert torch.equal(first.conv1.weight, again.conv1.weight)
    assert not torch.equal(first.conv1.weight, other.conv1.weight)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "timm/vit_tiny_patch16_224",
        "zoo/gpt-tiny",
        "zoo/bert-tiny",
        "fasterrcnn_mobilenet_v3_large_320_fpn",
        "deeplabv3_mobilenet_v3_large",
    ],
)
def test_no_model_is_downloaded(name, monkeypatch):
    def refuse(*args):
        raise AssertionError("a model was built through the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    _, info = build_model(name)
    assert info.parameters > 0


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("resnet5O", "Did you mean 'resnet50'"),
        ("resnet51", "'resnet50'"),
        ("timm/vit_tinny_patch16_224", "'timm/vit_tiny_patch16_224'"),
        ("vit_tiny_patch16_224", "'timm/vit_tiny_patch16_224'"),
        ("zoo/gpt-117", "'zoo/gpt-117m'"),
        ("hub/resnet50", "unknown prefix"),
    ],
)
def test_unknown_model_names_the_nearest_and_the_libraries(name, hint):
    with pytest.raises(ValueError, match="Names come from torchvision") as error:
        build_model(name)
    assert hint in str(error.value)
    assert name in str(error.value)


@pytest.mark.parametrize("name", ["r3d_18", "raft_large", "quantized_resnet50"])
def test_model_of_another_task_is_refused_without_a_suggestion(name):
    with pytest.raises(ValueError, match=f"'{name}' of torchvision is for another task") as error:
        build_model(name)
    assert "Did you mean" not in str(error.value)


def test_img_size_of_timm_is_refused_with_image_size():
    with pytest.raises(ValueError, match="write image_size="):
        build_model("timm/vit_tiny_patch16_224", img_size=64)
