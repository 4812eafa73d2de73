"""Image sets that are read whole into memory: CIFAR-100, MNIST and scikit-learn's digits."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import zlib
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pytest_accel.workloads.data.errors import DataError, find_folder, missing, reading, unreadable
from pytest_accel.workloads.data.sets import IMAGE_SETS

if TYPE_CHECKING:
    from typing import BinaryIO

    from numpy.typing import NDArray

    from pytest_accel.workloads.data.errors import Split

CIFAR_BINARY, CIFAR_PICKLED = "cifar-100-binary", "cifar-100-python"
CIFAR_RECORD_BYTES = 2 + 3 * 32 * 32  # the coarse label, the fine one, then red, green and blue planes
CIFAR_REMEDY = "Download cifar-100-python.tar.gz again from where you trust it."
MNIST_PREFIX = {"train": "train", "test": "t10k"}
MNIST_REMEDY = "Download it again."
IDX_UNSIGNED_BYTE = 0x08  # the third byte of the magic number; the fourth is the number of dimensions
MAX_INFLATION = 1032  # deflate's limit, by zlib's technical notes
DIGITS_MAX = 16  # a value counts the inked pixels of a 4 x 4 block
DIGITS_REMEDY = "Run: pip install --force-reinstall scikit-learn"
# Size in bytes and MD5, as torchvision 0.25 has them (datasets/cifar.py, datasets/mnist.py).
PUBLISHED = {
    "cifar-100-python/train": (155_249_918, "16019d7e3df5f24257cddd939b257f8d"),
    "cifar-100-python/test": (31_049_707, "f0ef6b0ae62326f3e7ffdfab6717acfc"),
    "train-images-idx3-ubyte.gz": (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    "train-labels-idx1-ubyte.gz": (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
    "t10k-images-idx3-ubyte.gz": (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
    "t10k-labels-idx1-ubyte.gz": (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
}


class Arrays(NamedTuple):
    """Images (N, channels, height, width) and labels (N,), not checked against each other yet."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    labels_file: str


def _check_md5(path: Path, key: str) -> None:
    """Refuse a file of the published size with another checksum; another size is a user's own subset."""
    size_bytes, expected = PUBLISHED.get(key, (None, ""))
    with reading(path), path.open("rb") as file:
        if path.stat().st_size != size_bytes:
            return
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != expected:
        problem = f"wrong checksum: md5 is {found}, and {expected} as published"
        raise unreadable(path, problem, "Download it again: these are not the published bytes.")


def read_cifar100(root: Path, split: Split) -> Arrays:
    """Read one split; the binary files where both are there, because they need no trust."""
    binary, pickled = root / CIFAR_BINARY / f"{split}.bin", root / CIFAR_PICKLED / split
    if binary.is_file():
        return _read_cifar_records(binary)
    if pickled.is_file():
        _check_md5(pickled, f"{CIFAR_PICKLED}/{split}")
        return _read_cifar_pickle(pickled)
    archives = (f"{CIFAR_BINARY}.tar.gz", f"{CIFAR_PICKLED}.tar.gz")
    folder = find_folder(root, "cifar100", CIFAR_BINARY, CIFAR_PICKLED, archives=archives)
    name = binary.name if folder.name == CIFAR_BINARY else pickled.name
    raise unreadable(folder / name, "missing", f"Extract {folder.name}.tar.gz again.")


def _read_cifar_records(path: Path) -> Arrays:
    with reading(path):
        data = np.fromfile(path, np.uint8)
    if not len(data) or len(data) % CIFAR_RECORD_BYTES:
        problem = f"torn: {len(data)} bytes are not whole records of {CIFAR_RECORD_BYTES}"
        raise unreadable(path, problem, f"Extract {CIFAR_BINARY}.tar.gz again.")
    records = data.reshape(-1, CIFAR_RECORD_BYTES)
    return Arrays(records[:, 2:].reshape(-1, 3, 32, 32), records[:, 1].astype(np.int64), str(path))


