"""Images in tar shards, `key.jpg` beside `key.cls`: few big files, read in order, where a disk has no love for small ones.

The convention is webdataset's. A shard is indexed by its headers once; images are then read where they lie.
"""

from __future__ import annotations

import os
import re
import shlex
import tarfile
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from pytest_accel.workloads.data import checksums
from pytest_accel.workloads.data.errors import DataError, reading, unreadable
from pytest_accel.workloads.data.formats.headers import BLOCK, Member, NotPlain, plain_members
from pytest_accel.workloads.data.formats.names import PackedNames, concatenate, pack

if TYPE_CHECKING:
    from typing import BinaryIO

    from numpy.typing import NDArray

REMEDY = "Copy or write the shard again."
# What a compressed file starts with, how its name ends, and what undoes it.
COMPRESSED = (
    (b"\x1f\x8b", ".gz", "gunzip"),
    (b"BZh", ".bz2", "bunzip2"),
    (b"\xfd7zXZ", ".xz", "unxz"),
    (b"\x28\xb5\x2f\xfd", ".zst", "unzstd --rm"),
)
JPEG = {"jpg", "jpeg"}
_CLASS_NUMBER = re.compile(rb"\s*(-?[0-9]{1,9})\s*")
_CLASS_BYTES = 64  # more than any number needs
_OPEN_SHARDS = 16  # a worker reads one after another; the others are for more than one set
_TAIL_BYTES = 1 << 20  # of zeros after the end; tar's own padding is at most 10 KiB by default


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shards:
    """Where each image is, and its label, shard after shard."""

    paths: tuple[str, ...]
    ends: NDArray[np.int64]  # images up to the end of each shard
    offsets: NDArray[np.int64]  # bytes from the start of the shard
    sizes: NDArray[np.int64]
    names: PackedNames
    labels: NDArray[np.int64]
    storage: Literal["shards"] = "shards"

    @property
    def groups(self) -> tuple[int, ...]:
        return tuple(np.diff(self.ends, prepend=0).tolist())

    def name(self, index: int) -> str:
        return f"{self._path(index)}: {self.names[index]}"

    def read(self, index: int) -> NDArray[np.uint8]:
        data = np.empty(int(self.sizes[index]), np.uint8)
        with reading(self.name(index)):
            shard = _open(self._path(index))
            count = os.preadv(shard.descriptor, [data.data], int(self.offsets[index]))
        if count != len(data):
            raise unreadable(self.name(index), f"short: {count} of {len(data)} bytes came", REMEDY)
        return data

    def _path(self, index: int) -> str:
        return self.paths[int(np.searchsorted(self.ends, index, side="right"))]


def find_shards(split_folder: Path) -> list[Path]:
    """Return the shards of a split in the order of their names; none is no fault."""
    for _, ending, tool in COMPRESSED:
        for path in sorted(split_folder.glob(f"*.tar{ending}")):
            raise _compressed(path, f"{tool} {shlex.quote(str(path))}")
    return sorted(split_folder.glob("*.tar"))


