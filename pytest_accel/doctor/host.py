"""Checks of the host: processors, memory, disks, and other load."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_accel.doctor.findings import Finding, Sheet
from pytest_accel.platforms.host import HostFiles, read_memory_limit, read_quota, whole_number
from pytest_accel.platforms.machine import find_cpu
from pytest_accel.platforms.numa import format_list, parse_list
from pytest_accel.stats.quantities import counted, gibibytes, percent
from pytest_accel.storage.files import nearest_folder

CPU, MEMORY, LOAD = Sheet(group="cpu"), Sheet(group="memory"), Sheet(group="load")
DISK = "disk"

_CPUS = "sys/devices/system/cpu"
_THROTTLED = 0.01  # of periods; less is normal at a start

LITTLE_MEMORY_BYTES = 2 << 30  # torch with CUDA and a small model take about that much of the host

FULL_BYTES = 100 << 20  # a run, its JSON and its report take a few MiB; below this, writing fails soon
LITTLE_DISK_BYTES = 2 << 30  # compiled kernels and a checkpoint take some GiB
# Each batch of a loader's worker is stored there: 256 images of 224 px in float32 are 150 MiB.
LITTLE_SHARED_BYTES = 1 << 30

OBSERVED_S = 0.25  # 25 ticks of each CPU
BUSY = 0.10  # of the CPUs
TAKEN = 0.5  # of the CPUs: no measurement that involves the host is possible
STOLEN = 0.02
_LOADED = 0.5  # of the host's CPUs, over a minute: work that paused while we observed


# --- processors -------------------------------------------------------------------------------------


def examine_cpus(files: HostFiles, cpus: frozenset[int]) -> list[Finding]:
    """Check the CPUs that this process may run on, their time limit and their governor."""
    return [_visible_cpus(files, cpus), _quota(files, len(cpus)), _governor(files, cpus)]


def _visible_cpus(files: HostFiles, cpus: frozenset[int]) -> Finding:
    if not cpus:
        return CPU.unknown("CPUs", "this system has no CPU affinity")
    name = find_cpu(cpuinfo=files.root / "proc/cpuinfo").name
    online = parse_list(files.text(f"{_CPUS}/online"))
    rest = f" of the host's {len(online)}" if online - cpus else ""
    return CPU.ok("CPUs", f"{counted(len(cpus), 'CPU')}{rest} ({format_list(cpus)}), {name}")


def _quota(files: HostFiles, visible: int) -> Finding:
    quota = read_quota(files)
    if quota.unreadable:
        return CPU.unknown("quota", quota.unreadable)
    if quota.cpus is None:
        return CPU.ok("quota", "none: no group limits CPU time")
    waited = quota.throttled / quota.periods if quota.periods else 0.0
    text = f"{quota.cpus:g} CPUs' worth of time, {visible} visible"
    if waited >= _THROTTLED:
        text += f"; it ran out in {percent(waited)} of periods so far"
    if quota.cpus < visible:
        threads = max(1, int(quota.cpus))
        remedy = (
            f"Threads for all visible CPUs would stall: set OMP_NUM_THREADS={threads} and at most {threads} loader "
            "workers, or raise the limit (Kubernetes: limits.cpu; docker: --cpus)."
        )
        return CPU.warning("quota", text, remedy)
    if waited >= _THROTTLED:
        return CPU.warning("quota", text, "Run fewer threads, or raise the limit.")
    return CPU.ok("quota", text)


def _governor(files: HostFiles, cpus: frozenset[int]) -> Finding:
    paths = (f"{_CPUS}/cpu{cpu}/cpufreq/scaling_governor" for cpu in sorted(cpus))
    counts = Counter(governor for path in paths if (governor := files.text(path)))
    if not counts:
        return CPU.unknown("governor", "no cpufreq here; a virtual machine or its host decides")
    words = ", ".join(f"{name} on {count}" for name, count in counts.most_common(3))
    if set(counts) == {"performance"}:
        return CPU.ok("governor", "performance")
    return CPU.warning(
        "governor",
        f"{words}: clocks follow the load, and the first steps are slower",
        "`cpupower frequency-set -g performance` as root, on the host.",
    )


# --- memory -----------------------------------------------------------------------------------------


def examine_memory(files: HostFiles) -> list[Finding]:
    """Check free memory of the host and of this process's control group."""
    words = (line.split() for line in files.lines("proc/meminfo"))  # MemTotal:  24682740 kB
    fields = {word[0].rstrip(":"): whole_number(word[1]) for word in words if len(word) >= 2}
    total_kib, free_kib = fields.get("MemTotal"), fields.get("MemAvailable")
    if total_kib is None or free_kib is None:
        return [MEMORY.unknown("host", "/proc/meminfo has no MemAvailable"), _memory_limit(files, None)]
    total, free = total_kib * 1024, free_kib * 1024
    room = _room("host", f"{gibibytes(free)} free of {gibibytes(total)}", free)
    return [room, _memory_limit(files, total)]


def _memory_limit(files: HostFiles, total: int | None) -> Finding:
    group = read_memory_limit(files)
    if group.unreadable:
        return MEMORY.unknown("limit", group.unreadable)
    if group.limit_bytes is None or (total is not None and group.limit_bytes >= total):
        return MEMORY.ok("limit", "none: no group limits memory")
    free = max(0, group.limit_bytes - (group.used_bytes or 0))
    text = f"{gibibytes(free)} left of {gibibytes(group.limit_bytes)} for this group"
    text += f"; processes killed for lack of it: {group.kills}" if group.kills else ""
    return _room("limit", text, free)


