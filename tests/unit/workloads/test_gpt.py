"""GPT: causality, rotary positions, published sizes, checkpointing."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_accel.workloads.models.build import build_model
from pytest_accel.workloads.models.gpt import GPT_SHAPES, GptShape, gelu, rotary_angles, rotate
from pytest_accel.workloads.step import TrainStep
from tests.support.graphs import traced

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


@pytest.mark.parametrize(
    ("name", "parameters"), [("zoo/gpt-117m", 123_606_528), ("zoo/gpt-800m", 908_464_128)]
)
def test_parameter_count_follows_from_the_shape(name, parameters):
    shape = GPT_SHAPES[name.removeprefix("zoo/")]
    _, info = build_model(name, device="meta")
    block = 12 * shape.width**2 + 4 * shape.width  # attention 4, MLP 8; two norms
    by_hand = shape.layers * block + shape.padded_vocabulary * shape.width + 2 * shape.width
    assert info.parameters == by_hand == parameters
    assert (info.vocabulary, info.sequence) == (50_257, shape.sequence)


def test_checkpointing_gives_the_same_gradients():
    tokens = torch.randint(100, (2, 16))
    found, runs = [], []
    for options in ({}, {"checkpoint": True}):
        model, _ = build_model("zoo/gpt-tiny", **SMALL, **options)
        runs.append(0)
        model.blocks[0].register_forward_pre_hook(lambda *_: runs.__setitem__(-1, runs[-1] + 1))
        model(tokens).square().mean().backward()
        found.append([parameter.grad for parameter in model.parameters()])
    assert runs == [1, 2]
    for kept, again in zip(*found, strict=True):
        torch.testing.assert_close(again, kept)


def test_recomputation_is_not_counted_as_work():
    counts = set()
    for checkpoint in (False, True):
        options = {"layers": 1, "width": 32, "heads": 2, "checkpoint": checkpoint}
        with TrainStep.build("zoo/gpt-tiny", batch_size=1, model_options=options) as step:
            counts.add(step.demand.flops)
            assert step.configuration["model.checkpoint"] is checkpoint
    assert len(counts) == 1
    assert None not in counts


def test_attention_kernel_is_a_fact_and_not_configuration():
    with TrainStep.build("zoo/gpt-tiny", batch_size=1) as step:
        assert step.facts == {"attention": "flash"}  # torch has it for CPUs
        assert "attention" not in step.configuration
    with sdpa_kernel(SDPBackend.MATH), TrainStep.build("zoo/gpt-tiny", batch_size=1) as step:
        assert step.facts == {"attention": "math"}
    with TrainStep.build("resnet18", batch_size=1, image_size=32) as step:
        assert step.facts == {}
