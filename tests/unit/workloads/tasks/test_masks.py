"""Segmentation steps on the CPU: batches, loss, training and real data."""

import pytest
import torch
from torch.nn import functional as F

from pytest_accel.workloads.data.files import IMAGENET_MEAN, IMAGENET_STD
from pytest_accel.workloads.data.sources import LoaderSource
from pytest_accel.workloads.tasks.segmentation import MaskPlan
from tests.support.detection_sets import write_cityscapes
from tests.support.plans import made


def plan(**changes):
    return MaskPlan(**{"name": "cityscapes", "batch_size": 2, "crop": (16, 32)} | changes)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_cityscapes(root / "cityscapes", images=5, size=(32, 64))
    write_cityscapes(root / "cityscapes", images=3, size=(32, 64), part="val", seed=1)
    return root


def test_synthetic_images_are_normalized_bytes():
    images, masks = made(plan(batch_size=4, crop=(128, 256)))
    assert set(masks.unique().tolist()) <= {*range(19), 255}
    lowest = torch.tensor([-mean / std for mean, std in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True)])
    highest = torch.tensor([(1 - mean) / std for mean, std in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True)])
    torch.testing.assert_close(images.amin((0, 2, 3)), lowest, rtol=0, atol=1e-4)
    torch.testing.assert_close(images.amax((0, 2, 3)), highest, rtol=0, atol=1e-4)


def test_loss_is_the_mean_over_labelled_pixels():
    torch.manual_seed(0)
    logits, masks = torch.randn(2, 19, 4, 8), torch.randint(19, (2, 4, 8))
    masks[0, :2] = 255
    name, loss = plan().loss(0.0)
    expected = F.cross_entropy(logits.permute(0, 2, 3, 1)[masks != 255], masks[masks != 255])
    assert name == "pixel_cross_entropy"
    torch.testing.assert_close(loss(logits, masks), expected)


def test_batch_without_labels_has_no_loss():
    logits = torch.randn(1, 19, 4, 8, requires_grad=True)
    loss = plan().loss(0.0)[1](logits, torch.full((1, 4, 8), 255))
    loss.backward()
    assert loss.item() == 0
    assert not logits.grad.any()


@pytest.mark.parametrize("pack", [lambda a, b: (a, b), lambda a, b: {"out": a, "aux": b}])
def test_auxiliary_head_has_a_weight_of_two_fifths(pack):
    main, auxiliary, masks = torch.randn(2, 19, 4, 8), torch.randn(2, 19, 4, 8), torch.randint(19, (2, 4, 8))
    loss = plan().loss(0.0)[1]
    expected = F.cross_entropy(main, masks) + 0.4 * F.cross_entropy(auxiliary, masks)
    torch.testing.assert_close(loss(pack(main, auxiliary), masks), expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_cityscapes_is_read_through_the_loader(opened, root, workers):
    found = opened(plan(), data_root=root, workers=workers)
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


def test_too_few_classes_for_the_masks_are_refused(opened, root):
    with pytest.raises(ValueError, match="num_classes: 5 do not fit the labels of cityscapes here, 0 to 18"):
        opened(plan(labels=5), data_root=root)
