"""Labelled image sets: all pixels in memory (CIFAR-100, MNIST, digits), or JPEGs in folders and tar shards.

Shards are as webdataset writes them: `key.jpg` beside `key.cls`, not compressed. An index of offsets, built once, makes every
image readable by itself, as in a folder.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pytest_accel.measure.arguments import unknown_value
from pytest_accel.storage.files import replace_file
from pytest_accel.workloads.data import files
from pytest_accel.workloads.data.loader import ArrayImages, EncodedImages

CIFAR_RECORD_BYTES = 2 + 3 * 32 * 32  # the coarse label, the fine one, then red, green and blue planes
MNIST_PREFIX = {"train": "train", "test": "t10k"}
DIGITS_MAX = 16  # a value counts the inked pixels of a 4 x 4 block
SPLIT_FOLDERS = {"train": ("train",), "test": ("val", "test")}
Images: TypeAlias = ArrayImages | EncodedImages


def open_images(root: Path | None, name: str, split: files.Split) -> Images:
    """Open one split of a named set under the root; `digits` needs no root.

    DataMissing where the set is not there, DataError where it is and cannot be read.
    """
    if name not in files.IMAGE_SETS:
        raise unknown_value("data", name, sorted(files.IMAGE_SETS))
    match name:
        case "digits":
            return _read_digits(split)
        case "cifar100":
            return _read_cifar100(root, split)
        case "mnist":
            return _read_mnist(root, split)
    folder = files.find_folder(root, name, "food-101" if name == "food101" else name)
    for each in SPLIT_FOLDERS[split]:
        if shards := sorted((folder / each).glob("*.tar")):
            return open_shards(shards)
    return _open_food101(folder, split) if name == "food101" else _open_imagenet(folder, split)


def _in_memory(images: Tensor, labels: Any, path: Path) -> ArrayImages:
    if len(images) != len(labels):
        raise files.unreadable(path, f"{len(labels)} labels for {len(images)} images")
    return ArrayImages(images=images.contiguous(), labels=torch.as_tensor(labels, dtype=torch.int64))


def _read_cifar100(root: Path | None, split: files.Split) -> ArrayImages:
    """Read the binary file where it is there, else the published pickle and no other: a pickle is a program."""
    folder = files.find_folder(root, "cifar100", "cifar-100-binary", "cifar-100-python")
    if folder.name == "cifar-100-python":
        from torchvision.datasets import CIFAR100

        try:
            with files.reading(folder):
                published = CIFAR100(folder.parent, train=split == "train")  # it checks all MD5s
        except files.DataError:
            raise
        except RuntimeError:
            problem = "not the published files, and another pickle could run code"
            remedy = "Extract cifar-100-python.tar.gz again. For other images write cifar-100-binary/."
            raise files.unreadable(folder, problem, remedy) from None
        return _in_memory(torch.from_numpy(published.data).permute(0, 3, 1, 2), published.targets, folder)
    path = folder / f"{split}.bin"
    data = files.read_bytes(path)
    if len(data) % CIFAR_RECORD_BYTES:
        raise files.unreadable(path, f"torn: {len(data)} bytes are not whole records of {CIFAR_RECORD_BYTES}")
    records = data.reshape(-1, CIFAR_RECORD_BYTES)
    return _in_memory(records[:, 2:].reshape(-1, 3, 32, 32), records[:, 1], path)


def _read_mnist(root: Path | None, split: files.Split) -> ArrayImages:
    from torchvision.datasets import mnist

    folder, prefix = files.find_folder(root, "mnist", "MNIST/raw"), MNIST_PREFIX[split]
    labels = folder / f"{prefix}-labels-idx1-ubyte"
    images = _read_idx(mnist.read_image_file, folder / f"{prefix}-images-idx3-ubyte")
    return _in_memory(images[:, None], _read_idx(mnist.read_label_file, labels), labels)


def _read_idx(read: Callable[[Path], Tensor], path: Path) -> Tensor:
    with files.reading(path):
        try:
            return read(path)
        except (ValueError, TypeError, KeyError, AssertionError, RuntimeError) as error:
            raise files.unreadable(path, f"torn, or not gunzipped: {error}") from None


def _read_digits(split: files.Split) -> ArrayImages:
    """Return scikit-learn's 8 x 8 digits, the first rows as train and the last as test: their writers differ."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise files.missing(
            "digits", ["scikit-learn, which carries it"], "Run: pip install scikit-learn"
        ) from None
    digits, train = load_digits(), files.IMAGE_SETS["digits"].train_images
    part = slice(train) if split == "train" else slice(train, None)
    images = (digits.images[part].astype(np.int64) * 255 // DIGITS_MAX).astype(np.uint8)
    return ArrayImages(images=torch.from_numpy(images)[:, None], labels=torch.from_numpy(digits.target[part]))


def _open_files(root: Path, images: Sequence[tuple[str | bytes, int]]) -> EncodedImages:
    if not images:
        remedy = "Valid: <class>/*.JPEG, or *.tar shards with a .jpg and a .cls for each image."
        raise files.unreadable(root, "holds no image", remedy)
    names = np.array([os.fsencode(path) for path, _ in images])
    return EncodedImages(root=str(root), names=names, labels=torch.tensor([label for _, label in images]))


def _open_imagenet(folder: Path, split: files.Split) -> EncodedImages:
    """Index `{train,val}/<class>/*.JPEG`; classes are numbered in the order of the training folders' names."""
    names = SPLIT_FOLDERS[split]
    split_folder = next((folder / name for name in names if (folder / name).is_dir()), folder / names[0])
    there = {each.name for each in split_folder.glob("[!.]*/")}
    classes = sorted(each.name for each in (folder / "train").glob("[!.]*/")) or sorted(there)
    images: list[tuple[str, int]] = []
    for number, name in enumerate(classes):
        if name in there:
            with files.reading(split_folder / name):
                listed = sorted(os.listdir(split_folder / name))  # noqa: PTH208 - a million of them
            jpegs = [each for each in listed if each.lower().endswith(files.JPEG_ENDINGS) and each[0] != "."]
            images += [(f"{name}/{each}", number) for each in jpegs]
    return _open_files(split_folder, images)


def _open_food101(folder: Path, split: files.Split) -> EncodedImages:
    """Index `images/<class>/<id>.jpg` in the order of `meta/<split>.json`."""
    path = folder / "meta" / f"{split}.json"
    listed = files.read_json(path)
    try:
        numbers = {name: number for number, name in enumerate(sorted(listed))}
        images = [(f"{image}.jpg", numbers[name]) for name, images in listed.items() for image in images]
    except (AttributeError, TypeError) as error:
        raise files.unreadable(path, f"not lists of images by class: {error}") from None
    return _open_files(folder / "images", images)


_AGAIN = "Copy or write the shard again: key.jpg and key.cls for each image, and nothing compressed."
_MEMBER = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)")  # key and extension, as webdataset separates them
_TAIL_BYTES = 1 << 20  # of zeros after the end; tar's own padding is at most 10 KiB by default
_INDEX = 3  # increase it when the columns of an index change


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardImages(EncodedImages):
    shards: tuple[str, ...]  # names
    places: NDArray[Any]  # of each image: shard, offset, size

    @property
    def groups(self) -> tuple[int, ...]:
        """The number of images of each shard, which are read in order: disks are faster that way."""
        return tuple(np.bincount(self.places["shard"]).tolist())

    def name(self, index: int) -> str:
        return f"{self._shard(index)}: {os.fsdecode(self.names[index])}"

    def read(self, index: int) -> Tensor:
        place = self.places[index]
        data = np.empty(place["size"], np.uint8)
        with files.reading(self.name(index)):
            count = os.preadv(_opened(self._shard(index)).fileno(), [data.data], int(place["offset"]))
        if not 0 < count == len(data):
            raise files.unreadable(self.name(index), f"short: {count} of {len(data)} bytes came", _AGAIN)
        return torch.from_numpy(data)

    def _shard(self, index: int) -> str:
        return f"{self.root}/{self.shards[self.places[index]['shard']]}"


