"""Bytes that are not the published ones are another data set, or a broken download: told before anything is read.

Two sources of sums: those published for files of the published size, and a `MD5SUMS` or `SHA256SUMS` file, as
coreutils writes it, in the folder of the data set. A file of another size is a user's own subset and passes.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_accel.workloads.data.errors import reading, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

SUMS_FILES = {"MD5SUMS": "md5", "SHA256SUMS": "sha256"}
_HEX_DIGITS = {"md5": 32, "sha256": 64}
# A backslash before the digest: the name has escapes (coreutils, md5sum invocation).
_LINE = re.compile(r"(?P<escaped>\\?)(?P<digest>[0-9a-fA-F]+) [ *](?P<name>.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A file as its authors distribute it."""

    size_bytes: int
    md5: str


# MD5 sums as torchvision 0.25 carries them (datasets/cifar.py, datasets/mnist.py); sizes as the files are distributed.
PUBLISHED = {
    "cifar-100-python/train": Published(size_bytes=155_249_918, md5="16019d7e3df5f24257cddd939b257f8d"),
    "cifar-100-python/test": Published(size_bytes=31_049_707, md5="f0ef6b0ae62326f3e7ffdfab6717acfc"),
    "train-images-idx3-ubyte.gz": Published(size_bytes=9_912_422, md5="f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    "train-labels-idx1-ubyte.gz": Published(size_bytes=28_881, md5="d53e105ee54ea40749a09fcbcd1e9432"),
    "t10k-images-idx3-ubyte.gz": Published(size_bytes=1_648_877, md5="9fb629c4189551a2d022fa330f9573f3"),
    "t10k-labels-idx1-ubyte.gz": Published(size_bytes=4_542, md5="ec29112dd5afa0611ce80d1b7f02629c"),
}


def verify(path: Path, *, folder: Path, published: str = "") -> None:
    """Refuse a file that is not what its sums say.

    `folder` is that of the data set: sums files count in it and in those between it and the file. `published` is the
    file's key in PUBLISHED.
    """
    known = PUBLISHED.get(published)
    with reading(path):
        if known is not None and path.stat().st_size == known.size_bytes:
            _compare(path, "md5", known.md5, "as published")
        for sums, algorithm in _sums_files(path, folder):
            expected = _sums(sums, *_stamp(sums), algorithm).get(path.relative_to(sums.parent).as_posix())
            if expected is not None:
                _compare(path, algorithm, expected, f"by {sums}")


def read_sums(sums: Path, algorithm: str) -> dict[str, str]:
    """Return the digests that a sums file holds, by name relative to its folder."""
    try:
        text = sums.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(sums, f"not readable: {error}", "Write it anew, or remove it.") from None
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.removesuffix("\r"))
        if match is None or len(match["digest"]) != _HEX_DIGITS[algorithm]:
            raise unreadable(
                f"{sums}:{number}",
                f"{line[:60]!r} is not {_HEX_DIGITS[algorithm]} hexadecimal digits, two spaces and a name",
                f"Write it anew with {algorithm}sum, or remove it.",
            )
        name = posixpath.normpath(_unescaped(match["name"]) if match["escaped"] else match["name"])
        if found.setdefault(name, match["digest"].lower()) != match["digest"].lower():
            raise unreadable(
                f"{sums}:{number}", f"{name} has another sum further up", "Remove the one that is wrong."
            )
    return found


def _sums_files(path: Path, folder: Path) -> Iterator[tuple[Path, str]]:
    for parent in path.parents:
        for name, algorithm in SUMS_FILES.items():
            if (parent / name).is_file():
                yield parent / name, algorithm
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


# Within a process, what was read is read again only when its size or its time has changed.


@cache
def _digest(path: Path, size_bytes: int, mtime_ns: int, algorithm: str) -> str:  # noqa: ARG001 - keys
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


@cache
def _sums(path: Path, size_bytes: int, mtime_ns: int, algorithm: str) -> dict[str, str]:  # noqa: ARG001 - keys
    return read_sums(path, algorithm)


def _unescaped(name: str) -> str:
    return re.sub(r"\\(.)", lambda match: {"n": "\n", "r": "\r"}.get(match[1], match[1]), name)
