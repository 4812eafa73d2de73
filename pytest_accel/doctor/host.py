"""Checks of the host: processors, memory, disks, and other load."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_accel.doctor.findings import Finding, Sheet
from pytest_accel.platforms.host import (
    HostFiles,
    cpu_quota,
    cpu_shares,
    format_list,
    memory_limit,
    parse_list,
    whole_number,
)
from pytest_accel.platforms.machine import find_cpu
from pytest_accel.stats.quantities import counted, gibibytes, percent
from pytest_accel.storage.files import nearest_folder

CPU, MEMORY, LOAD, DISK = (Sheet(group) for group in ("cpu", "memory", "load", "disk"))
_CPUS = "sys/devices/system/cpu"

LITTLE_MEMORY_BYTES = 2 << 30  # torch with CUDA and a small model take about that much of the host
FULL_BYTES = 100 << 20  # a run, its JSON and its report take a few MiB; below this, writing fails soon
LITTLE_DISK_BYTES = 2 << 30  # compiled kernels and a checkpoint take some GiB
# Each batch of a loader's worker is stored there: 256 images of 224 px in float32 are 150 MiB.
LITTLE_SHARED_BYTES = 1 << 30

OBSERVED_S = 0.25  # 25 ticks of each CPU
BUSY = 0.10  # of the CPUs
TAKEN = 0.5  # of the CPUs: no measurement that involves the host is possible
STOLEN = 0.02


# --- processors -------------------------------------------------------------------------------------


def examine_cpus(files: HostFiles, cpus: frozenset[int]) -> list[Finding]:
    """Check the CPUs that this process may run on, their time limit and their governor."""
    name = find_cpu(cpuinfo=files.root / "proc/cpuinfo").name
    online = parse_list(files.text(f"{_CPUS}/online"))
    rest = f" of the host's {len(online)}" if online - cpus else ""
    text = f"{counted(len(cpus), 'CPU')}{rest} ({format_list(cpus)}), {name}"
    return [CPU("CPUs").ok(text), _quota(files, len(cpus)), _governor(files, cpus)]


def _quota(files: HostFiles, visible: int) -> Finding:
    quota = cpu_quota(files)
    if quota is None:
        return CPU("quota").ok("none: no group limits CPU time")
    text = f"{quota:g} CPUs' worth of time, {visible} visible"
    if quota >= visible:
        return CPU("quota").ok(text)
    threads = max(1, int(quota))
    remedy = (
        f"Threads for all visible CPUs would stall: set OMP_NUM_THREADS={threads} and at most {threads} loader "
        "workers, or raise the limit (Kubernetes: limits.cpu; docker: --cpus)."
    )
    return CPU("quota").warning(text, remedy)


def _governor(files: HostFiles, cpus: frozenset[int]) -> Finding:
    paths = (f"{_CPUS}/cpu{cpu}/cpufreq/scaling_governor" for cpu in sorted(cpus))
    counts = Counter(governor for path in paths if (governor := files.text(path)))
    if not counts:
        return CPU("governor").unknown("no cpufreq here; a virtual machine or its host decides")
    if set(counts) == {"performance"}:
        return CPU("governor").ok("performance")
    words = ", ".join(f"{name} on {count}" for name, count in counts.most_common(3))
    return CPU("governor").warning(
        f"{words}: clocks follow the load, and the first steps are slower",
        "`cpupower frequency-set -g performance` as root, on the host.",
    )


# --- memory -----------------------------------------------------------------------------------------


def examine_memory(files: HostFiles) -> list[Finding]:
    """Check free memory of the host and of this process's control group."""
    words = (line.split() for line in files.lines("proc/meminfo"))  # MemTotal:  24682740 kB
    kib = {word[0].rstrip(":"): whole_number(word[1]) or 0 for word in words if len(word) >= 2}
    total, free = kib.get("MemTotal", 0) * 1024, kib.get("MemAvailable", 0) * 1024
    if not total or not free:
        return [MEMORY("host").unknown("/proc/meminfo has no MemAvailable")]
    findings = [_room("host", f"{gibibytes(free)} free of {gibibytes(total)}", free)]
    group = memory_limit(files)
    if group is None or group.limit_bytes >= total:
        return [*findings, MEMORY("limit").ok("none: no group limits memory")]
    left = max(0, group.limit_bytes - group.used_bytes)
    text = f"{gibibytes(left)} left of {gibibytes(group.limit_bytes)} for this group"
    return [*findings, _room("limit", text, left)]


