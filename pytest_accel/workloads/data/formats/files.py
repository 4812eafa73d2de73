"""Images that are files in folders."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from pytest_accel.workloads.data.errors import reading, unreadable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pytest_accel.workloads.data.formats.names import PackedNames


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Files:
    """Where each image is, and its label. No file is open between reads: workers may be forked at any time."""

    root: str
    folders: tuple[str, ...]  # relative to the root
    folder_of: NDArray[np.int32]
    names: PackedNames
    labels: NDArray[np.int64]
    storage: Literal["files"] = "files"

    @property
    def groups(self) -> tuple[int, ...]:
        return (len(self.names),)

    def name(self, index: int) -> str:
        return str(Path(self.root, self.folders[self.folder_of[index]], self.names[index]))

    def read(self, index: int) -> NDArray[np.uint8]:
        return read_whole(self.name(index))


def read_whole(path: str) -> NDArray[np.uint8]:
    """Return the bytes of a file; DataError where it is missing or ends too early."""
    with reading(path), Path(path).open("rb", buffering=0) as file:
        data = np.empty(os.fstat(file.fileno()).st_size, np.uint8)
        count = file.readinto(data.data)
    if count != len(data):
        raise unreadable(path, f"short: {count} of {len(data)} bytes came", "Check the disk it lies on.")
    return data
