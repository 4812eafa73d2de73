"""Labelled image sets: all pixels in memory (CIFAR-100, MNIST, digits), or JPEGs in folders and tar shards."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import torch

from pytest_accel.measure.errors import unknown_value
from pytest_accel.workloads.data.files import (
    IMAGE_SETS,
    JPEG_ENDINGS,
    DataError,
    Split,
    find_folder,
    missing,
    read_bytes,
    read_json,
    reading,
    unreadable,
)
from pytest_accel.workloads.data.loader import ArrayImages, EncodedImages
from pytest_accel.workloads.data.shards import open_shards

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Tensor: TypeAlias = Any  # torch is untyped here
CIFAR_RECORD_BYTES = 2 + 3 * 32 * 32  # the coarse label, the fine one, then red, green and blue planes
CIFAR_PICKLE_BYTES = 200_000_000  # more than the published ones; a limit on what is read for its MD5
MNIST_PREFIX = {"train": "train", "test": "t10k"}
DIGITS_MAX = 16  # a value counts the inked pixels of a 4 x 4 block
SPLIT_FOLDERS = {"train": ("train",), "test": ("val", "test")}
Images: TypeAlias = ArrayImages | EncodedImages
T = TypeVar("T", ArrayImages, EncodedImages)


def open_images(root: Path | None, name: str, split: Split) -> Images:
    """Open one split of a named set under the root; `digits` needs no root.

    DataMissing where the set is not there, DataError where it is and cannot be read.
    """
    if name not in IMAGE_SETS:
        raise unknown_value("data", name, sorted(IMAGE_SETS))
    match name:
        case "digits":
            return _read_digits(split)
        case "cifar100":
            return _read_cifar100(root, split)
        case "mnist":
            return _read_mnist(root, split)
    folder = find_folder(root, name, "food-101" if name == "food101" else name)
    for each in SPLIT_FOLDERS[split]:
        if shards := sorted((folder / each).glob("*.tar")):
            return _checked(open_shards(shards), name)
    return _open_food101(folder, split) if name == "food101" else _open_imagenet(folder, split)


def _checked(images: T, name: str, path: Path | None = None) -> T:
    """Refuse labels without a class: on CUDA a device-side assertion, which ends the process."""
    classes = IMAGE_SETS[name].classes
    wrong = torch.nonzero((images.labels < 0) | (images.labels >= classes)).flatten().tolist()
    if wrong:
        where = images.name(wrong[0]) if isinstance(images, EncodedImages) else f"{path}: image {wrong[0]}"
        problem = f"the label {images.labels[wrong[0]]} is not one of {name}'s {classes} classes"
        raise unreadable(where, problem, "Is it the data set that its folder is named after?")
    return images


# --- in memory --------------------------------------------------------------------------------------


def _in_memory(images: NDArray[np.uint8], labels: Any, name: str, path: Path) -> ArrayImages:
    if len(images) != len(labels):
        raise unreadable(path, f"{len(labels)} labels for {len(images)} images")
    pixels, numbers = torch.from_numpy(np.array(images)), torch.from_numpy(np.array(labels, np.int64))
    return _checked(ArrayImages(images=pixels, labels=numbers), name, path)


def _read_cifar100(root: Path | None, split: Split) -> ArrayImages:
    """Read the binary file where it is there, else the published pickle and no other: a pickle is a program."""
    folder = find_folder(root, "cifar100", "cifar-100-binary", "cifar-100-python")
    if folder.name == "cifar-100-python":
        from torchvision.datasets import CIFAR100

        try:
            with reading(folder):
                for path in (folder / name for name in ("train", "test", "meta")):
                    if path.exists() and not (path.is_file() and path.stat().st_size <= CIFAR_PICKLE_BYTES):
                        problem = (
                            f"no file, or more than {CIFAR_PICKLE_BYTES} bytes; the published one is neither"
                        )
                        raise unreadable(path, problem)
                published = CIFAR100(folder.parent, train=split == "train")  # it checks all MD5s
        except RuntimeError as error:
            if isinstance(error, DataError):
                raise
            problem = "not the published files, and another pickle could run code"
            remedy = "Extract cifar-100-python.tar.gz again. For other images write cifar-100-binary/."
            raise unreadable(folder, problem, remedy) from None
        images = np.ascontiguousarray(published.data.transpose(0, 3, 1, 2))
        return _in_memory(images, published.targets, "cifar100", folder)
    path = folder / f"{split}.bin"
    data = read_bytes(path).numpy()
    if len(data) % CIFAR_RECORD_BYTES:
        raise unreadable(path, f"torn: {len(data)} bytes are not whole records of {CIFAR_RECORD_BYTES}")
    records = data.reshape(-1, CIFAR_RECORD_BYTES)
    return _in_memory(records[:, 2:].reshape(-1, 3, 32, 32), records[:, 1], "cifar100", path)


def _read_mnist(root: Path | None, split: Split) -> ArrayImages:
    folder = find_folder(root, "mnist", "MNIST/raw")
    labels = folder / f"{MNIST_PREFIX[split]}-labels-idx1-ubyte"
    images = _read_idx(folder / f"{MNIST_PREFIX[split]}-images-idx3-ubyte", 28, 28)
    return _in_memory(images[:, None], _read_idx(labels), "mnist", labels)


def _read_idx(path: Path, *extents: int) -> NDArray[np.uint8]:
    """Read a magic number (unsigned bytes, number of dimensions), big-endian dimensions, and one byte a value."""
    data: NDArray[np.uint8] = read_bytes(path).numpy()
    header = 8 + 4 * len(extents)
    count = (len(data) - header) // prod(extents)
    expected = np.array([0x0800 + 1 + len(extents), count, *extents], ">u4").tobytes() if count > 0 else b""
    if data[:header].tobytes() != expected or len(data) != header + count * prod(extents):
        shape = " x ".join(map(str, ("N", *extents)))
        raise unreadable(path, f"torn, or not an idx file of {shape} bytes", "Download and gunzip it again.")
    return data[header:].reshape(-1, *extents)


def _read_digits(split: Split) -> ArrayImages:
    """Return scikit-learn's 8 x 8 digits, the first rows as train and the last as test: their writers differ."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise missing("digits", ["scikit-learn, which carries it"], "Run: pip install scikit-learn") from None
    digits, train = load_digits(), IMAGE_SETS["digits"].train_images
    part = slice(train) if split == "train" else slice(train, None)
    images = (digits.images[part].astype(np.int64) * 255 // DIGITS_MAX).astype(np.uint8)
    return ArrayImages(images=torch.from_numpy(images)[:, None], labels=torch.from_numpy(digits.target[part]))


# --- encoded ----------------------------------------------------------------------------------------


def _open_files(root: Path, images: Sequence[tuple[str | bytes, int]], name: str) -> EncodedImages:
    if not images:
        raise unreadable(
            root,
            "holds no image",
            "Valid: <class>/*.JPEG, or *.tar shards with a .jpg and a .cls for each image.",
        )
    names = np.array([os.fsencode(path) for path, _ in images])
    labels = torch.tensor([label for _, label in images])
    return _checked(EncodedImages(root=str(root), names=names, labels=labels), name)


def _open_imagenet(folder: Path, split: Split) -> EncodedImages:
    """Index `{train,val}/<class>/*.JPEG`; classes are numbered in the order of the training folders' names."""
    names = SPLIT_FOLDERS[split]
    split_folder = next((folder / name for name in names if (folder / name).is_dir()), folder / names[0])
    there = {each.name for each in split_folder.glob("[!.]*/")}
    classes = sorted(each.name for each in (folder / "train").glob("[!.]*/")) or sorted(there)
    images: list[tuple[str, int]] = []
    for number, name in enumerate(classes):
        if name in there:
            with reading(split_folder / name):
                files = sorted(os.listdir(split_folder / name))  # noqa: PTH208 - a million of them
            jpegs = [each for each in files if each.lower().endswith(JPEG_ENDINGS) and each[0] != "."]
            images += [(f"{name}/{each}", number) for each in jpegs]
    return _open_files(split_folder, images, "imagenet")


def _open_food101(folder: Path, split: Split) -> EncodedImages:
    """Index `images/<class>/<id>.jpg` in the order of `meta/<split>.json`."""
    path = folder / "meta" / f"{split}.json"
    listed = read_json(path)
    try:
        numbers = {name: number for number, name in enumerate(sorted(listed))}
        images = [
            (os.fsencode(f"{image}.jpg"), numbers[name])
            for name, images in listed.items()
            for image in images
        ]
    except (AttributeError, TypeError, ValueError) as error:
        raise unreadable(path, f"not lists of images by class: {error}") from None
    return _open_files(folder / "images", images, "food101")
