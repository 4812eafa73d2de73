"""What the kernel grants this process: CPU time and memory of its control group, version 1 or 2."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pytest_accel.platforms.files import pairs, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_accel.platforms.files import Files

_ROOT = "sys/fs/cgroup"
_NO_LIMIT_BYTES = 1 << 60  # version 1 writes "none" as the largest number of pages


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """CPUs' worth of time, the least of all groups above; None without a quota."""

    cpus: float | None = None
    throttled: int = 0  # periods in which the group had to wait
    periods: int = 0
    garbage: tuple[str, str] | None = None  # the file, and what it says


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """Bytes of memory, the least of all groups above, and what is used there without what can be dropped."""

    limit_bytes: int | None = None
    used_bytes: int | None = None
    kills: int = 0  # processes that the kernel ended because of it
    garbage: tuple[str, str] | None = None


def read_quota(files: Files) -> Quota:
    found = [_quota_of(files, folder) for folder in _folders(files, "cpu")]
    limited = [quota for quota in found if quota.cpus is not None]
    garbage = next((quota for quota in found if quota.garbage), Quota())
    return min(limited, key=lambda quota: quota.cpus or 0, default=garbage)


def read_allowance(files: Files) -> Allowance:
    found = [_allowance_of(files, folder) for folder in _folders(files, "memory")]
    limited = [each for each in found if each.limit_bytes is not None]
    garbage = next((each for each in found if each.garbage), Allowance())
    return min(limited, key=lambda each: each.limit_bytes or 0, default=garbage)


def _folders(files: Files, controller: str) -> Iterator[str]:
    """Folders of this process's groups, its own first, then those above, in every hierarchy that may limit it.

    In a container the file often names a path of the host that is not mounted: then the mount's own root counts.
    """
    for line in files.lines("proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mounts = [_ROOT, f"{_ROOT}/unified"]
        elif controller in controllers.split(","):
            mounts = list(dict.fromkeys([f"{_ROOT}/{controllers}", f"{_ROOT}/{controller}"]))
        else:
            continue
        group = PurePosixPath("/", path.lstrip("/"))
        above = [] if ".." in group.parts else [group, *group.parents]  # "..": outside what we may see
        for mount in mounts:
            for each in above or [PurePosixPath("/")]:
                yield mount + (f"{each}" if each.name else "")


def _quota_of(files: Files, folder: str) -> Quota:
    text = files.text(f"{folder}/cpu.max")  # "max 100000", "150000 100000"
    place = f"/{folder}/cpu.max"
    if not text:
        quota = files.text(f"{folder}/cpu.cfs_quota_us")  # -1: none
        text = f"{'max' if quota.startswith('-') else quota} {files.text(f'{folder}/cpu.cfs_period_us')}"
        place = f"/{folder}/cpu.cfs_quota_us"
        if not quota:
            return Quota()
    words = text.split()
    if words[0] == "max":
        return Quota()
    numbers = [whole(word) for word in words]
    if len(numbers) != 2 or not numbers[0] or not numbers[1]:
        return Quota(garbage=(place, text.strip()))
    told = pairs(files.lines(f"{folder}/cpu.stat"))
    return Quota(
        cpus=numbers[0] / numbers[1], throttled=told.get("nr_throttled", 0), periods=told.get("nr_periods", 0)
    )


def _allowance_of(files: Files, folder: str) -> Allowance:
    for limit_name, used_name, dropped, events in (
        ("memory.max", "memory.current", "inactive_file", "memory.events"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "memory.oom_control"),
    ):
        text = files.text(f"{folder}/{limit_name}")
        if not text or text == "max":
            continue
        limit = whole(text)
        if not limit:
            return Allowance(garbage=(f"/{folder}/{limit_name}", text))
        if limit >= _NO_LIMIT_BYTES:
            continue
        used = whole(files.text(f"{folder}/{used_name}"))
        cache = pairs(files.lines(f"{folder}/memory.stat")).get(dropped, 0)
        return Allowance(
            limit_bytes=limit,
            used_bytes=None if used is None else max(0, used - cache),
            kills=pairs(files.lines(f"{folder}/{events}")).get("oom_kill", 0),
        )
    return Allowance()