def read_shards(paths: list[Path], folder: Path) -> Shards:
    """Index all shards of a split; `folder` is that of the data set, where sums of them may lie."""
    indexed: list[_Index] = []
    for path in paths:
        checksums.verify(path, folder=folder)
        with reading(path):
            status = path.stat()
        indexed.append(_index(path.absolute(), status.st_size, status.st_mtime_ns))
    return Shards(
        paths=tuple(map(str, paths)),
        ends=np.fromiter(accumulate(len(each.names) for each in indexed), np.int64),
        offsets=np.concatenate([each.offsets for each in indexed]),
        sizes=np.concatenate([each.sizes for each in indexed]),
        names=concatenate(each.names for each in indexed),
        labels=np.concatenate([each.labels for each in indexed]),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Index:
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    names: PackedNames
    labels: NDArray[np.int64]


@dataclass(slots=True, eq=False)
class _Headers:
    """The members of one shard as they come by: images, and class numbers, each by key."""

    path: Path
    size_bytes: int
    descriptor: int
    images: dict[str, Member] = field(default_factory=dict)
    classes: dict[str, int] = field(default_factory=dict)

    def take(self, member: Member, *, regular: bool = True) -> None:
        name, offset, size = member
        key, extension = _split_name(name)
        image = extension in JPEG
        if not key or not (image or extension == "cls"):
            return
        if not regular:
            raise self.fault(name, "not a regular file")
        if offset + size > self.size_bytes:
            raise self.fault(key, f"torn: {name} reaches beyond the end of the file")
        if key in (self.images if image else self.classes):
            raise self.fault(key, f"a second .{extension} of this key")
        if image:
            self.images[key] = member
        else:
            self.classes[key] = self.class_number(key, offset, size)

    def class_number(self, key: str, offset: int, size: int) -> int:
        text = os.pread(self.descriptor, min(size, _CLASS_BYTES), offset)
        number = _CLASS_NUMBER.fullmatch(text) if size <= _CLASS_BYTES else None
        if number is None:
            raise self.fault(key, f"its .cls holds {text[:20]!r}, not the number of a class")
        return int(number[1])

    def index(self) -> _Index:
        for key in self.images.keys() ^ self.classes.keys():
            raise self.fault(
                key, "an image without .cls" if key in self.images else "a .cls without an image"
            )
        if not self.images:
            raise unreadable(
                self.path, "holds no image", "Valid members: key.jpg and key.cls for each image."
            )
        names, offsets, sizes = zip(*self.images.values(), strict=True)
        return _Index(
            offsets=np.array(offsets, np.int64),
            sizes=np.array(sizes, np.int64),
            names=pack(names),
            labels=np.array([self.classes[key] for key in self.images], np.int64),
        )

    def fault(self, key: str, problem: str) -> DataError:
        return unreadable(f"{self.path}: {key}", problem, REMEDY)


@cache  # as many as there are shards, and each is read once a process
def _index(path: Path, size_bytes: int, mtime_ns: int) -> _Index:  # noqa: ARG001 - the time is a key
    with reading(path), path.open("rb") as file:
        start = file.read(8)
        for magic, ending, tool in COMPRESSED:
            if start.startswith(magic):
                named, renamed = shlex.quote(str(path)), shlex.quote(f"{path}{ending}")
                raise _compressed(path, f"mv {named} {renamed} && {tool} {renamed}")  # it minds the ending
        headers = _Headers(path, size_bytes, file.fileno())
        try:
            members, end = plain_members(file.fileno())
        except NotPlain:
            end = _take_by_tarfile(headers, file)
        else:
            for member in members:
                headers.take(member)
        _check_end(path, os.pread(file.fileno(), _TAIL_BYTES, end))
        return headers.index()


def _take_by_tarfile(headers: _Headers, file: BinaryIO) -> int:
    """Take the members of an archive of any kind, and return where they end."""
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for each in tar:
                if not each.isdir():
                    regular = each.isreg() and not each.issparse()
                    headers.take((each.name, each.offset_data, each.size), regular=regular)
            return tar.offset
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise unreadable(headers.path, f"not a whole tar file: {error}", REMEDY) from None


def _check_end(path: Path, tail: bytes) -> None:
    """Refuse a file whose members stop before its end: tarfile takes a damaged header for the end, and says nothing."""
    if len(tail) < BLOCK:
        raise unreadable(path, "torn: the end of a tar file is missing", REMEDY)
    if any(tail):
        raise unreadable(
            path, "damaged: what follows its last member is neither a member nor the end", REMEDY
        )


def _split_name(name: str) -> tuple[str, str]:
    """Return a member's key, up to the first dot of its base name, and the extension after that dot."""
    start = name.rfind("/") + 1
    dot = name.find(".", start)
    if dot in {-1, start}:  # none, or nothing before it
        return "", ""
    return name[:dot], name[dot + 1 :].lower()


def _compressed(path: Path, command: str) -> DataError:
    return unreadable(
        path,
        "compressed: images cannot be read out of its middle, and JPEGs do not get smaller by it",
        f"Run: {command}",
    )


class _OpenShard:
    """A descriptor that closes with its last user: one that the cache drops may still be read from by a thread."""

    __slots__ = ("descriptor",)

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):  # not where it could not be opened
            os.close(self.descriptor)


@lru_cache(maxsize=_OPEN_SHARDS)
def _open(path: str) -> _OpenShard:
    return _OpenShard(path)


os.register_at_fork(after_in_child=_open.cache_clear)  # a worker opens its own
