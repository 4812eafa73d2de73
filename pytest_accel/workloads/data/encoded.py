"""Encoded images on disk: files in folders, and members of tar shards (`key.jpg` beside `key.cls`, webdataset's way).

A shard is indexed once by its headers; its images are then read in any order. The index holds a few large arrays and no
open file, so that forked workers share it.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tarfile
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch

from pytest_accel.workloads.data.errors import DataError, reading, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import BinaryIO

    from numpy.typing import NDArray

Tensor: TypeAlias = Any  # torch is untyped here

REMEDY = "Copy or write the shard again."
COMPRESSED = {".gz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "unzstd --rm"}
JPEG = {"jpg", "jpeg"}
_CLASS_NUMBER = re.compile(rb"\s*(-?[0-9]{1,9})\s*")
_CLASS_BYTES = 64  # more than any number needs
_OPEN_SHARDS = 16  # a worker reads one after another; the others are for more than one set
_TAIL_BYTES = 1 << 20  # of zeros after the end; tar's own padding is at most 10 KiB by default

BLOCK = tarfile.BLOCKSIZE
_END = bytes(BLOCK)
_REGULAR, _FOLDER = frozenset(b"0\0"), ord("5")
_POSIX = b"ustar\0"  # with it a name may have a prefix at 345; GNU's headers use that place otherwise
_ENCODING = sys.getfilesystemencoding()
_ENDS = np.frombuffer(b"\0 ", np.uint8)
_WEIGHTS = 8 ** np.arange(5, -1, -1)
_CHECKED_AT_ONCE = 4096  # headers whose sums are compared together: 2 MiB

# Name, offset of the content, size. A plain tuple: the garbage collector soon ignores those.
Member: TypeAlias = tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedNames:
    """A million names as one object.

    A Python string each would have its reference count written at every use: forked workers would copy all pages.
    """

    text: bytes
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> str:
        start = int(self.ends[index - 1]) if index else 0
        return os.fsdecode(self.text[start : int(self.ends[index])])


def pack(names: Iterable[str]) -> PackedNames:
    """Pack names, as the file system encodes them."""
    encoded = [os.fsencode(name) for name in names]
    return PackedNames(text=b"".join(encoded), ends=np.fromiter(accumulate(map(len, encoded)), np.int64))


def _concatenate(parts: list[PackedNames]) -> PackedNames:
    starts = accumulate((len(part.text) for part in parts), initial=0)
    ends = [start + part.ends for start, part in zip(starts, parts, strict=False)]  # one start more: the end
    return PackedNames(text=b"".join(part.text for part in parts), ends=np.concatenate(ends))


def read_whole(path: str) -> Tensor:
    """Return the bytes of a file, uint8 in one dimension; DataError where it is missing, empty or ends too early."""
    with reading(path), Path(path).open("rb", buffering=0) as file:
        data = np.empty(os.fstat(file.fileno()).st_size, np.uint8)
        count = file.readinto(data.data)
    if count != len(data):
        raise unreadable(path, f"short: {count} of {len(data)} bytes came", "Check the disk it is on.")
    if not count:
        raise unreadable(path, "empty", "Download or extract it again.")
    return torch.from_numpy(data)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedImages(ABC):
    """JPEGs on disk."""

    names: PackedNames
    labels: Any  # int64 (N,): an array, and a tensor after open_images checked it
    storage: ClassVar[Literal["files", "shards"]]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    @abstractmethod
    def groups(self) -> tuple[int, ...]:
        """The lengths of contiguous runs of images: one a shard, or one of all files."""

    @abstractmethod
    def name(self, index: int) -> str:
        """Return where an image is, for errors."""

    @abstractmethod
    def read(self, index: int) -> Tensor:
        """Return the bytes of an image, uint8 in one dimension; DataError where they are missing or too few."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Files(EncodedImages):
    """Images that are files."""

    root: str
    folders: tuple[str, ...]  # relative to the root
    folder_of: NDArray[np.int32]
    storage = "files"

    @property
    def groups(self) -> tuple[int, ...]:
        return (len(self.names),)

    def name(self, index: int) -> str:
        return str(Path(self.root, self.folders[self.folder_of[index]], self.names[index]))

    def read(self, index: int) -> Tensor:
        return read_whole(self.name(index))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shards(EncodedImages):
    """Images in tar shards, shard after shard."""

    paths: tuple[str, ...]
    ends: NDArray[np.int64]  # images up to the end of each shard
    offsets: NDArray[np.int64]  # bytes from the start of the shard
    sizes: NDArray[np.int64]
    storage = "shards"

    @property
    def groups(self) -> tuple[int, ...]:
        return tuple(np.diff(self.ends, prepend=0).tolist())

    def name(self, index: int) -> str:
        return f"{self._path(index)}: {self.names[index]}"

    def read(self, index: int) -> Tensor:
        data = np.empty(int(self.sizes[index]), np.uint8)
        with reading(self.name(index)):
            shard = _open(self._path(index))
            count = os.preadv(shard.descriptor, [data.data], int(self.offsets[index]))
        if count != len(data):
            raise unreadable(self.name(index), f"short: {count} of {len(data)} bytes came", REMEDY)
        if not count:
            raise unreadable(self.name(index), "empty", REMEDY)
        return torch.from_numpy(data)

    def _path(self, index: int) -> str:
        return self.paths[int(np.searchsorted(self.ends, index, side="right"))]


