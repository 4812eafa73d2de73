"""Kernel files of this host: bounded reads, and the CPU and memory limits of this process's control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MOST_BYTES = 1 << 18  # /proc/stat of a thousand CPUs is 150 KB
REFUSED = "permission denied"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFiles:
    """Files below a root that tests replace; paths have no leading slash."""

    root: Path = Path("/")

    def text(self, path: str) -> str:
        """Return the stripped text; empty if it cannot be read."""
        return read_file(self.root / path)[0]

    def lines(self, path: str) -> list[str]:
        return self.text(path).splitlines()

    def names(self, path: str) -> list[str]:
        """Return the sorted entries of a folder; none if there is no such folder."""
        return folder_names(self.root / path)

    def exists(self, path: str) -> bool:
        return os.path.lexists(self.root / path)


def read_file(path: Path) -> tuple[str, str]:
    """Return the stripped text of a small file, or why it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES)
    except PermissionError:
        return "", REFUSED
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        return "", (getattr(error, "strerror", None) or str(error)).lower()
    return content.decode("utf-8", "replace").strip(), ""


def folder_names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except (OSError, ValueError):
        return []


def whole_number(text: str) -> int | None:
    """Return a whole number that is not negative; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


def number_fields(lines: list[str]) -> dict[str, int]:
    """Parse lines of a name and a number, such as `inactive_file 12`; other lines are ignored."""
    words = (line.split() for line in lines)
    found = ((word[0], whole_number(word[1])) for word in words if len(word) == 2)
    return {name: number for name, number in found if number is not None}


# --- control groups (version 2) ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """A memory limit, and the use without reclaimable cache."""

    limit_bytes: int
    used_bytes: int


def cpu_quota(files: HostFiles) -> float | None:
    """Return the CPU time limit in CPUs, the smallest of all groups above this process; None without one."""
    found = []
    for folder in _group_folders(files):
        numbers = [whole_number(word) or 0 for word in files.text(f"{folder}/cpu.max").split()]
        if len(numbers) == 2 and all(numbers):  # "150000 100000"; "max 100000" is no limit
            found.append(numbers[0] / numbers[1])
    return min(found, default=None)


def memory_limit(files: HostFiles) -> MemoryLimit | None:
    """Return the smallest memory limit of all groups above this process; None without one."""
    found = []
    for folder in _group_folders(files):
        if limit := whole_number(files.text(f"{folder}/memory.max")):  # "max" is no limit
            used = whole_number(files.text(f"{folder}/memory.current")) or 0
            cache = number_fields(files.lines(f"{folder}/memory.stat")).get("inactive_file", 0)
            found.append(MemoryLimit(limit_bytes=limit, used_bytes=max(0, used - cache)))
    return min(found, key=lambda each: each.limit_bytes, default=None)


def _group_folders(files: HostFiles) -> Iterator[str]:
    """Yield the folders of this process's group and of those above.

    In a container the file often names a path of the host that is not mounted: then the mount's root counts.
    """
    for line in files.lines("proc/self/cgroup"):
        if line.startswith("0::"):
            group = PurePosixPath("/", line.removeprefix("0::").lstrip("/"))
            outside = ".." in group.parts  # of our namespace
            for each in [PurePosixPath("/")] if outside else [group, *group.parents]:
                yield f"sys/fs/cgroup{each}".rstrip("/")
