"""Tar shards of images as webdataset writes them: `key.jpg` beside `key.cls`, not compressed.

An index of offsets, built once, makes every image readable by itself, as in a folder.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pytest_accel.storage.files import replace_file
from pytest_accel.workloads.data.files import JPEG_ENDINGS, reading, unreadable
from pytest_accel.workloads.data.loader import EncodedImages, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

REMEDY = "Copy or write the shard again: key.jpg and key.cls for each image, and nothing compressed."
_MEMBER = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)")  # key and extension, as webdataset separates them
_CLASS_BYTES = 64  # more than the number of a class needs
_TAIL_BYTES = 1 << 20  # of zeros after the end; tar's own padding is at most 10 KiB by default
_INDEX = 2  # increase it when the columns of an index change
_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardImages(EncodedImages):
    """JPEGs in tar shards."""

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
        with reading(self.name(index)):
            count = os.preadv(_opened(self._shard(index)).fileno(), [data.data], int(place["offset"]))
        if not 0 < count == len(data):
            raise unreadable(self.name(index), f"short: {count} of {len(data)} bytes came", REMEDY)
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
        with reading(path):
            status = path.stat()
        state += f"/{path.absolute()} {status.st_size} {status.st_mtime_ns}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pytest-accel")  # noqa: PTH111 - raises without a home
    cached = cache / f"shards-{_digest(os.fsencode(state)).hex()}.npy"
    data = b""
    with suppress(OSError):
        data = cached.read_bytes()
    if data and _digest(data[_DIGEST_BYTES:]) == data[:_DIGEST_BYTES]:
        index = np.load(io.BytesIO(data[_DIGEST_BYTES:]), allow_pickle=False)
    else:  # not there, or damaged
        index = _table([(*image, shard) for shard, path in enumerate(paths) for image in _members(path)])
        buffer = io.BytesIO()
        np.save(buffer, index, allow_pickle=False)
        with suppress(OSError):  # the next session builds it again
            cached.parent.mkdir(parents=True, exist_ok=True)
            replace_file(cached, _digest(buffer.getvalue()) + buffer.getvalue())
    return ShardImages(
        root=str(paths[0].parent),
        names=np.array(index["name"]),
        labels=torch.from_numpy(np.array(index["label"])),
        shards=tuple(path.name for path in paths),
        places=index[["shard", "offset", "size"]],
    )


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _table(rows: list[tuple[Any, ...]]) -> NDArray[Any]:
    width = max(len(row[0]) for row in rows)
    columns = [
        ("name", f"S{width}"),
        *((column, np.int64) for column in ("label", "offset", "size", "shard")),
    ]
    return np.array(rows, np.dtype(columns))


def _members(path: Path) -> list[tuple[bytes, int, int, int]]:
    """Return name, label, offset and size of every image of a shard."""
    images: dict[str, tuple[bytes, int, int]] = {}
    classes: dict[str, int] = {}
    where = str(path)
    try:
        with reading(path), path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                found = _MEMBER.fullmatch(member.name)
                if found is None or not member.isreg():
                    continue
                key, extension = found[1], found[2].lower()
                where = f"{path}: {member.name}"
                if f".{extension}" in JPEG_ENDINGS:
                    images[key] = os.fsencode(member.name), member.offset_data, member.size
                elif extension == "cls":
                    text = os.pread(file.fileno(), min(member.size, _CLASS_BYTES), member.offset_data)
                    classes[key] = int(np.int64(int(text.decode("ascii"))))
            tail = os.pread(file.fileno(), _TAIL_BYTES, tar.offset)
    except (tarfile.TarError, ValueError, EOFError, OverflowError) as error:
        raise unreadable(where, error, REMEDY) from None
    # tarfile takes a damaged header for the end, without an error.
    if len(tail) < tarfile.BLOCKSIZE or any(tail):
        raise unreadable(where, "torn or damaged after this member", REMEDY)
    if unpaired := images.keys() ^ classes.keys():
        problem = "an image without .cls, or a .cls without an image"
        raise unreadable(f"{path}: {min(unpaired)}", problem, REMEDY)
    if not images:
        raise unreadable(path, "holds no image", REMEDY)
    return [(name, classes[key], offset, size) for key, (name, offset, size) in images.items()]
