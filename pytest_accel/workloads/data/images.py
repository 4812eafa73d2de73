"""A data set as its readers see it: all pixels in memory, or encoded images to be read one by one.

Either is cheap to hand to a forked worker: a few big arrays, no open file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch

from pytest_accel.workloads.data.errors import existing_root, unreadable
from pytest_accel.workloads.data.formats.cifar import read_cifar100
from pytest_accel.workloads.data.formats.digits import read_digits
from pytest_accel.workloads.data.formats.folders import read_folders
from pytest_accel.workloads.data.formats.food101 import read_food101
from pytest_accel.workloads.data.formats.mnist import read_mnist
from pytest_accel.workloads.data.formats.places import Split, find_folder
from pytest_accel.workloads.data.formats.shards import find_shards, read_shards
from pytest_accel.workloads.data.sets import IMAGE_SETS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from pytest_accel.workloads.data.formats.arrays import Arrays
    from pytest_accel.workloads.data.formats.files import Files
    from pytest_accel.workloads.data.formats.shards import Shards

Tensor: TypeAlias = Any  # torch is untyped here

SPLIT_FOLDERS = {"train": ("train",), "test": ("val", "test")}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrayImages:
    """A whole set in memory."""

    images: Tensor  # uint8 (N, channels, height, width)
    labels: Tensor  # int64 (N,)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedImages:
    """JPEGs on disk: files, or members of tar shards."""

    labels: Tensor  # int64 (N,)
    reader: Files | Shards

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def storage(self) -> Literal["files", "shards"]:
        return self.reader.storage

    @property
    def groups(self) -> tuple[int, ...]:
        """The lengths of the runs of images that lie together: one a shard, or one of all files."""
        return self.reader.groups

    def name(self, index: int) -> str:
        """Return where an image lies, for errors."""
        self._check(index)
        return self.reader.name(index)

    def read(self, index: int) -> Tensor:
        """Return the bytes of an image, uint8 in one dimension; DataError where they are missing or too few."""
        self._check(index)
        data = self.reader.read(index)
        if not len(data):
            raise unreadable(self.name(index), "empty", "Download or extract it again.")
        return torch.from_numpy(data)

    def _check(self, index: int) -> None:
        if not 0 <= index < len(self):
            raise IndexError(f"index: {index} is not in a set of {len(self)} images.")


Images: TypeAlias = ArrayImages | EncodedImages


def open_images(root: Path | None, name: str, split: Split) -> Images:
    """Open one split of a named set under the root; `digits` needs no root.

    DataMissing where the set is not there at all, DataError where it is and cannot be read.
    """
    if name not in IMAGE_SETS:
        raise ValueError(f"data: {name!r} is not known. Valid: {', '.join(sorted(IMAGE_SETS))}.")
    if split not in SPLIT_FOLDERS:
        raise ValueError(f"split: {split!r} is not known. Valid: {', '.join(SPLIT_FOLDERS)}.")
    if name == "digits":
        return _in_memory(read_digits(split), name)
    root = existing_root(root, name)
    match name:
        case "cifar100":
            return _in_memory(read_cifar100(root, split), name)
        case "mnist":
            return _in_memory(read_mnist(root, split), name)
        case "food101":
            folder = find_folder(root, name, "food-101", archives=("food-101.tar.gz",))
            return _on_disk(_read_shards(folder, split) or read_food101(folder, split), name)
        case _:
            folder = find_folder(root, name, "imagenet")
            found = _read_shards(folder, split) or read_folders(folder, _split_folder(folder, split))
            return _on_disk(found, name)


def _read_shards(folder: Path, split: Split) -> Shards | None:
    """Shards go before files: who wrote them wants them read."""
    for each in SPLIT_FOLDERS[split]:
        if shards := find_shards(folder / each):
            return read_shards(shards, folder)
    return None


def _split_folder(folder: Path, split: Split) -> Path:
    names = SPLIT_FOLDERS[split]
    for name in names:
        if (folder / name).is_dir():
            return folder / name
    raise unreadable(folder / names[0], "missing", "Extract the images of this split there.")


def _in_memory(arrays: Arrays, name: str) -> ArrayImages:
    if len(arrays.images) != len(arrays.labels):
        raise unreadable(
            arrays.labels_file,
            f"{len(arrays.labels)} labels for {len(arrays.images)} images",
            "Download the set again.",
        )
    labels = _labels(arrays.labels, name, lambda index: f"{arrays.labels_file}: image {index}")
    return ArrayImages(images=torch.from_numpy(np.ascontiguousarray(arrays.images)), labels=labels)


def _on_disk(reader: Files | Shards, name: str) -> EncodedImages:
    return EncodedImages(labels=_labels(reader.labels, name, reader.name), reader=reader)


def _labels(labels: NDArray[np.int64], name: str, where: Callable[[int], str]) -> Tensor:
    classes = IMAGE_SETS[name].classes
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        index = int(wrong[0])
        raise unreadable(
            where(index),
            f"the label {labels[index]} is not one of {name}'s {classes} classes",
            f"Valid: 0 to {classes - 1}. Is it the data set that its folder is named after?",
        )
    return torch.from_numpy(labels)
