"""CIFAR-100 as its authors publish it: fixed records of bytes, or the same in a Python pickle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_accel.workloads.data import checksums
from pytest_accel.workloads.data.errors import reading, unreadable
from pytest_accel.workloads.data.formats.arrays import Arrays
from pytest_accel.workloads.data.formats.pickled import read_pickle
from pytest_accel.workloads.data.formats.places import find_folder

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_accel.workloads.data.formats.places import Split

BINARY, PICKLED = "cifar-100-binary", "cifar-100-python"
_RECORD = 2 + 3 * 32 * 32  # bytes: the coarse label, the fine one, then red, green and blue planes


def read_cifar100(root: Path, split: Split) -> Arrays:
    """Read one split; the binary files where both are there, since nothing in them has to be trusted."""
    binary, pickled = root / BINARY / f"{split}.bin", root / PICKLED / split
    if binary.is_file():
        return _read_records(binary)
    if pickled.is_file():
        checksums.verify(pickled, folder=pickled.parent, published=f"{PICKLED}/{split}")
        pixels, labels = read_pickle(pickled)
        return Arrays(images=pixels.reshape(-1, 3, 32, 32), labels=labels, labels_file=str(pickled))
    folder = find_folder(
        root, "cifar100", BINARY, PICKLED, archives=(f"{BINARY}.tar.gz", f"{PICKLED}.tar.gz")
    )
    name = binary.name if folder.name == BINARY else pickled.name
    raise unreadable(folder / name, "missing", f"Extract {folder.name}.tar.gz again.")


def _read_records(path: Path) -> Arrays:
    checksums.verify(path, folder=path.parent)
    with reading(path):
        data = np.fromfile(path, np.uint8)
    if not len(data) or len(data) % _RECORD:
        raise unreadable(
            path,
            f"torn: {len(data)} bytes are not whole records of {_RECORD}",
            f"Extract {BINARY}.tar.gz again.",
        )
    records = data.reshape(-1, _RECORD)
    return Arrays(
        images=records[:, 2:].reshape(-1, 3, 32, 32),
        labels=records[:, 1].astype(np.int64),
        labels_file=str(path),
    )
