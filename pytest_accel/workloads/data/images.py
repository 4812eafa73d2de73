"""Labelled image sets: all pixels in memory, or encoded images that are read one by one."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from pytest_accel.workloads.data.arrays import Arrays, read_cifar100, read_digits, read_mnist
from pytest_accel.workloads.data.encoded import EncodedImages, Files, Shards, find_shards, pack, read_shards
from pytest_accel.workloads.data.errors import (
    existing_root,
    find_folder,
    read_json,
    read_text,
    reading,
    unreadable,
)
from pytest_accel.workloads.data.sets import IMAGE_SETS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from pytest_accel.workloads.data.errors import Split

Tensor: TypeAlias = Any  # torch is untyped here

SPLIT_FOLDERS = {"train": ("train",), "test": ("val", "test")}
JPEG_ENDINGS = (".jpeg", ".jpg")
# Skipping these silently would lose samples.
OTHER_IMAGES = (".bmp", ".gif", ".png", ".tif", ".tiff", ".webp")
FOOD_REMEDY = "Extract food-101.tar.gz again."


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrayImages:
    """A whole set in memory."""

    images: Tensor  # uint8 (N, channels, height, width)
    labels: Tensor  # int64 (N,)

    def __len__(self) -> int:
        return len(self.labels)


Images: TypeAlias = ArrayImages | EncodedImages


def open_images(root: Path | None, name: str, split: Split) -> Images:
    """Open one split of a named set under the root; `digits` needs no root.

    DataMissing where the set is not there, DataError where it is and cannot be read.
    """
    if name not in IMAGE_SETS:
        raise ValueError(f"data: {name!r} is not known. Valid: {', '.join(sorted(IMAGE_SETS))}.")
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
            found = _read_shards(folder, split) or read_food101(folder, split)
        case _:
            folder = find_folder(root, name, "imagenet")
            found = _read_shards(folder, split) or read_imagenet(folder, split)
    return replace(found, labels=_labels(found.labels, name, found.name))


def _read_shards(folder: Path, split: Split) -> Shards | None:
    """Read shards where there are any: they go before files."""
    for each in SPLIT_FOLDERS[split]:
        if shards := find_shards(folder / each):
            return read_shards(shards)
    return None


def _in_memory(arrays: Arrays, name: str) -> ArrayImages:
    images, labels, labels_file = arrays
    if len(images) != len(labels):
        problem = f"{len(labels)} labels for {len(images)} images"
        raise unreadable(labels_file, problem, "Download the set again.")
    checked = _labels(labels, name, lambda index: f"{labels_file}: image {index}")
    return ArrayImages(images=torch.from_numpy(np.ascontiguousarray(images)), labels=checked)


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


def read_imagenet(folder: Path, split: Split) -> Files:
    """Index `{train,val}/<class>/*.JPEG`; classes are numbered in the order of the training folders' names.

    Two listings a class and arrays: torchvision's ImageFolder holds a million tuples, which forked workers copy.
    """
    names = SPLIT_FOLDERS[split]
    split_folder = next((folder / name for name in names if (folder / name).is_dir()), None)
    if split_folder is None:
        raise unreadable(folder / names[0], "missing", "Extract the images of this split there.")
    classes = _class_folders(split_folder)
    if not classes:
        raise unreadable(
            split_folder,
            "holds neither folders of classes nor *.tar shards",
            "Valid: <class>/*.JPEG, or shards with a .jpg and a .cls for each image.",
        )
    train = folder / "train"
    trained = _class_folders(train) if train.is_dir() else classes
    numbers = {name: number for number, name in enumerate(trained or classes)}
    found: list[str] = []
    counts: list[int] = []
    for name in classes:
        if name not in numbers:
            remedy = "Add its folder there, or remove it here: classes are numbered by the training folders."
            raise unreadable(split_folder / name, f"a class that {train} does not have", remedy)
        jpegs = _jpegs(split_folder / name)
        found += jpegs
        counts.append(len(jpegs))
    folder_of = np.repeat(np.arange(len(classes), dtype=np.int32), counts)
    return Files(
        root=str(split_folder),
        folders=tuple(classes),
        folder_of=folder_of,
        names=pack(found),
        labels=np.array([numbers[name] for name in classes], np.int64)[folder_of],
    )


def _class_folders(split_folder: Path) -> list[str]:
    with reading(split_folder), os.scandir(split_folder) as entries:
        return sorted(each.name for each in entries if not each.name.startswith(".") and each.is_dir())


def _jpegs(class_folder: Path) -> list[str]:
    with reading(class_folder), os.scandir(class_folder) as entries:
        names = sorted(each.name for each in entries if not each.name.startswith("."))
    for name in names:
        if name.lower().endswith(OTHER_IMAGES):
            raise unreadable(class_folder / name, "not a JPEG", "Convert it to JPEG, or move it away.")
    jpegs = [name for name in names if name.lower().endswith(JPEG_ENDINGS)]
    if not jpegs:
        remedy = "Extract its images, or remove the empty folder."
        raise unreadable(class_folder, "a class without a JPEG", remedy)
    return jpegs


def read_food101(folder: Path, split: Split) -> Files:
    """Index `images/<class>/<id>.jpg` in the order of `meta/<split>.json`; files are checked when they are read."""
    classes_file, list_file = folder / "meta/classes.txt", folder / "meta" / f"{split}.json"
    classes = sorted(read_text(classes_file, FOOD_REMEDY).split())
    if not classes or len(set(classes)) != len(classes):
        raise unreadable(classes_file, "empty, or a class is listed twice", FOOD_REMEDY)
    numbers = {name: number for number, name in enumerate(classes)}
    listed = read_json(list_file, FOOD_REMEDY)
    if not isinstance(listed, dict) or not all(isinstance(images, list) for images in listed.values()):
        raise unreadable(list_file, "not an object with a list of images for each class", FOOD_REMEDY)
    labels: list[int] = []
    names: list[str] = []
    for name, images in listed.items():
        if name not in numbers:
            raise unreadable(list_file, f"the class {name!r} is not in meta/classes.txt", FOOD_REMEDY)
        for image in images:  # such as "pizza/1001116"
            parts = PurePosixPath(image).parts if isinstance(image, str) else ()
            if len(parts) != 2 or parts[0] != name or parts[1] == "..":
                raise unreadable(list_file, f"{image!r} is not an image of the class {name!r}", FOOD_REMEDY)
            labels.append(numbers[name])
            names.append(f"{parts[1]}.jpg")
    if not names:
        raise unreadable(list_file, "lists no image", FOOD_REMEDY)
    return Files(
        root=str(folder / "images"),
        folders=tuple(classes),
        folder_of=np.array(labels, np.int32),
        names=pack(names),
        labels=np.array(labels, np.int64),
    )
