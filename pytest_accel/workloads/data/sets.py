"""Named data sets: shape, size and normalization of the image sets, and the search for any set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSet:
    """A published set of labelled images. The one on disk may be a subset with the same classes."""

    name: str
    classes: int
    image_size: int  # pixels; of encoded sets, the size of crops
    channels: int = 3
    # Per channel, of values from 0 to 1; as torchvision's pretrained models were trained.
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    train_images: int
    mirrors: bool = True  # whether a mirrored image keeps its label: a digit does not


IMAGE_SETS = {
    each.name: each
    for each in (
        ImageSet(name="imagenet", classes=1000, image_size=224, train_images=1_281_167),
        ImageSet(
            name="cifar100",
            classes=100,
            image_size=32,
            mean=(0.5071, 0.4865, 0.4409),
            std=(0.2673, 0.2564, 0.2762),
            train_images=50_000,
        ),
        ImageSet(name="food101", classes=101, image_size=224, train_images=75_750),
        ImageSet(
            name="mnist",
            classes=10,
            image_size=28,
            channels=1,
            mean=(0.1307,),
            std=(0.3081,),
            train_images=60_000,
            mirrors=False,
        ),
        ImageSet(
            name="digits",
            classes=10,
            image_size=8,
            channels=1,
            mean=(0.3046,),  # of the training images, scaled to bytes; a test computes it again
            std=(0.3754,),
            train_images=1_437,
            mirrors=False,
        ),
    )
}


def find_set(root: Path | None, name: str) -> None:
    """Raise DataMissing where a set is not under the root, DataError where it cannot be read; read no more than needed."""
    # torch and NumPy are imported only when a benchmark asks for its set.
    from pytest_accel.workloads.data.detection import open_coco
    from pytest_accel.workloads.data.images import open_images
    from pytest_accel.workloads.data.segmentation import open_cityscapes
    from pytest_accel.workloads.data.text import find_squad, find_texts

    finders: dict[str, Callable[..., object]] = {
        "coco": open_coco,
        "cityscapes": open_cityscapes,
        "squad": find_squad,
        "oscar": find_texts,
    }
    if name in finders:
        finders[name](root, "test")
    elif name in IMAGE_SETS:
        open_images(root, name, "test")
    else:
        valid = ", ".join(sorted((*IMAGE_SETS, *finders)))
        raise ValueError(f"data: {name!r} is not known. Valid: {valid}.")