def _room(subject: str, text: str, free: int) -> Finding:
    if free < LITTLE_MEMORY_BYTES:
        remedy = "A run may be killed or swap: end other processes, or request more memory."
        return MEMORY(subject).warning(text, remedy)
    return MEMORY(subject).ok(text)


# --- disks ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder and its purpose."""

    purpose: str
    path: Path
    written: bool = True  # whether benchmarks write there
    little_bytes: int = LITTLE_DISK_BYTES
    remedy: str = "Free some space, or name another folder."


def folders(
    root: Path, environ: Mapping[str, str], *, data: Path | None, baselines: Path | None
) -> list[Folder]:
    """Return the folders that benchmarks use."""
    temporary = Path(environ.get("TMPDIR") or "/tmp")  # noqa: S108 -- torch stores compiled kernels there
    shared = Folder(
        purpose="shared memory",
        path=root / "dev/shm",
        little_bytes=LITTLE_SHARED_BYTES,
        remedy="Loader workers die with a bus error when it is full: start the container with --shm-size=8g or --ipc=host.",
    )
    return [
        *([Folder(purpose="data", path=data, written=False)] if data else []),
        *([Folder(purpose="baselines", path=baselines)] if baselines else []),
        Folder(purpose="temporary", path=temporary),
        *([shared] if shared.path.is_dir() else []),
    ]


def examine_folder(folder: Folder) -> list[Finding]:
    """Check free space and permissions; a dead file server blocks this call."""
    present = nearest_folder(folder.path)
    if present != folder.path and not folder.written:
        remedy = "Mount it, or name the folder that holds the data sets."
        return [DISK(folder.purpose).warning(f"{folder.path} does not exist", remedy)]
    try:
        state = os.statvfs(present)
    except OSError as error:
        text = f"{folder.path}: {(error.strerror or str(error)).lower()}"
        return [DISK(folder.purpose).problem(text, "Mount it, or name another folder.")]
    return [_space(folder, present, state)]


def _space(folder: Folder, present: Path, state: os.statvfs_result) -> Finding:
    free = state.f_bavail * state.f_frsize
    text = f"{gibibytes(free)} free at {folder.path}"
    text += "" if present == folder.path else " (does not exist yet)"
    if folder.written and (free < FULL_BYTES or (state.f_files > 0 and state.f_favail == 0)):
        what = "full" if free < FULL_BYTES else "no file can be added (no inode is left)"
        return DISK(folder.purpose).problem(f"{text}: {what}", folder.remedy)
    if folder.written and not os.access(present, os.W_OK):
        remedy = "Judging works, recording does not: change its owner or its mount, or name another folder."
        return DISK(folder.purpose).warning(f"{text}; it cannot be written to", remedy)
    if folder.written and free < folder.little_bytes:
        return DISK(folder.purpose).warning(text, folder.remedy)
    return DISK(folder.purpose).ok(text)


# --- other load -------------------------------------------------------------------------------------


def examine_load(files: HostFiles, cpus: frozenset[int], pause: Callable[[float], None]) -> list[Finding]:
    """Observe the CPUs for a moment in which this process is idle."""
    before = files.text("proc/stat")
    pause(OBSERVED_S)
    shares = cpu_shares(before, files.text("proc/stat"), cpus)
    if shares is None:
        return [LOAD("other work").unknown("/proc/stat counts no time")]
    busy, stolen = shares
    text = f"{percent(busy, 0)} of these CPUs busy with other work"
    remedy = "End it or wait (`top`): a run beside other work is noisier, and reports how busy the host was."
    if busy >= BUSY:
        findings = [
            (LOAD("other work").problem if busy >= TAKEN else LOAD("other work").warning)(text, remedy)
        ]
    else:
        findings = [LOAD("other work").ok(text)]
    if stolen >= STOLEN:
        text = f"{percent(stolen, 0)} of these CPUs went to other virtual machines"
        remedy = "Request dedicated CPUs, or measure when the host is quiet."
        findings.append(LOAD("stolen time").warning(text, remedy))
    return findings