def _room(subject: str, text: str, free: int) -> Finding:
    if free < LITTLE_MEMORY_BYTES:
        remedy = "A run may be killed or swap: end other processes, or request more memory."
        return MEMORY.warning(subject, text, remedy)
    return MEMORY.ok(subject, text)


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
    return [
        *([Folder(purpose="data", path=data, written=False)] if data else []),
        *([Folder(purpose="baselines", path=baselines)] if baselines else []),
        Folder(purpose="temporary", path=temporary),
        *shared_memory(root),
    ]


def shared_memory(root: Path) -> list[Folder]:
    path = root / "dev/shm"
    if not path.is_dir():
        return []
    remedy = "Loader workers die with a bus error when it is full: start the container with --shm-size=8g or --ipc=host."
    return [
        Folder(purpose="shared memory", path=path, little_bytes=LITTLE_SHARED_BYTES, remedy=remedy),
    ]


def examine_folder(folder: Folder) -> list[Finding]:
    """Check free space and permissions; a dead file server blocks this call."""
    sheet = Sheet(group=DISK)
    present = nearest_folder(folder.path)
    if present != folder.path and not folder.written:
        remedy = "Mount it, or name the folder that holds the data sets."
        return [sheet.warning(folder.purpose, f"{folder.path} does not exist", remedy)]
    try:
        state = os.statvfs(present)
    except OSError as error:
        text = f"{folder.path}: {(error.strerror or str(error)).lower()}"
        return [sheet.problem(folder.purpose, text, "Mount it, or name another folder.")]
    text = f"{gibibytes(state.f_bavail * state.f_frsize)} free at {folder.path}"
    text += "" if present == folder.path else " (does not exist yet)"
    if not folder.written:
        return [sheet.ok(folder.purpose, text)]
    return [_space(folder, text, state, is_writable=os.access(present, os.W_OK))]


def _space(folder: Folder, text: str, state: os.statvfs_result, *, is_writable: bool) -> Finding:
    sheet, free = Sheet(group=DISK), state.f_bavail * state.f_frsize
    if free < FULL_BYTES or (state.f_files > 0 and state.f_favail == 0):
        what = "full" if free < FULL_BYTES else "no file can be added (no inode is left)"
        return sheet.problem(folder.purpose, f"{text}: {what}", folder.remedy)
    if not is_writable:
        remedy = "Judging works, recording does not: change its owner or its mount, or name another folder."
        return sheet.warning(folder.purpose, f"{text}; it cannot be written to", remedy)
    if free < folder.little_bytes:
        return sheet.warning(folder.purpose, text, folder.remedy)
    return sheet.ok(folder.purpose, text)


# --- other load -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuShares:
    """Shares of the time of the observed CPUs."""

    busy: float
    stolen: float  # by the hypervisor, for other virtual machines


def examine_load(files: HostFiles, cpus: frozenset[int], pause: Callable[[float], None]) -> list[Finding]:
    """Observe the CPUs for a moment in which this process is idle."""
    before = files.text("proc/stat")
    pause(OBSERVED_S)
    after = files.text("proc/stat")
    shares = cpu_shares(before, after, cpus)
    if shares is None:
        return [LOAD.unknown("other work", "/proc/stat counts no time")]
    findings = [_busy(shares.busy, files.text("proc/loadavg"), online=len(_ticks(after)))]
    if shares.stolen >= STOLEN:
        text = f"{percent(shares.stolen, 0)} of these CPUs went to other virtual machines"
        remedy = "Request dedicated CPUs, or measure when the host is quiet."
        findings.append(LOAD.warning("stolen time", text, remedy))
    return findings


def cpu_shares(before: str, after: str, cpus: frozenset[int]) -> CpuShares | None:
    """Return the shares between two readings of /proc/stat; None if they do not count."""
    old, new = _ticks(before), _ticks(after)
    both = [cpu for cpu in old if cpu in new and (cpu in cpus or not cpus)]
    spent = [[now - then for then, now in zip(old[cpu], new[cpu], strict=True)] for cpu in both]
    total = sum(map(sum, spent))
    if total <= 0 or any(ticks < 0 for each in spent for ticks in each):
        return None
    idle = sum(each[3] + each[4] for each in spent)
    stolen = sum(each[7] for each in spent)
    return CpuShares(busy=(total - idle - stolen) / total, stolen=stolen / total)


def _ticks(stat: str) -> dict[int, list[int]]:
    """Return by CPU: user, nice, system, idle, iowait, irq, softirq, steal. User includes guests."""
    found = {}
    for words in filter(None, map(str.split, stat.splitlines())):
        number = whole_number(words[0].removeprefix("cpu"))
        ticks = [each for each in map(whole_number, words[1:9]) if each is not None]
        if words[0].startswith("cpu") and number is not None and len(ticks) == 8:
            found[number] = ticks
    return found


def _busy(busy: float, loadavg: str, *, online: int) -> Finding:
    try:
        minute = float(loadavg.partition(" ")[0])
    except ValueError:
        minute = None
    text = f"{percent(busy, 0)} of these CPUs busy with other work"
    text += "" if minute is None else f", load {minute:g} over the last minute"
    remedy = "End it or wait (`top`): a run beside other work is noisier, and reports how busy the host was."
    if busy >= TAKEN:
        return LOAD.problem("other work", text, remedy)
    if busy >= BUSY or (minute is not None and minute >= max(1, _LOADED * online)):
        return LOAD.warning("other work", text, remedy)
    return LOAD.ok("other work", text)
