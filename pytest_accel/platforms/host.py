"""This host: kernel files, limits of control groups, NUMA nodes, the CPUs near a PCI device, and load."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

REFUSED = "permission denied"  # as the kernel says it


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
        return folder_names(self.root / path)

    def exists(self, path: str) -> bool:
        return os.path.lexists(self.root / path)


HOST = HostFiles()


def read_file(path: Path) -> tuple[str, str]:
    """Return the stripped text of a small file, or why it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").strip(), ""
    except OSError as error:
        return "", (error.strerror or str(error)).lower()


def folder_names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def whole_number(text: str) -> int | None:
    """Return a whole number that is not negative; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() else None


def number_fields(text: str) -> dict[str, int]:
    """Parse lines of a name and a number, such as `inactive_file 12`; other lines are ignored."""
    return {name: int(number) for name, number in re.findall(r"^(\S+) (\d+)$", text, re.MULTILINE)}


def cpu_quota(files: HostFiles) -> float | None:
    """Return the smallest quota of all groups above this process, in CPUs."""
    version_2 = (files.text(f"{folder}/cpu.max").split() for folder in _group_folders(files))
    version_1 = (
        [files.text(f"{folder}/cpu.cfs_{name}_us") for name in ("quota", "period")]
        for folder in _group_folders(files, "cpu")
    )
    # "150000 100000"; "max 100000" and "-1" are no limits.
    found = [[whole_number(word) or 0 for word in words] for words in (*version_2, *version_1)]
    return min((each[0] / each[1] for each in found if len(each) == 2 and all(each)), default=None)


def usable_cpus(files: HostFiles = HOST) -> float:
    """Return the CPUs whose time this process may use: those of its affinity, within the quota of its group."""
    return min(len(allowed_cpus()), cpu_quota(files) or math.inf)


def memory_limit(files: HostFiles) -> tuple[int, int] | None:
    """Return the smallest limit of all groups above this process and their use without reclaimable cache, in bytes."""
    found = []
    for folder in _group_folders(files):
        if limit := whole_number(files.text(f"{folder}/memory.max")):  # "max" is no limit
            used = whole_number(files.text(f"{folder}/memory.current")) or 0
            cache = number_fields(files.text(f"{folder}/memory.stat")).get("inactive_file", 0)
            found.append((limit, max(0, used - cache)))
    return min(found, default=None)


def _group_folders(files: HostFiles, controller: str = "") -> Iterator[str]:
    """Yield the folders of this process's group and of those above, of version 2 or of a controller of version 1.

    In a container the file often names a path of the host that is not mounted: then the mount's root counts.
    """
    for line in files.lines("proc/self/cgroup"):
        _, controllers, name = (*line.split(":", 2), "", "")[:3]
        if controller in controllers.split(",") and name:
            group = PurePosixPath("/", name.lstrip("/"))
            outside = ".." in group.parts  # of our namespace
            for each in [PurePosixPath("/")] if outside else [group, *group.parents]:
                yield f"sys/fs/cgroup{f'/{controllers}' if controller else ''}{each}".rstrip("/")


_SYSTEM = "sys/devices/system"
_MOST_NUMBERS = 1 << 16  # no kernel counts more CPUs; a corrupt list must not fill the memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The NUMA nodes and the physical cores (SMT siblings) of a host, as sets of CPUs.

    A node without CPUs (a Grace Hopper's HBM, CXL) is none here.
    """

    nodes: tuple[frozenset[int], ...] = ()
    cores: tuple[frozenset[int], ...] = ()

    @property
    def cpus(self) -> frozenset[int]:
        return frozenset().union(*self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAffinity:
    """The CPUs nearest to a device; empty if unknown, and `problem` says why."""

    cpus: frozenset[int] = frozenset()
    problem: str = ""


def topology(files: HostFiles = HOST) -> Topology:
    nodes = (parse_list(files.text(f"{path}/cpulist")) for path in _numbered(files, f"{_SYSTEM}/node/node"))
    cpus = _numbered(files, f"{_SYSTEM}/cpu/cpu")
    siblings = (parse_list(files.text(f"{path}/topology/thread_siblings_list")) for path in cpus)
    cores = sorted({core for core in siblings if core}, key=min)
    return Topology(nodes=tuple(filter(None, nodes)), cores=tuple(cores))


def allowed_cpus() -> frozenset[int]:
    """Return the CPUs that this process may run on: its affinity within its cgroup's cpuset."""
    return frozenset(os.sched_getaffinity(0))


def pci_affinity(bus_id: str, files: HostFiles) -> DeviceAffinity:
    """Return the CPUs near a PCI device; `bus_id` as the kernel spells it, or with NVML's long domain."""
    domain, _, rest = bus_id.lower().partition(":")
    name = f"{int(domain, 16):04x}:{rest}"
    folder = f"sys/bus/pci/devices/{name}"
    if files.text(f"{folder}/numa_node") in {"", "-1"}:  # -1: the firmware does not say
        return DeviceAffinity(problem=f"the kernel does not know the NUMA node of {name}")
    cpus = parse_list(files.text(f"{folder}/local_cpulist"))
    return DeviceAffinity(cpus=cpus, problem="" if cpus else f"no CPUs are local to {name}")


def parse_list(text: str) -> frozenset[int]:
    """Parse the kernel's lists: `0-3,8` is 0, 1, 2, 3, 8; anything else is empty."""
    numbers: set[int] = set()
    try:
        for part in filter(None, text.strip().split(",")):
            first, _, last = part.partition("-")
            if int(last or first) >= _MOST_NUMBERS:
                return frozenset()
            numbers.update(range(int(first), int(last or first) + 1))
    except ValueError:
        return frozenset()
    return frozenset(numbers)


def format_list(numbers: Iterable[int]) -> str:
    """Write numbers as the kernel does: `0-3,8`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def kfd_nodes(files: HostFiles) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the nodes of the kernel's topology of AMD GPUs in their order, with their properties."""
    for folder in _numbered(files, "sys/class/kfd/kfd/topology/nodes/"):
        yield folder, number_fields(files.text(f"{folder}/properties"))


def kfd_affinity(uuid: str, files: HostFiles) -> DeviceAffinity | None:
    """Return the affinity of an AMD GPU, whose UUID is `GPU-<unique_id>`, by its bus address."""
    for _, properties in kfd_nodes(files):
        unique_id = properties.get("unique_id")
        if unique_id and uuid.lower() == f"gpu-{unique_id:016x}":
            where = properties.get("location_id", 0)  # packed as by PCI: bus, then device and function
            bus, device, function = where >> 8 & 0xFF, where >> 3 & 0x1F, where & 0x7
            return pci_affinity(f"{properties.get('domain', 0):x}:{bus:02x}:{device:02x}.{function:x}", files)
    return None


def _numbered(files: HostFiles, prefix: str) -> list[str]:
    """Return the folders whose paths are this prefix and a number, by number."""
    folder, _, what = prefix.rpartition("/")
    numbers = (name.removeprefix(what) for name in files.names(folder) if name.startswith(what))
    return [f"{prefix}{number}" for number in sorted(int(each) for each in numbers if each.isdigit())]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Counters of this process and its CPUs at one moment; an empty or missing one is not shown here."""

    at_s: float
    process_s: float  # CPU time of this process
    children_s: float  # of its children and theirs, such as loader workers
    waits_s: Mapping[str, float]  # of each thread: ready, and not on a CPU
    throttled_s: float  # by the quota of its group
    stat: str  # /proc/stat
    cpus: frozenset[int]
    quota: float | None
    clock_mhz: float | None


def read_load(files: HostFiles = HOST) -> Load:
    """Read all counters: 1 ms in a process of torch with 7 threads; call it outside timed steps."""
    tasks = "proc/self/task"
    waits = {name: files.text(f"{tasks}/{name}/schedstat").split() for name in files.names(tasks)}
    words = files.text("proc/self/stat").rpartition(")")[2].split()
    cpu = words[36] if len(words) > 36 else "0"  # the CPU that the main thread was on last
    khz = whole_number(files.text(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq"))
    return Load(
        at_s=time.perf_counter(),
        process_s=time.process_time(),
        children_s=_children_s(files),
        waits_s={name: int(each[1]) / 1e9 for name, each in waits.items() if len(each) == 3},
        throttled_s=_throttled_s(files),
        stat=files.text("proc/stat"),
        cpus=allowed_cpus(),
        quota=cpu_quota(files),
        clock_mhz=khz / 1000 if khz else None,
    )


def load_metrics(before: Load, after: Load, steps: int) -> dict[str, float]:
    process_s, wall_s = after.process_s - before.process_s, after.at_s - before.at_s
    found = {"host_cpu_s_per_step": process_s / steps}
    waits_s = [now - before.waits_s.get(thread, 0.0) for thread, now in after.waits_s.items()]
    if any(after.waits_s.values()):  # a kernel that counts none has zeros
        # Threads that work together wait for the one that waits longest: of n equal random waits it is 1 + 1/2 + ... + 1/n.
        ranked = enumerate(sorted(waits_s, reverse=True), start=1)
        found["cpu_wait_s_per_step"] = sum(wait_s / rank for rank, wait_s in ranked) / steps
    if (throttled_s := after.throttled_s - before.throttled_s) > 0:
        found["cpu_throttled_s_per_step"] = throttled_s / steps
    cpus = float(len(after.cpus))
    found["usable_cpus"] = min(cpus, after.quota or math.inf)
    busy = busy_share(before.stat, after.stat, after.cpus)
    if busy is not None and wall_s > 0:
        ours_s = process_s + after.children_s - before.children_s
        found["other_cpu_share"] = min(1.0, max(0.0, busy - ours_s / wall_s / cpus))
    if before.clock_mhz and after.clock_mhz:
        found["cpu_clock_mhz"] = (before.clock_mhz + after.clock_mhz) / 2
    return found


def _children_s(files: HostFiles) -> float:
    """Return the CPU time of all children of this process and theirs, ended ones included."""
    ticks, left, seen = 0, ["self"], set[str]()
    while left:
        pid = left.pop()
        seen.add(pid)
        times = list(map(whole_number, files.text(f"proc/{pid}/stat").rpartition(")")[2].split()[11:15]))
        # User, system, those of ended children.
        ticks += sum(each or 0 for each in times[2 if pid == "self" else 0 :])
        for thread in files.names(f"proc/{pid}/task"):
            left += {*files.text(f"proc/{pid}/task/{thread}/children").split()} - seen
    return ticks / os.sysconf("SC_CLK_TCK")


def _throttled_s(files: HostFiles) -> float:
    """Return the time for which quotas stopped the groups of this process; the largest of all groups above it."""
    folders = (*_group_folders(files), *_group_folders(files, "cpu"))
    found = [number_fields(files.text(f"{folder}/cpu.stat")) for folder in folders]
    # Version 2 counts microseconds, version 1 nanoseconds.
    times_s = (each.get("throttled_usec", 0) / 1e6 + each.get("throttled_time", 0) / 1e9 for each in found)
    return max(times_s, default=0.0)


def busy_share(before: str, after: str, cpus: frozenset[int]) -> float | None:
    """Return the share that was not idle, by steal too, between two readings of /proc/stat; None if they do not count."""
    old, new = _ticks(before), _ticks(after)
    both = [cpu for cpu in old if cpu in new and (cpu in cpus or not cpus)]
    spent = [[now - then for then, now in zip(old[cpu], new[cpu], strict=True)] for cpu in both]
    total = sum(map(sum, spent))
    if total <= 0 or any(ticks < 0 for each in spent for ticks in each):
        return None
    return (total - sum(each[3] + each[4] for each in spent)) / total


def _ticks(stat: str) -> dict[int, list[int]]:
    """Return by CPU: user, nice, system, idle, iowait, irq, softirq, steal. User includes guests."""
    rows = re.findall(r"^cpu(\d+)((?: \d+){8})", stat, re.MULTILINE)
    return {int(cpu): [int(each) for each in ticks.split()] for cpu, ticks in rows}
