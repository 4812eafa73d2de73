"""The image data sets that benchmarks know by name: their shape, their size, how they are normalised."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSet:
    """A published set of labelled images. The one on disk may be a part of it, of the same classes."""

    name: str
    classes: int
    image_size: int  # pixels; of encoded sets, whose images differ, what they are cut to
    channels: int = 3
    mean: tuple[float, ...]  # per channel, of values from 0 to 1
    std: tuple[float, ...]
    train_images: int
    test_images: int
    mirrors: bool = True  # whether a mirrored image keeps its label: a digit does not


IMAGENET_MEAN = (0.485, 0.456, 0.406)  # the figures that torchvision's pretrained models were trained with
IMAGENET_STD = (0.229, 0.224, 0.225)

IMAGE_SETS = {
    each.name: each
    for each in (
        ImageSet(
            name="imagenet",
            classes=1000,
            image_size=224,
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            train_images=1_281_167,
            test_images=50_000,  # the validation images: the labels of the test images were never published
        ),
        ImageSet(
            name="cifar100",
            classes=100,
            image_size=32,
            mean=(0.5071, 0.4865, 0.4409),
            std=(0.2673, 0.2564, 0.2762),
            train_images=50_000,
            test_images=10_000,
        ),
        ImageSet(
            name="food101",
            classes=101,
            image_size=224,
            mean=IMAGENET_MEAN,  # as is usual: models for it start from ImageNet's weights
            std=IMAGENET_STD,
            train_images=75_750,
            test_images=25_250,
        ),
        ImageSet(
            name="mnist",
            classes=10,
            image_size=28,
            channels=1,
            mean=(0.1307,),
            std=(0.3081,),
            train_images=60_000,
            test_images=10_000,
            mirrors=False,
        ),
        ImageSet(
            name="digits",
            classes=10,
            image_size=8,
            channels=1,
            mean=(0.3046,),  # computed from the 1,437 training images as formats/digits.py scales them;
            std=(0.3754,),  # tests/unit/workloads/data/test_sets.py computes them again
            train_images=1_437,
            test_images=360,
            mirrors=False,
        ),
    )
}