@lru_cache(maxsize=16)  # a file closes with its last user
def _opened(path: str) -> io.FileIO:
    return io.FileIO(path)


def open_shards(paths: list[Path]) -> ShardImages:
    """Open the shards of a split. Their index is cached: tarfile takes minutes for all of ImageNet."""
    state = str(_INDEX)
    for path in paths:
        with files.reading(path):
            status = path.stat()
        state += f"/{path.absolute()} {status.st_size} {status.st_mtime_ns}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pytest-accel")  # noqa: PTH111 - raises without a home
    cached = cache / f"shards-{hashlib.blake2b(os.fsencode(state), digest_size=8).hexdigest()}.npy"
    try:
        index = np.load(cached, allow_pickle=False)
    except (OSError, ValueError, EOFError):  # not there, or damaged
        rows = [(*image, shard) for shard, path in enumerate(paths) for image in _members(path)]
        numbers = [(column, np.int64) for column in ("label", "offset", "size", "shard")]
        index = np.array(rows, np.dtype([("name", f"S{max(len(row[0]) for row in rows)}"), *numbers]))
        buffer = io.BytesIO()
        np.save(buffer, index, allow_pickle=False)
        with suppress(OSError):  # the next session builds it again
            cached.parent.mkdir(parents=True, exist_ok=True)
            replace_file(cached, buffer.getvalue())
    return ShardImages(
        root=str(paths[0].parent),
        names=np.array(index["name"]),
        labels=torch.from_numpy(np.array(index["label"])),
        shards=tuple(path.name for path in paths),
        places=index[["shard", "offset", "size"]],
    )


def _members(path: Path) -> list[tuple[bytes, int, int, int]]:
    images: dict[str, tuple[bytes, int, int]] = {}
    classes: dict[str, int] = {}
    where = str(path)
    try:
        with files.reading(path), path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                found = _MEMBER.fullmatch(member.name)
                if found is None or not member.isreg():
                    continue
                key, extension = found[1], found[2].lower()
                where = f"{path}: {member.name}"
                if f".{extension}" in files.JPEG_ENDINGS:
                    images[key] = os.fsencode(member.name), member.offset_data, member.size
                elif extension == "cls":
                    number = os.pread(file.fileno(), min(member.size, 18), member.offset_data)  # of 64 bits
                    classes[key] = int(number)
            tail = os.pread(file.fileno(), _TAIL_BYTES, tar.offset)
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise files.unreadable(where, error, _AGAIN) from None
    # tarfile takes a damaged header for the end, without an error.
    if len(tail) < tarfile.BLOCKSIZE or any(tail):
        raise files.unreadable(where, "torn or damaged after this member", _AGAIN)
    if not images:
        raise files.unreadable(path, "holds no image", _AGAIN)
    if unpaired := images.keys() ^ classes.keys():
        problem = "an image without .cls, or a .cls without an image"
        raise files.unreadable(f"{path}: {min(unpaired)}", problem, _AGAIN)
    return [(name, classes[key], offset, size) for key, (name, offset, size) in images.items()]
