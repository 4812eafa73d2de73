"""MNIST's idx files, plain or gzipped: a magic number, big-endian dimensions, then a byte a value."""

from __future__ import annotations

import gzip
import zlib
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from pytest_accel.workloads.data import checksums
from pytest_accel.workloads.data.errors import reading, unreadable
from pytest_accel.workloads.data.formats.arrays import Arrays
from pytest_accel.workloads.data.formats.places import find_folder

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from numpy.typing import NDArray

    from pytest_accel.workloads.data.formats.places import Split

PREFIX = {"train": "train", "test": "t10k"}
REMEDY = "Download it again."
_UNSIGNED_BYTE = 0x08  # the third byte of the magic number; the fourth counts the dimensions
_MOST_INFLATION = 1032  # deflate makes no more bytes of one: zlib's technical notes


def read_mnist(root: Path, split: Split) -> Arrays:
    folder = find_folder(root, "mnist", "MNIST/raw", "mnist")
    images_file = _found(folder, f"{PREFIX[split]}-images-idx3-ubyte")
    labels_file = _found(folder, f"{PREFIX[split]}-labels-idx1-ubyte")
    images = _read_idx(images_file, folder, dimensions=3)
    if images.shape[1:] != (28, 28):
        raise unreadable(images_file, f"images of {images.shape[1]} x {images.shape[2]}, not 28 x 28", REMEDY)
    labels = _read_idx(labels_file, folder, dimensions=1)
    return Arrays(images=images[:, None], labels=labels.astype(np.int64), labels_file=str(labels_file))


def _found(folder: Path, name: str) -> Path:
    plain, packed = folder / name, folder / f"{name}.gz"
    if not plain.is_file() and not packed.is_file():
        raise unreadable(plain, "missing, and so is its .gz", REMEDY)
    return plain if plain.is_file() else packed


def _read_idx(path: Path, folder: Path, *, dimensions: int) -> NDArray[np.uint8]:
    checksums.verify(path, folder=folder, published=path.name)
    packed = path.suffix == ".gz"
    try:
        with reading(path), path.open("rb") as file:
            most = path.stat().st_size * (_MOST_INFLATION if packed else 1)
            if not packed:
                return _parse_idx(file, path, dimensions, most)
            with gzip.open(file) as inflated:
                try:
                    return _parse_idx(inflated, path, dimensions, most)
                except gzip.BadGzipFile as error:  # an OSError, but not of the system's
                    raise unreadable(path, f"damaged: {error}", REMEDY) from None
    except EOFError:
        raise unreadable(path, "torn: the gzip stream ends too early", REMEDY) from None
    except zlib.error as error:
        raise unreadable(path, f"damaged: {error}", REMEDY) from None


def _parse_idx(file: BinaryIO | gzip.GzipFile, path: Path, dimensions: int, most: int) -> NDArray[np.uint8]:
    """Read the whole stream, to its end: that is where gzip keeps its checksum."""
    magic = file.read(4)
    if magic != bytes([0, 0, _UNSIGNED_BYTE, dimensions]):
        expected = f"00 00 {_UNSIGNED_BYTE:02x} {dimensions:02x}"
        raise unreadable(path, f"starts with {magic.hex(' ') or 'nothing'}, not with {expected}", REMEDY)
    extents = file.read(4 * dimensions)
    shape = tuple(np.frombuffer(extents[: len(extents) // 4 * 4], ">u4").tolist())
    size = prod(shape)
    if len(shape) != dimensions or size > most:  # also: never make room for what a damaged header promises
        raise unreadable(path, f"too short for the dimensions {shape} in its header", REMEDY)
    data = bytearray(file.read(size + 1))
    if len(data) != size:
        much = "more" if len(data) > size else f"only {len(data)}"
        raise unreadable(path, f"its header promises {size} bytes, and {much} follow", REMEDY)
    return np.frombuffer(data, np.uint8).reshape(shape)
