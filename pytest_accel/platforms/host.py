"""Kernel files of this host: bounded reads, and the CPU and memory limits of this process's control groups."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MOST_BYTES = 1 << 18  # /proc/stat of a thousand CPUs is 150 KB
MOST_NAMES = 10_000  # entries of one folder
REFUSED = "permission denied"

_CGROUPS = "sys/fs/cgroup"
_NO_LIMIT_BYTES = 1 << 60  # version 1 writes "none" as the largest number of pages


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFiles:
    """Files below a root that tests replace; paths have no leading slash."""

    root: Path = Path("/")

    def attempt(self, path: str) -> tuple[str, str]:
        """Return the stripped text, or why there is none."""
        text, why = read_file(self.root / path)
        return text, f"/{path}: {why}" if why else ""

    def text(self, path: str) -> str:
        return self.attempt(path)[0]

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
        # Non-blocking: a pipe in the place of a file must not block us.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            content = b""
            while len(content) < MOST_BYTES and (part := os.read(descriptor, MOST_BYTES - len(content))):
                content += part
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        if getattr(error, "errno", None) in (errno.EACCES, errno.EPERM):
            return "", REFUSED
        return "", (getattr(error, "strerror", None) or str(error)).lower()
    return content.decode("utf-8", "replace").strip(), ""


def folder_names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry, _ in zip(entries, range(MOST_NAMES), strict=False))
    except (OSError, ValueError):
        return []


def whole_number(text: str) -> int | None:
    """Return a whole number that is not negative; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


def number_fields(lines: list[str]) -> dict[str, int]:
    """Parse lines of a name and a number, such as `nr_periods 12`; other lines are ignored."""
    words = (line.split() for line in lines)
    found = ((word[0], whole_number(word[1])) for word in words if len(word) == 2)
    return {name: number for name, number in found if number is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuQuota:
    """CPU time limit in CPUs, the smallest of all groups above this process; None without one."""

    cpus: float | None = None
    throttled: int = 0  # periods in which the group had to wait
    periods: int = 0
    unreadable: str = ""  # the file and its content


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """Memory limit, the smallest of all groups above this process, and the use without reclaimable cache."""

    limit_bytes: int | None = None
    used_bytes: int | None = None
    kills: int = 0  # processes that the kernel killed because of the limit
    unreadable: str = ""


def read_quota(files: HostFiles) -> CpuQuota:
    found = [_quota_of(files, folder) for folder in _group_folders(files, "cpu")]
    limited = [quota for quota in found if quota.cpus is not None]
    unreadable = next((quota for quota in found if quota.unreadable), CpuQuota())
    return min(limited, key=lambda quota: quota.cpus or 0, default=unreadable)


def read_memory_limit(files: HostFiles) -> MemoryLimit:
    found = [_memory_limit_of(files, folder) for folder in _group_folders(files, "memory")]
    limited = [each for each in found if each.limit_bytes is not None]
    unreadable = next((each for each in found if each.unreadable), MemoryLimit())
    return min(limited, key=lambda each: each.limit_bytes or 0, default=unreadable)


def _group_folders(files: HostFiles, controller: str) -> Iterator[str]:
    """Yield the folders of this process's groups and of those above, in every hierarchy that may limit it.

    In a container the file often names a path of the host that is not mounted: then the mount's root counts.
    """
    for line in files.lines("proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mounts = [_CGROUPS, f"{_CGROUPS}/unified"]
        elif controller in controllers.split(","):
            mounts = list(dict.fromkeys([f"{_CGROUPS}/{controllers}", f"{_CGROUPS}/{controller}"]))
        else:
            continue
        group = PurePosixPath("/", path.lstrip("/"))
        above = [] if ".." in group.parts else [group, *group.parents]  # "..": outside our namespace
        for mount in mounts:
            for each in above or [PurePosixPath("/")]:
                yield mount + (f"{each}" if each.name else "")


def _quota_of(files: HostFiles, folder: str) -> CpuQuota:
    text = files.text(f"{folder}/cpu.max")  # "max 100000", "150000 100000"
    place = f"/{folder}/cpu.max"
    if not text:
        quota = files.text(f"{folder}/cpu.cfs_quota_us")  # version 1; -1: none
        text = f"{'max' if quota.startswith('-') else quota} {files.text(f'{folder}/cpu.cfs_period_us')}"
        place = f"/{folder}/cpu.cfs_quota_us"
        if not quota:
            return CpuQuota()
    words = text.split()
    if words[0] == "max":
        return CpuQuota()
    numbers = [whole_number(word) for word in words]
    if len(numbers) != 2 or not numbers[0] or not numbers[1]:
        return CpuQuota(unreadable=f"{place} says {text.strip()[:40]!r}")
    stat = number_fields(files.lines(f"{folder}/cpu.stat"))
    return CpuQuota(
        cpus=numbers[0] / numbers[1], throttled=stat.get("nr_throttled", 0), periods=stat.get("nr_periods", 0)
    )


def _memory_limit_of(files: HostFiles, folder: str) -> MemoryLimit:
    for limit_name, used_name, cache_name, events in (
        ("memory.max", "memory.current", "inactive_file", "memory.events"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "memory.oom_control"),
    ):
        text = files.text(f"{folder}/{limit_name}")
        if not text or text == "max":
            continue
        limit = whole_number(text)
        if not limit:
            return MemoryLimit(unreadable=f"/{folder}/{limit_name} says {text[:40]!r}")
        if limit >= _NO_LIMIT_BYTES:
            continue
        used = whole_number(files.text(f"{folder}/{used_name}"))
        cache = number_fields(files.lines(f"{folder}/memory.stat")).get(cache_name, 0)
        return MemoryLimit(
            limit_bytes=limit,
            used_bytes=None if used is None else max(0, used - cache),
            kills=number_fields(files.lines(f"{folder}/{events}")).get("oom_kill", 0),
        )
    return MemoryLimit()