class _Recorded:
    """A known name of a pickle, or a call of it: recorded, never looked up or made."""

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str, arguments: tuple[object, ...] | None = None) -> None:
        self.name = name
        self.arguments = arguments
        self.state: object = None

    def __call__(self, *arguments: object) -> _Recorded:
        return _Recorded(self.name, arguments)

    def __setstate__(self, state: object) -> None:
        if self.arguments is None:
            raise pickle.UnpicklingError(f"the file sets attributes of {self.name}")
        self.state = state


class _UnknownNameError(pickle.UnpicklingError):
    """A global that no CIFAR file needs."""


class _RestrictedUnpickler(pickle.Unpickler):
    """Reads a pickle, which is a program, without running it: only the names below, and those only recorded."""

    # numpy moved its core in 2.0; protocol 5 pickles arrays through _frombuffer.
    KNOWN = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy.core.numeric", "_frombuffer"),
            ("numpy._core.numeric", "_frombuffer"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.KNOWN:
            raise _UnknownNameError(f"{module}.{name}")
        return _Recorded(name)


def _read_cifar_pickle(path: Path) -> Arrays:
    try:
        with reading(path), path.open("rb") as file:
            # As bytes: the published files hold Python 2's strings, pixels among them.
            content = _RestrictedUnpickler(file, encoding="bytes").load()
    except _UnknownNameError as error:
        problem = f"refused: it asks for {error}, which no CIFAR file needs"
        raise unreadable(path, problem, CIFAR_REMEDY) from None
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001 - damaged opcodes end in any of them
        problem = f"not a whole pickle: {error or type(error).__name__}"
        raise unreadable(path, problem, CIFAR_REMEDY) from None
    if not isinstance(content, dict):
        raise unreadable(path, "not a pickled dictionary", CIFAR_REMEDY)
    # Python 2 wrote keys as bytes, a user's Python 3 either.
    data, labels = (content.get(key.encode(), content.get(key)) for key in ("data", "fine_labels"))
    try:
        pixels = _pickled_pixels(data)
    except ValueError as error:
        raise unreadable(path, str(error), CIFAR_REMEDY) from None
    if not isinstance(labels, list) or not all(type(each) is int and abs(each) < 2**31 for each in labels):
        raise unreadable(path, "'fine_labels' is not a list of numbers", CIFAR_REMEDY)
    return Arrays(pixels.reshape(-1, 3, 32, 32), np.array(labels, np.int64), str(path))


def _pickled_pixels(call: object) -> NDArray[np.uint8]:
    match call:
        # An array's state: version, shape, dtype, whether in Fortran's order, bytes (numpy's __reduce__).
        case _Recorded(name="_reconstruct", state=(_, shape, dtype, fortran, bytes(data))):
            order = "F" if fortran else "C"
        case _Recorded(
            name="_frombuffer", arguments=((bytes() | bytearray()) as data, dtype, shape, str(order))
        ):
            pass
        case _:
            raise ValueError("'data' is not an array")
    if not isinstance(dtype, _Recorded) or (dtype.arguments or ())[:1] not in {("u1",), (b"u1",)}:
        raise ValueError("'data' is not an array of unsigned bytes")
    match shape:
        case (int(count), 3072) if 0 < count == len(data) / 3072 and order in {"C", "F"}:
            pixels = np.frombuffer(data, np.uint8)
            return pixels.reshape((count, 3072), order="F" if order == "F" else "C").copy()
        case _:
            raise ValueError(f"'data' is {len(data)} bytes of shape {shape}, not rows of 3072")


def read_mnist(root: Path, split: Split) -> Arrays:
    """Read one split of the idx files, plain or gzipped."""
    folder = find_folder(root, "mnist", "MNIST/raw", "mnist")
    images, images_file = _read_idx(folder, f"{MNIST_PREFIX[split]}-images-idx3-ubyte", dimensions=3)
    if images.shape[1:] != (28, 28):
        problem = f"images of {images.shape[1]} x {images.shape[2]}, not 28 x 28"
        raise unreadable(images_file, problem, MNIST_REMEDY)
    labels, labels_file = _read_idx(folder, f"{MNIST_PREFIX[split]}-labels-idx1-ubyte", dimensions=1)
    return Arrays(images[:, None], labels.astype(np.int64), str(labels_file))


def _read_idx(folder: Path, name: str, *, dimensions: int) -> tuple[NDArray[np.uint8], Path]:
    plain, packed = folder / name, folder / f"{name}.gz"
    path = plain if plain.is_file() else packed
    if not path.is_file():
        raise unreadable(plain, "missing, and so is its .gz", MNIST_REMEDY)
    _check_md5(path, path.name)
    try:
        with reading(path):
            if path == plain:
                with path.open("rb") as file:
                    return _parse_idx(file, path, dimensions, path.stat().st_size), path
            try:
                with gzip.open(path) as inflated:
                    most = path.stat().st_size * MAX_INFLATION
                    return _parse_idx(inflated, path, dimensions, most), path
            except gzip.BadGzipFile as error:  # an OSError, but not of the system's
                raise unreadable(path, f"damaged: {error}", MNIST_REMEDY) from None
    except (EOFError, zlib.error) as error:
        raise unreadable(path, f"torn or damaged: {error}", MNIST_REMEDY) from None


def _parse_idx(file: BinaryIO | gzip.GzipFile, path: Path, dimensions: int, most: int) -> NDArray[np.uint8]:
    """Read a magic number, big-endian dimensions, and one byte a value to the end, where gzip has its checksum."""
    magic = file.read(4)
    if magic != bytes([0, 0, IDX_UNSIGNED_BYTE, dimensions]):
        expected = f"00 00 {IDX_UNSIGNED_BYTE:02x} {dimensions:02x}"
        problem = f"starts with {magic.hex(' ') or 'nothing'}, not with {expected}"
        raise unreadable(path, problem, MNIST_REMEDY)
    extents = file.read(4 * dimensions)
    shape = tuple(np.frombuffer(extents[: len(extents) // 4 * 4], ">u4").tolist())
    size = prod(shape)
    if len(shape) != dimensions or size > most:  # never allocate what a damaged header promises
        raise unreadable(path, f"too short for the dimensions {shape} in its header", MNIST_REMEDY)
    data = bytearray(file.read(size + 1))
    if len(data) != size:
        much = "more" if len(data) > size else f"only {len(data)}"
        raise unreadable(path, f"its header promises {size} bytes, and {much} follow", MNIST_REMEDY)
    return np.frombuffer(data, np.uint8).reshape(shape)


def read_digits(split: Split) -> Arrays:
    """Return scikit-learn's 8 x 8 digits, the first rows as train and the last as test: their writers differ.

    The file is read directly: importing scikit-learn takes a second.
    """
    spec = find_spec("sklearn")
    folders = (spec and spec.submodule_search_locations) or ()
    path = next((Path(each, "datasets/data/digits.csv.gz") for each in folders), None)
    if path is None or not path.is_file():
        searched = [path or "scikit-learn, which carries it"]
        raise missing("digits", searched, "Run: pip install scikit-learn")
    known = IMAGE_SETS["digits"]
    rows = known.train_images + known.test_images
    try:
        with reading(path), gzip.open(path, "rt", encoding="ascii") as file:
            lines = file.read().split()
        table = np.loadtxt(lines, np.int64, delimiter=",") if len(lines) == rows else np.empty(0, np.int64)
    except (EOFError, ValueError, zlib.error) as error:
        raise unreadable(path, f"damaged: {error}", DIGITS_REMEDY) from None
    if table.shape != (rows, 65) or table[:, :-1].min() < 0 or table[:, :-1].max() > DIGITS_MAX:
        raise unreadable(
            path, f"not {rows} rows of 64 values from 0 to {DIGITS_MAX} and a label", DIGITS_REMEDY
        )
    part = table[: known.train_images] if split == "train" else table[known.train_images :]
    images = (part[:, :-1] * 255 // DIGITS_MAX).astype(np.uint8)
    return Arrays(images.reshape(-1, 1, 8, 8), part[:, -1].copy(), str(path))
