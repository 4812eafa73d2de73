"""Segmentation: what its steps read, what they minimise, what is refused; on the CPU, small."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pytest_accel.workloads import InferStep, TrainStep
from pytest_accel.workloads.build import make_batch
from pytest_accel.workloads.data.errors import DataError
from pytest_accel.workloads.data.segmentation import open_cityscapes
from pytest_accel.workloads.data.sets import IMAGENET_MEAN, IMAGENET_STD
from pytest_accel.workloads.data.sources import LoaderSource, RotatingSource
from pytest_accel.workloads.models.build import task_of
from pytest_accel.workloads.tasks.masks import MaskPlan
from tests.support.detection_sets import write_cityscapes
from tests.support.plans import CPU, going_to, made, plan_data, step_config

pytest.importorskip("segmentation_models_pytorch")

SEGFORMER, DEEPLAB = "zoo/segformer-b0", "zoo/deeplabv3plus-r18"
STEP = {"data": "cityscapes", "batch_size": 2, "image_size": 32, "optimizer": "adamw", "lr": 1e-3}


class OnePixel(nn.Module):
    """A model of one's own: a class for each pixel from its colours, and what else is asked of it."""

    def __init__(self, classes=19, returned=lambda logits: logits):
        super().__init__()
        self.classifier = nn.Conv2d(3, classes, 1)
        self.returned = returned

    def forward(self, images):
        return self.returned(self.classifier(images))


def plan(**changes):
    return MaskPlan(**{"name": "cityscapes", "batch_size": 2, "crop": (16, 32)} | changes)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_cityscapes(root / "cityscapes", images=5, size=(32, 64))
    write_cityscapes(root / "cityscapes", images=3, size=(32, 64), part="val", seed=1)
    return root


@pytest.fixture
def opened():
    sources = []

    def feed(plan=plan(), *, task="train", to=None, **choices):  # noqa: B008 - frozen
        found = plan.open(step_config(task, **choices), to or going_to())
        sources.append(found.source)
        return found

    yield feed
    for source in sources:
        source.close()


# What a batch is.


def test_a_made_up_batch_is_normalised_images_and_masks_of_classes_and_none():
    images, masks = made(plan(batch_size=4, crop=(128, 256)))
    assert (images.shape, images.dtype) == ((4, 3, 128, 256), torch.float32)
    assert (masks.shape, masks.dtype) == ((4, 128, 256), torch.int64)
    assert set(masks.unique().tolist()) <= {*range(19), 255}
    assert (masks == 255).any()
    assert (masks != 255).any()
    # Bytes from 0 to 255, as they are normalised.
    lowest = torch.tensor([-mean / std for mean, std in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True)])
    highest = torch.tensor([(1 - mean) / std for mean, std in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True)])
    torch.testing.assert_close(images.amin((0, 2, 3)), lowest, rtol=0, atol=1e-4)
    torch.testing.assert_close(images.amax((0, 2, 3)), highest, rtol=0, atol=1e-4)


def test_the_same_seed_gives_the_same_batch_and_ranks_draw_their_own():
    (images, masks), (again, masks_again) = made(plan()), made(plan())
    assert torch.equal(images, again)
    assert torch.equal(masks, masks_again)
    for changes in ({"rank": 1}, {"seed": 1}, {"index": 1}):
        other, _ = made(plan(), **changes)
        assert not torch.equal(images, other)


def test_a_batch_has_the_type_and_the_format_that_are_asked_for():
    images, _ = made(plan(), dtype=torch.bfloat16, memory_format="channels_last")
    assert images.dtype == torch.bfloat16
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_shapes_without_contents_are_those_of_a_batch_and_so_are_its_bytes():
    batch, on_meta = made(plan()), plan().on_meta()
    assert [(each.shape, each.dtype) for each in batch] == [(each.shape, each.dtype) for each in on_meta]
    assert plan().batch_bytes(torch.float32) == sum(each.nbytes for each in batch)


@pytest.mark.parametrize(
    ("choices", "shape"),
    [
        ({}, "3x1024x1024"),
        ({"image_size": 64}, "3x64x64"),
        ({"model": DEEPLAB}, "3x512x1024"),
        ({"model": OnePixel, "data": "cityscapes"}, "3x512x1024"),
    ],
)
def test_the_crop_is_the_users_then_the_models(choices, shape):
    from pytest_accel.workloads import build_model

    data = choices.pop("data", None)
    _, info = build_model(choices.pop("model", SEGFORMER), **choices)
    found = plan_data(data, info, batch_size=3)
    assert isinstance(found, MaskPlan)
    assert (found.input_shape, found.work, found.unit) == (shape, 3, "images")


def test_a_batch_for_a_model_of_ones_own():
    images, masks = make_batch("cityscapes", batch_size=2, image_size=32, device=CPU)
    assert (images.shape, masks.shape) == ((2, 3, 32, 32), (2, 32, 32))


