"""Models by name or callable: sizes, seeds, no downloads; GPT, wide ResNet and autoencoder of the zoo."""

import socket

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_accel.workloads.models.build import build_model
from pytest_accel.workloads.models.gpt import GptShape, gelu, rotary_angles, rotate
from pytest_accel.workloads.step import TrainStep
from tests.support.graphs import traced
from tests.support.plans import counted_flops, plan_data

# By name.


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
    "zoo/gpt-117m": 123_606_528,  # with a vocabulary padded to 50,304
    "zoo/gpt-800m": 908_464_128,
}


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_parameter_counts_are_those_of_the_papers(name, parameters):
    _, info = build_model(name, device="meta")
    assert info.parameters == parameters


@pytest.mark.parametrize(
    ("name", "convolutional"),
    [
        ("resnet18", True),
        ("vgg16", True),
        ("timm/convnext_tiny", True),
        ("vit_b_16", False),
        ("swin_t", False),
        ("timm/vit_tiny_patch16_224", False),
    ],
)
def test_convolutional_models_are_recognized(name, convolutional):
    _, info = build_model(name, device="meta")
    assert info.convolutional is convolutional


def test_maxvit_is_built_for_its_image_size():
    model, _ = build_model("maxvit_t", image_size=448, device=torch.device("meta"))
    assert model(torch.zeros(2, 3, 448, 448, device="meta")).shape == (2, 1000)


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
        ("zoo/gpt-117", "'zoo/gpt-117m'"),
        ("hub/resnet50", "is not known. Names come from"),
        ("retinanet_resnet50_fpn", "is not known"),
    ],
)
def test_unknown_model_names_the_nearest_and_the_libraries(name, hint):
    with pytest.raises(ValueError, match="Names come from torchvision") as error:
        build_model(name)
    assert hint in str(error.value)
    assert name in str(error.value)


# Wide ResNet and autoencoder.


def test_wide_resnet_has_the_published_parameters():
    model, info = build_model("zoo/wide_resnet", num_classes=100, device="meta")
    assert info.parameters == 17_175_412
    assert (info.task, info.convolutional) == ("classification", True)
    plan = plan_data("cifar100", info, batch_size=1)
    assert plan.shape == (3, 32, 32)
    assert counted_flops(model, plan) / 2 == pytest.approx(2.41e9, rel=0.005)  # multiply-adds, forward


@pytest.mark.parametrize("name", ["zoo/autoencoder", "zoo/autoencoder-tiny"])
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32), (1, 8)])
def test_autoencoder_returns_the_shape_of_its_input(name, channels, size):
    model, info = build_model(name, channels=channels, device="meta")
    images = torch.empty(2, channels, size, size, device="meta")
    assert model(images).shape == images.shape
    assert info.task == "reconstruction"


def test_wrong_millions_are_refused():
    with pytest.raises(ValueError, match=r"millions: resnet18 has 11.7 million parameters, not 25.6"):
        TrainStep.build("resnet18", batch_size=2, image_size=32, millions=25.6)
    with TrainStep.build("resnet18", batch_size=2, image_size=32, millions=11.7) as step:
        assert "millions" not in step.configuration


# GPT.


SMALL = {"layers": 2, "width": 32, "heads": 2, "sequence": 16, "vocabulary": 100}


@pytest.fixture
def gpt():
    model, _ = build_model("zoo/gpt-tiny", **SMALL)
    return model.eval()


@torch.no_grad()
def test_later_token_does_not_change_earlier_logits(gpt):
    tokens = torch.randint(100, (2, 16))
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 100
    before, after = gpt(tokens), gpt(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_rotary_scores_depend_on_distance_alone():
    cos, sin = rotary_angles(GptShape(**SMALL))
    q, k = torch.randn(16), torch.randn(16)
    turned_q, turned_k = rotate(q.expand(16, 16), cos, sin), rotate(k.expand(16, 16), cos, sin)
    scores = turned_q @ turned_k.T
    for distance in range(16):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-4)


def test_compiled_gelu_is_the_same_function():
    x = torch.linspace(-40, 40, 4001, dtype=torch.float64, requires_grad=True)
    found, seen = traced(gelu, x)
    expected = F.gelu(x, approximate="tanh")
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(each.sum(), x)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients)
    assert any("sigmoid" in each for each in seen)


def test_checkpointing_gives_the_same_gradients_and_operations():
    tokens = torch.randint(100, (2, 16))
    found, runs, counts = [], [], []
    for options in ({}, {"checkpoint": True}):
        model, info = build_model("zoo/gpt-tiny", **SMALL, **options)
        plan = plan_data("tokens", info, batch_size=2)
        counts.append(counted_flops(model, plan, loss=plan.loss(0.0)[1]))
        runs.append(0)
        model.blocks[0].register_forward_pre_hook(lambda *_: runs.__setitem__(-1, runs[-1] + 1))
        model(tokens).square().mean().backward()
        found.append([parameter.grad for parameter in model.parameters()])
    assert runs == [1, 2]
    assert counts[0] == counts[1] is not None  # recomputation is no work
    for kept, again in zip(*found, strict=True):
        torch.testing.assert_close(again, kept)


def test_attention_kernel_is_a_fact_and_not_configuration():
    with TrainStep.build("zoo/gpt-tiny", batch_size=1) as step:
        assert step.facts == {"attention": "flash"}  # torch has it for CPUs
        assert "attention" not in step.configuration
    with sdpa_kernel(SDPBackend.MATH), TrainStep.build("zoo/gpt-tiny", batch_size=1) as step:
        assert step.facts == {"attention": "math"}
    with TrainStep.build("resnet18", batch_size=1, image_size=32) as step:
        assert step.facts == {}
