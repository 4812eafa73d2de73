"""This host: kernel files, limits of control groups, NUMA nodes, and the CPUs near a PCI device."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
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


# --- NUMA nodes, cores, and the CPUs near a device --------------------------------------------------

SYS = Path("/sys")

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


def topology(sys: Path = SYS) -> Topology:
    """Return this host's nodes and cores from sysfs; empty if it shows none."""
    nodes = (
        parse_list(read_file(path / "cpulist")[0]) for path in _numbered(sys / "devices/system/node", "node")
    )
    siblings = (
        parse_list(read_file(path / "topology/thread_siblings_list")[0])
        for path in _numbered(sys / "devices/system/cpu", "cpu")
    )
    cores = sorted({core for core in siblings if core}, key=min)
    return Topology(nodes=tuple(filter(None, nodes)), cores=tuple(cores))


def allowed_cpus() -> frozenset[int]:
    """Return the CPUs that this process may run on: its affinity within its cgroup's cpuset."""
    return frozenset(os.sched_getaffinity(0))


def pci_affinity(bus_id: str, sys: Path = SYS) -> DeviceAffinity:
    """Return the CPUs near a PCI device; `bus_id` as the kernel spells it, or with NVML's long domain."""
    domain, _, rest = bus_id.strip().lower().partition(":")
    try:
        directory = sys / "bus/pci/devices" / f"{int(domain, 16):04x}:{rest}"
    except ValueError:
        return DeviceAffinity(problem=f"{bus_id!r} is not the address of a PCI device")
    if read_file(directory / "numa_node")[0] in {"", "-1"}:  # -1: the firmware does not say
        return DeviceAffinity(problem=f"the kernel does not know the NUMA node of {directory.name}")
    cpus = parse_list(read_file(directory / "local_cpulist")[0])
    return DeviceAffinity(cpus=cpus, problem="" if cpus else f"no CPUs are local to {directory.name}")


def parse_list(text: str) -> frozenset[int]:
    """Parse the kernel's lists: `0-3,8` is 0, 1, 2, 3, 8; anything else is empty."""
    numbers: set[int] = set()
    try:
        for part in filter(None, text.strip().split(",")):
            first, dash, last = part.partition("-")
            if int(last if dash else first) >= _MOST_NUMBERS:
                return frozenset()
            numbers.update(range(int(first), int(last if dash else first) + 1))
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


def kfd_nodes(sys: Path) -> Iterator[tuple[Path, dict[str, int]]]:
    """Yield the nodes of the kernel's topology of AMD GPUs in their order, with their properties."""
    topology = sys / "class/kfd/kfd/topology/nodes"
    for number in sorted(int(name) for name in folder_names(topology) if name.isdecimal()):
        yield topology / str(number), kfd_properties(topology / str(number) / "properties")


def kfd_properties(path: Path) -> dict[str, int]:
    return number_fields(read_file(path)[0].splitlines())


def kfd_affinity(uuid: str, sys: Path) -> DeviceAffinity | None:
    """Return the affinity of an AMD GPU, whose UUID is `GPU-<unique_id>`, by its bus address."""
    for _, properties in kfd_nodes(sys):
        unique_id = properties.get("unique_id")
        if unique_id and uuid.lower() == f"gpu-{unique_id:016x}":
            where = properties.get("location_id", 0)  # packed as by PCI: bus, then device and function
            bus, device, function = where >> 8 & 0xFF, where >> 3 & 0x1F, where & 0x7
            return pci_affinity(f"{properties.get('domain', 0):x}:{bus:02x}:{device:02x}.{function:x}", sys)
    return None


def _numbered(directory: Path, prefix: str) -> list[Path]:
    """Return the entries named prefix and number, ordered by number."""
    numbers = (name.removeprefix(prefix) for name in folder_names(directory) if name.startswith(prefix))
    return [directory / f"{prefix}{number}" for number in sorted(int(n) for n in numbers if n.isdigit())]