# What is minimised.


def test_the_loss_is_the_mean_over_pixels_that_have_a_class():
    torch.manual_seed(0)
    logits, masks = torch.randn(2, 19, 4, 8), torch.randint(19, (2, 4, 8))
    masks[0, :2] = 255
    name, loss = plan().loss(0.0)
    expected = F.cross_entropy(logits.permute(0, 2, 3, 1)[masks != 255], masks[masks != 255])
    assert name == "pixel_cross_entropy"
    torch.testing.assert_close(loss(logits, masks), expected)


def test_a_batch_without_any_class_costs_nothing():
    logits = torch.randn(1, 19, 4, 8, requires_grad=True)
    loss = plan().loss(0.0).function(logits, torch.full((1, 4, 8), 255))
    loss.backward()
    assert loss.item() == 0
    assert not logits.grad.any()


@pytest.mark.parametrize("pack", [lambda a, b: (a, b), lambda a, b: {"out": a, "aux": b}])
def test_an_auxiliary_head_counts_two_fifths(pack):
    main, auxiliary, masks = torch.randn(2, 19, 4, 8), torch.randn(2, 19, 4, 8), torch.randint(19, (2, 4, 8))
    loss = plan().loss(0.0).function
    expected = F.cross_entropy(main, masks) + 0.4 * F.cross_entropy(auxiliary, masks)
    torch.testing.assert_close(loss(pack(main, auxiliary), masks), expected)


@pytest.mark.parametrize(
    ("output", "error", "text"),
    [
        (torch.zeros(2, 19, 2, 4), ValueError, r"logits of \(2, 19, 2, 4\) for masks of \(2, 4, 8\)"),
        (torch.zeros(2, 18, 4, 8), ValueError, "19 classes"),
        (torch.zeros(2, 19), ValueError, "as large as the input"),
        ([torch.zeros(2, 19, 4, 8)], TypeError, "returned list.*Pass loss="),
    ],
)
def test_outputs_that_no_loss_can_be_made_of_are_said(output, error, text):
    with pytest.raises(error, match=text):
        plan().loss(0.0).function(output, torch.zeros(2, 4, 8, dtype=torch.long))


# Steps.


@pytest.mark.parametrize("model", [SEGFORMER, DEEPLAB])
def test_a_step_trains_and_says_what_defines_it(model):
    with TrainStep.build(model, **STEP) as step:
        for _ in range(2):
            step()
        step.check()
        assert step.flops_per_step > 1e6
        assert (step.work, step.unit) == (2, "images")
        facts = step.configuration
    expected = {
        "model": model,
        "data": "cityscapes",
        "data_source": "synthetic",
        "batch_size": 2,
        "input_shape": "3x32x32",
        "num_classes": 19,
        "ignored": 255,
        "loss": "pixel_cross_entropy",
    }
    assert expected.items() <= facts.items()


def test_the_loss_falls():
    with TrainStep.build(SEGFORMER, **STEP) as step:
        step()
        first = step.loss_value()
        for _ in range(25):
            step()
        assert step.loss_value() < 0.8 * first


def test_inference_returns_the_main_head_alone():
    with InferStep.build(DEEPLAB, data="cityscapes", batch_size=1, image_size=32) as step:
        step()
        step.check()
        assert step.flops_per_step > 1e6
    assert "loss" not in step.configuration


def test_torchvisions_own_models_are_trained_too():
    with TrainStep.build("lraspp_mobilenet_v3_large", **STEP) as step:
        step()
        step.check()


def test_a_model_of_ones_own_that_is_narrow_is_told_so_before_a_device_is():
    with (
        TrainStep.build(lambda: OnePixel(classes=5), **STEP) as step,
        pytest.raises(ValueError, match="with 19 classes"),
    ):
        step()


def test_fewer_classes_are_drawn_where_they_are_asked_for():
    with TrainStep.build(lambda: OnePixel(classes=5), num_classes=5, **STEP) as step:
        step()
        step.check()
        assert step.configuration["num_classes"] == 5


# Real data.


@pytest.mark.parametrize("workers", [0, 1])
def test_cityscapes_comes_through_the_loader(opened, root, workers):
    found = opened(data_root=root, workers=workers)
    assert isinstance(found.source, LoaderSource)
    assert found.configuration == {
        "data_source": "files",
        "data_images": 5,
        "augment": True,
        "workers": workers,
        "prefetch": 2,
        "decode": "host",
    }
    assert found.order is not None
    for _ in range(4):  # more than an epoch
        images, masks = next(found.source)
        assert (images.shape, images.dtype) == ((2, 3, 16, 32), torch.float32)
        assert (masks.shape, masks.dtype) == ((2, 16, 32), torch.int64)
        assert set(masks.unique().tolist()) <= {*range(19), 255}
        assert bool(torch.isfinite(images).all())


