"""SegFormer and DeepLabV3+: published sizes, the same outputs as their library, one graph."""

from __future__ import annotations

import copy
from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F

from pytest_accel.workloads.models import build
from pytest_accel.workloads.models.build import build_model
from pytest_accel.workloads.models.segmentation import (
    FusedAttention,
    ImagePooling,
    query_parts,
    upsample_pixels,
    upsample_planes,
)
from pytest_accel.workloads.tasks.segmentation import MaskPlan
from tests.support.plans import counted_flops

smp = pytest.importorskip("segmentation_models_pytorch")
CORNERS = {"scale_factor": 4, "mode": "bilinear", "align_corners": False}
SEGFORMER, DEEPLAB = "zoo/segformer-b0", "zoo/deeplabv3plus-r18"


@pytest.fixture(scope="module")
def models():
    """One of each, never changed: a test takes a copy."""
    return {name: build_model(name) for name in (SEGFORMER, DEEPLAB)}


def without_chance(model):
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
        if hasattr(layer, "drop_prob"):
            layer.drop_prob = 0.0
    return model


def images(count=2, size=(64, 64), seed=0):
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(seed))


# Sizes.


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
        assert all(isinstance(block.attn, FusedAttention) for each in blocks for block in each)


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


# Outputs against the library.


def segformer_of_the_library():
    return smp.Segformer("mit_b0", encoder_weights=None, classes=19)


def deeplab_of_the_library():
    theirs = smp.DeepLabV3Plus(
        "resnet18", encoder_weights=None, classes=19, encoder_output_stride=8, decoder_channels=512
    )
    theirs.decoder.up = nn.Upsample(**CORNERS | {"scale_factor": 2})
    return theirs


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("name", "library"), [(SEGFORMER, segformer_of_the_library), (DEEPLAB, deeplab_of_the_library)]
)
def test_models_equal_their_library_with_aligned_corners_off(models, name, library, memory_format):
    ours = copy.deepcopy(models[name][0]).eval().to(memory_format=memory_format)
    theirs = library().eval()
    shared = {key: value for key, value in ours.state_dict().items() if not key.startswith("auxiliary_head")}
    theirs.load_state_dict(shared)  # strict: the names are the same
    theirs.segmentation_head[1] = nn.Upsample(**CORNERS)
    read = images(2, (64, 96))
    with torch.inference_mode():
        said, expected = ours(read.to(memory_format=memory_format)), theirs(read)
    assert said.shape == (2, 19, 64, 96)
    torch.testing.assert_close(said, expected, rtol=1e-4, atol=1e-5)


def test_operation_count_of_segformer_equals_that_of_its_library(models):
    plan = MaskPlan(name="cityscapes", batch_size=2, crop=(64, 96))
    theirs = segformer_of_the_library()
    loss = plan.loss(0.0)[1]
    assert counted_flops(models[SEGFORMER][0], plan, loss=loss) == counted_flops(theirs, plan, loss=loss) > 0


def test_deeplab_has_a_second_output_only_in_training(models):
    model = copy.deepcopy(models[DEEPLAB][0])
    main, auxiliary = model.train()(images())
    assert main.shape == auxiliary.shape == (2, 19, 64, 64)
    assert model.eval()(images()).shape == (2, 19, 64, 64)


# Attention, in parts.


@pytest.mark.parametrize(("batch", "size"), [(1, 64), (3, 64), (1, 8)])
def test_attention_in_parts_equals_attention_with_gradients(batch, size):
    from segmentation_models_pytorch.encoders.mix_transformer import Attention

    torch.manual_seed(0)
    theirs = Attention(16, num_heads=2, qkv_bias=True, sr_ratio=4)
    ours = FusedAttention(copy.deepcopy(theirs))
    tokens = torch.randn(batch, size * size, 16)
    assert (query_parts(batch * 2, size * size) > 1) == (size == 64)
    results = []
    for attention in (ours, theirs):
        read = tokens.clone().requires_grad_()
        mixed = attention(read, size, size)
        mixed.square().sum().backward()
        weights = dict(attention.named_parameters())
        results.append((mixed, read.grad, weights["kv.weight"].grad, weights["sr.weight"].grad))
    for said, expected in zip(*results, strict=True):
        torch.testing.assert_close(said, expected, rtol=1e-3, atol=1e-4)


# Upsampling.


@pytest.mark.parametrize("way", [upsample_planes, upsample_pixels])
@pytest.mark.parametrize(
    ("source", "target"), [((4, 6), (16, 24)), ((3, 5), (6, 40)), ((1, 1), (4, 8)), ((5, 4), (7, 9))]
)
def test_upsampling_by_products_equals_interpolate(way, source, target):
    torch.manual_seed(0)
    small = torch.randn(2, 3, *source)
    gradient = torch.randn(2, 3, *target)
    results = []
    for enlarge in (way, lambda read, size: F.interpolate(read, size, mode="bilinear", align_corners=False)):
        read = small.clone().requires_grad_()
        large = enlarge(read, target)
        large.backward(gradient)
        results.append((large, read.grad))
    for said, expected in zip(*results, strict=True):
        torch.testing.assert_close(said, expected, rtol=1e-4, atol=1e-5)


def test_pooled_branch_is_constant():
    branch = ImagePooling(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(4)).train()
    said = branch(torch.randn(2, 4, 3, 5))
    assert said.shape == (2, 4, 3, 5)
    assert torch.equal(said, said[..., :1, :1].expand_as(said))


# One graph.


@pytest.mark.parametrize(("name", "size"), [(SEGFORMER, 64), (DEEPLAB, 32)])
def test_forward_and_loss_are_one_graph(models, name, size):
    model = without_chance(copy.deepcopy(models[name][0])).train().to(memory_format=torch.channels_last)
    plan = MaskPlan(name="cityscapes", batch_size=2, crop=(size, size))
    loss = plan.loss(0.0)[1]

    def forward_loss(inputs, masks):
        return loss(model(inputs), masks)

    counter = CompileCounter()
    torch.compiler.reset()
    compiled = torch.compile(forward_loss, backend=counter, dynamic=False, fullgraph=True)
    try:
        for index in range(2):
            inputs, masks = plan.make(
                index, seed=0, device=torch.device("cpu"), dtype=torch.float32, memory_format="channels_last"
            )
            losses, gradients = [], []
            for each in (compiled, forward_loss):  # the second enlarges as torch does
                model.zero_grad()
                result = each(inputs, masks)
                result.backward()
                losses.append(result.detach())
                gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
            torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(*gradients, rtol=1e-2, atol=1e-3)
    finally:
        torch.compiler.reset()
    assert counter.frame_count == 1
