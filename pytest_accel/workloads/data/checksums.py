"""Checksums: a file that is not what its published sum or its sums file says is refused before it is read.

Published MD5 sums count for files of the published size: another size is a user's own subset. `MD5SUMS` and
`SHA256SUMS`, as coreutils writes them, count in the folder of a data set and below.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

from pytest_accel.workloads.data.errors import read_text, reading, unreadable

SUMS_FILES = {"MD5SUMS": ("md5", 32), "SHA256SUMS": ("sha256", 64)}  # algorithm, hexadecimal digits
# Size in bytes and MD5: sums as torchvision 0.25 has them (datasets/cifar.py, datasets/mnist.py).
PUBLISHED = {
    "cifar-100-python/train": (155_249_918, "16019d7e3df5f24257cddd939b257f8d"),
    "cifar-100-python/test": (31_049_707, "f0ef6b0ae62326f3e7ffdfab6717acfc"),
    "train-images-idx3-ubyte.gz": (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    "train-labels-idx1-ubyte.gz": (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
    "t10k-images-idx3-ubyte.gz": (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
    "t10k-labels-idx1-ubyte.gz": (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
}


def verify(path: Path, *, folder: Path, published: str = "") -> None:
    """Raise DataError where a file's checksum is wrong.

    Sums files count from the file's folder up to `folder`, that of the data set; `published` is a key of PUBLISHED.
    """
    with reading(path):
        size_bytes, md5 = PUBLISHED.get(published, (None, ""))
        if path.stat().st_size == size_bytes:
            _compare(path, "md5", md5, "as published")
        for parent in path.parents:
            for name, (algorithm, _) in SUMS_FILES.items():
                sums = parent / name
                if not sums.is_file():
                    continue
                expected = _sums(sums, *_stamp(sums)).get(path.relative_to(parent).as_posix())
                if expected is not None:
                    _compare(path, algorithm, expected, f"by {sums}")
            if parent == folder:
                return


def _compare(path: Path, algorithm: str, expected: str, source: str) -> None:
    found = _digest(path.absolute(), *_stamp(path), algorithm)
    if found != expected:
        raise unreadable(
            path,
            f"wrong checksum: {algorithm} is {found}, and {expected} {source}",
            "Download it again: these are not the bytes that the sum was made of.",
        )


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


# Cached within a process until the size or the time of the file changes.


@cache
def _digest(path: Path, size_bytes: int, mtime_ns: int, algorithm: str) -> str:  # noqa: ARG001 - keys
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


@cache
def _sums(path: Path, size_bytes: int, mtime_ns: int) -> dict[str, str]:  # noqa: ARG001 - keys
    """Return the digests of a sums file by name relative to its folder."""
    algorithm, digits = SUMS_FILES[path.name]
    remedy = f"Write it anew with {algorithm}sum, or remove it."
    found: dict[str, str] = {}
    for number, line in enumerate(read_text(path, remedy).splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(rf"([0-9a-fA-F]{{{digits}}}) [ *](?:\./)?(.+)", line)
        if match is None:
            problem = f"{line[:60]!r} is not {digits} hexadecimal digits, two spaces and a name"
            raise unreadable(f"{path}:{number}", problem, remedy)
        found[match[2]] = match[1].lower()
    return found
