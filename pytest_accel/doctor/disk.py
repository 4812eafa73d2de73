"""Room where benchmarks read and write: data, baselines, temporary files, and memory shared between workers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_accel.doctor.findings import Sheet
from pytest_accel.stats.quantities import gibibytes
from pytest_accel.storage.files import nearest_folder

if TYPE_CHECKING:
    from pytest_accel.doctor.finding import Finding

GROUP = "disk"
FULL_BYTES = 100 << 20  # a run, its JSON and its report take a few MiB; below this, writing fails soon
LITTLE_BYTES = 2 << 30  # compiled kernels and a checkpoint take some GiB
# Each batch that a worker hands over lies here: 256 images of 224 px in float32 are 150 MiB.
LITTLE_SHARED_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder and what it is for."""

    purpose: str
    path: Path
    written: bool = True  # whether benchmarks write there
    little_bytes: int = LITTLE_BYTES
    remedy: str = "Free some, or name another folder."


def shared_memory(path: Path) -> Folder:
    return Folder(
        purpose="shared memory",
        path=path,
        little_bytes=LITTLE_SHARED_BYTES,
        remedy="Data workers die with a bus error when it is full: start the container with --shm-size=8g or "
        "--ipc=host.",
    )


def examine(folder: Folder) -> list[Finding]:
    """May hang where a file server is gone: to be called under a deadline."""
    return [_judged(folder)]


def _judged(folder: Folder) -> Finding:
    sheet = Sheet(group=GROUP)
    there = nearest_folder(folder.path)
    if there != folder.path and not folder.written:
        return sheet.warning(
            folder.purpose,
            f"{folder.path} is not there",
            "Mount it, or name the folder that holds the data sets.",
        )
    try:
        state = os.statvfs(there)
    except OSError as error:
        return sheet.problem(
            folder.purpose,
            f"{folder.path}: {(error.strerror or str(error)).lower()}",
            "Mount it, or name another folder.",
        )
    free = state.f_bavail * state.f_frsize
    text = f"{gibibytes(free)} free at {folder.path}"
    text += "" if there == folder.path else " (not there yet)"
    if folder.written and (free < FULL_BYTES or (state.f_files > 0 and state.f_favail == 0)):
        what = "full" if free < FULL_BYTES else "no file can be added (no inode is left)"
        return sheet.problem(folder.purpose, f"{text}: {what}", folder.remedy)
    if folder.written and not os.access(there, os.W_OK):
        return sheet.warning(
            folder.purpose,
            f"{text}; it cannot be written to",
            "Judging works, recording does not: change its owner or its mount, or name another folder.",
        )
    if folder.written and free < folder.little_bytes:
        return sheet.warning(folder.purpose, text, folder.remedy)
    return sheet.ok(folder.purpose, text)