def test_inference_reads_whole_validation_images_in_order(opened, root):
    found = opened(plan(crop=(32, 64)), task="infer", data_root=root, workers=0)
    assert "augment" not in found.configuration
    images, masks = next(found.source)
    pixels, classes = open_cityscapes(root, "test").read(0)
    assert torch.equal(masks[0], classes.to(torch.int64))
    shape = (-1, 1, 1)
    expected = (pixels / 255 - torch.tensor(IMAGENET_MEAN).view(shape)) / torch.tensor(IMAGENET_STD).view(
        shape
    )
    torch.testing.assert_close(images[0], expected, rtol=1e-3, atol=1e-3)


def test_ranks_read_different_images_and_the_same_seed_the_same(opened, root):
    batches = [
        next(
            opened(plan(crop=(32, 64)), to=going_to(rank, 2), data_root=root, workers=0, augment=False).source
        )[0]
        for rank in (0, 1, 0)
    ]
    assert torch.equal(batches[0], batches[2])
    assert not torch.equal(batches[0], batches[1])


def test_ranks_cut_the_same_image_differently(opened, tmp_path):
    write_cityscapes(tmp_path, images=1, size=(32, 64))
    batches = [
        next(opened(to=going_to(rank, 2), data_root=tmp_path, workers=0).source)[0] for rank in (0, 1, 0)
    ]
    assert torch.equal(batches[0], batches[2])
    assert not torch.equal(batches[0], batches[1])


def test_a_step_trains_on_cityscapes(root):
    with TrainStep.build(SEGFORMER, **STEP, data_root=root, workers=0) as step:
        step()
        step.check()
        assert step.configuration["data_source"] == "files"


@pytest.mark.parametrize("damage", ["mask", "image", "size"])
@pytest.mark.parametrize("first", [True, False])
def test_bad_data_is_one_clear_error(opened, tmp_path, damage, first):
    written = write_cityscapes(tmp_path, images=4, size=(32, 64))
    image, mask, _, _ = written[0 if first else -1]
    if damage == "size":
        for path, other, _, _ in write_cityscapes(tmp_path / "other", images=4, size=(16, 32)):
            if path.name == image.name:
                image.write_bytes(path.read_bytes())
                mask.write_bytes(other.read_bytes())
    else:
        (mask if damage == "mask" else image).write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"\.png"):  # noqa: PT012 - the first is read when it is opened
        source = opened(plan(crop=(8, 8)), data_root=tmp_path, workers=0).source
        for _ in range(3):
            next(source)


@pytest.mark.parametrize("root_of", ["none", "empty", "nowhere"])
def test_a_set_that_is_missing_is_synthetic(opened, tmp_path, root_of):
    root = {"none": None, "empty": tmp_path, "nowhere": tmp_path / "nowhere"}[root_of]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = opened(data_root=root)
    assert isinstance(found.source, RotatingSource)
    assert found.configuration == {"data_source": "synthetic", "distinct_batches": 3}
    with pytest.raises(DataError, match=r"cityscapes: not found.*\n.*\nReal data is required"):
        opened(data_root=root, data_required=True)


# What is refused.


@pytest.mark.parametrize(
    ("model", "choices", "text"),
    [
        ("resnet18", {"data": "cityscapes"}, "'cityscapes' does not fit resnet18.*Valid: imagenet"),
        (SEGFORMER, {"data": "imagenet"}, "'imagenet' does not fit zoo/segformer-b0.*Valid: cityscapes"),
        (SEGFORMER, {"label_smoothing": 0.1}, "label_smoothing: segmentation has none"),
        (SEGFORMER, {"source": "resident"}, "source: 'resident' is not possible for cityscapes"),
        (
            SEGFORMER,
            {"decode": "device"},
            "decode: 'device' is not possible for cityscapes. Valid: auto, host",
        ),
        (SEGFORMER, {"decode": "host"}, "decode: synthetic images are not encoded"),
        (SEGFORMER, {"workers": 1}, "source: .*--accel-data"),
        (SEGFORMER, {"source": "loader"}, "source: .*--accel-data"),
    ],
)
def test_wrong_combinations_are_refused_with_the_remedy(model, choices, text):
    with pytest.raises(ValueError, match=text):
        TrainStep.build(model, **STEP | choices)


def test_too_few_classes_for_the_masks_are_refused(opened, root):
    with pytest.raises(ValueError, match="num_classes: 5 are too few for cityscapes, whose masks have 19"):
        opened(plan(labels=5), data_root=root)


def test_names_tell_their_task_without_being_built():
    assert task_of("zoo/segformer-b4") == task_of("zoo/deeplabv3plus-r101") == "segmentation"
    assert task_of("lraspp_mobilenet_v3_large") == "segmentation"
