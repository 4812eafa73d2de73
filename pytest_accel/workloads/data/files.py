"""Files of data sets: errors, the search for folders, and reading.

RuntimeError
└── DataError        a data set that cannot be read
    └── DataMissing  a data set that is not there; synthetic data may replace it
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

Split: TypeAlias = Literal["train", "test"]

JPEG_ENDINGS = (".jpeg", ".jpg")
AGAIN = "Download or extract it again, check its rights, or take it out of the data set."


class DataError(RuntimeError):
    """A data set that cannot be read: the file, what is wrong with it, what to do."""


class DataMissing(DataError):  # noqa: N818 - reads as what happened
    """The data set is not under the root; the text lists the searched places."""


class SlowDecodingWarning(UserWarning):
    """Decoding on the device will be slower than it could be."""


class SyntheticDataWarning(UserWarning):
    """The named root of real data does not hold the set: synthetic data replaces it."""


def unreadable(where: object, problem: object, remedy: str = AGAIN) -> DataError:
    if isinstance(problem, KeyError):
        problem = f"has no {problem}"
    said = next(iter(str(problem).splitlines()), type(problem).__name__)
    return DataError(f"{where}: {said}\n{remedy}")


def missing(name: str, searched: Iterable[Path | str], remedy: str) -> DataMissing:
    return DataMissing(f"{name}: not found. Looked for {' and '.join(map(str, searched))}.\n{remedy}")


def find_folder(root: Path | None, name: str, *candidates: str) -> Path:
    searched = [root / candidate for candidate in candidates] if root else []
    for folder in searched:
        if folder.is_dir():
            return folder
    remedy = "Download and extract it there, and name the root with --accel-data."
    raise missing(name, searched or ["a root folder, and none was given"], remedy)


@contextmanager
def reading(where: object) -> Iterator[None]:
    """Turn an OSError of opening or reading a file into a DataError that names it."""
    try:
        yield
    except OSError as error:
        raise unreadable(where, f"not readable: {error.strerror or error}") from None


def read_bytes(path: Path | str) -> torch.Tensor:
    """Return the bytes of a file, uint8 in one dimension; DataError where it is missing or empty."""
    with reading(path):
        data = np.fromfile(path, np.uint8)
    if not len(data):
        raise unreadable(path, "empty")
    return torch.from_numpy(data)


def read_json(path: Path, *, object_hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    with reading(path):
        data = path.read_bytes()
    try:
        return json.loads(data, object_hook=object_hook)
    except ValueError as error:
        raise unreadable(path, f"not JSON: {error}") from None


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSet:
    """A published set of labelled images. The one on disk may be a subset with the same classes."""

    classes: int
    image_size: int  # pixels; of encoded sets, the size of crops
    channels: int = 3
    # Per channel, of values from 0 to 1; as torchvision's pretrained models were trained.
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    train_images: int
    mirrors: bool = True  # whether a mirrored image keeps its label: a digit does not


IMAGE_SETS = {
    "imagenet": ImageSet(classes=1000, image_size=224, train_images=1_281_167),
    "cifar100": ImageSet(
        classes=100,
        image_size=32,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        train_images=50_000,
    ),
    "food101": ImageSet(classes=101, image_size=224, train_images=75_750),
    "mnist": ImageSet(
        classes=10,
        image_size=28,
        channels=1,
        mean=(0.1307,),
        std=(0.3081,),
        train_images=60_000,
        mirrors=False,
    ),
    # Mean and deviation of the training images, scaled to bytes; a test computes them again
    "digits": ImageSet(
        classes=10, image_size=8, channels=1, mean=(0.3046,), std=(0.3754,), train_images=1_437, mirrors=False
    ),
}