class _OpenShard:
    """A descriptor that closes with its last user: a thread may still read from one that left the cache."""

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


def find_shards(split_folder: Path) -> list[Path]:
    """Return the shards of a split in the order of their names; there may be none."""
    for ending, tool in COMPRESSED.items():
        for path in sorted(split_folder.glob(f"*.tar{ending}")):
            problem = (
                "compressed: images cannot be read out of its middle, and JPEGs do not get smaller by it"
            )
            raise unreadable(path, problem, f"Run: {tool} {shlex.quote(str(path))}")
    return sorted(split_folder.glob("*.tar"))


def read_shards(paths: list[Path]) -> Shards:
    """Index all shards of a split."""
    indexed: list[_Index] = []
    for path in paths:
        with reading(path):
            status = path.stat()
        indexed.append(_index(path.absolute(), status.st_size, status.st_mtime_ns))
    return Shards(
        paths=tuple(map(str, paths)),
        ends=np.fromiter(accumulate(len(each.names) for each in indexed), np.int64),
        offsets=np.concatenate([each.offsets for each in indexed]),
        sizes=np.concatenate([each.sizes for each in indexed]),
        names=_concatenate([each.names for each in indexed]),
        labels=np.concatenate([each.labels for each in indexed]),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Index:
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    names: PackedNames
    labels: NDArray[np.int64]


@cache  # as many as there are shards, and each is read once a process
def _index(path: Path, size_bytes: int, mtime_ns: int) -> _Index:  # noqa: ARG001 - the time is a key
    with reading(path), path.open("rb") as file:
        members = _Members(path, size_bytes, file.fileno())
        try:
            plain, end = plain_members(file.fileno())
        except NotPlain:
            end = _add_by_tarfile(members, file)
        else:
            for member in plain:
                members.add(member)
        tail = os.pread(file.fileno(), _TAIL_BYTES, end)
    # tarfile takes a damaged header for the end, without an error.
    if len(tail) < BLOCK:
        raise unreadable(path, "torn: the end of a tar file is missing", REMEDY)
    if any(tail):
        problem = "damaged: what follows its last member is neither a member nor the end"
        raise unreadable(path, problem, REMEDY)
    return members.index()


@dataclass(slots=True, eq=False)
class _Members:
    """The members of one shard: images, and class numbers, each by key."""

    path: Path
    size_bytes: int
    descriptor: int
    images: dict[str, Member] = field(default_factory=dict)
    classes: dict[str, int] = field(default_factory=dict)

    def add(self, member: Member, *, regular: bool = True) -> None:
        name, offset, size = member
        key, extension = _split_name(name)
        image = extension in JPEG
        if not key or not (image or extension == "cls"):
            return
        if not regular:
            raise self.error(name, "not a regular file")
        if offset + size > self.size_bytes:
            raise self.error(key, f"torn: {name} reaches beyond the end of the file")
        if key in (self.images if image else self.classes):
            raise self.error(key, f"a second .{extension} of this key")
        if image:
            self.images[key] = member
        else:
            self.classes[key] = self.class_number(key, offset, size)

    def class_number(self, key: str, offset: int, size: int) -> int:
        text = os.pread(self.descriptor, min(size, _CLASS_BYTES), offset)
        number = _CLASS_NUMBER.fullmatch(text) if size <= _CLASS_BYTES else None
        if number is None:
            raise self.error(key, f"its .cls holds {text[:20]!r}, not the number of a class")
        return int(number[1])

    def index(self) -> _Index:
        for key in self.images.keys() ^ self.classes.keys():
            problem = "an image without .cls" if key in self.images else "a .cls without an image"
            raise self.error(key, problem)
        if not self.images:
            remedy = "Valid members: key.jpg and key.cls for each image."
            raise unreadable(self.path, "holds no image", remedy)
        names, offsets, sizes = zip(*self.images.values(), strict=True)
        return _Index(
            offsets=np.array(offsets, np.int64),
            sizes=np.array(sizes, np.int64),
            names=pack(names),
            labels=np.array([self.classes[key] for key in self.images], np.int64),
        )

    def error(self, key: str, problem: str) -> DataError:
        return unreadable(f"{self.path}: {key}", problem, REMEDY)


def _add_by_tarfile(members: _Members, file: BinaryIO) -> int:
    """Add the members of an archive of any kind, and return where they end."""
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for each in tar:
                if not each.isdir():
                    regular = each.isreg() and not each.issparse()
                    members.add((each.name, each.offset_data, each.size), regular=regular)
            return tar.offset
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise unreadable(members.path, f"not a whole tar file: {error}", REMEDY) from None


def _split_name(name: str) -> tuple[str, str]:
    """Return a member's key, up to the first dot of its base name, and the extension after that dot."""
    start = name.rfind("/") + 1
    dot = name.find(".", start)
    if dot in {-1, start}:  # none, or nothing before it
        return "", ""
    return name[:dot], name[dot + 1 :].lower()


class NotPlain(Exception):  # noqa: N818 - no error: tarfile reads the file
    """A header that `plain_members` does not read, or none where one should be."""


def plain_members(descriptor: int) -> tuple[list[Member], int]:
    """Return the regular files of an archive and where its members end; NotPlain for anything else in it.

    Reads ustar's and GNU's headers of regular files and folders; pax, long names, links, sparse files, sizes beyond
    octal and wrong checksums are left to tarfile, which takes 25 instead of 4.5 us a header (Xeon). ImageNet in shards
    has 2.6 million headers.
    """
    members: list[Member] = []
    headers: list[bytes] = []
    offset = 0
    while (header := os.pread(descriptor, BLOCK, offset)) != _END:
        if len(header) != BLOCK:
            raise NotPlain
        headers.append(header)
        size, kind = _header_size(header[124:135]), header[156]
        offset += BLOCK
        if kind in _REGULAR:
            members.append((_header_name(header), offset, size))
            offset += -(-size // BLOCK) * BLOCK
        elif kind != _FOLDER or size:
            raise NotPlain
        if len(headers) == _CHECKED_AT_ONCE:
            _check_sums(headers)
            headers.clear()
    _check_sums(headers)
    return members, offset


def _header_name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0]
    if header[345]:  # a prefix
        if header[257:263] != _POSIX:
            raise NotPlain
        name = header[345:500].partition(b"\0")[0] + b"/" + name
    if name.endswith(b"/"):  # archives older than POSIX mark folders so
        raise NotPlain
    return name.decode(_ENCODING, "surrogateescape")


def _header_size(digits: bytes) -> int:
    if not digits.isdigit():  # int() would accept more: signs, spaces, underscores
        raise NotPlain
    try:
        return int(digits, 8)
    except ValueError:  # an eight or a nine
        raise NotPlain from None


def _check_sums(headers: list[bytes]) -> None:
    """Compare each header's sum with the stored one, whose own field counts as spaces: `123456\\0 `."""
    blocks = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, BLOCK)
    stored = blocks[:, 148:156].astype(np.int64)
    digits, rest = stored[:, :6] - ord("0"), stored[:, 6:]
    others = blocks.sum(axis=1, dtype=np.uint32) - stored.sum(axis=1)
    plain = ((digits >= 0) & (digits < 8)).all(axis=1) & np.isin(rest, _ENDS).all(axis=1)
    plain &= np.isin(blocks[:, 135], _ENDS)  # the size has no twelfth digit
    if not (plain & (others + 8 * ord(" ") == digits @ _WEIGHTS)).all():
        raise NotPlain
