"""Which CPUs and which memory are near to what: NUMA nodes of this host, and the place of a GPU among them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_accel.platforms.nvml import Nvml, decoded, opened

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SYS = Path("/sys")
STATUS = Path("/proc/self/status")

_MOST_NUMBERS = 1 << 16  # no kernel counts more CPUs; a list of nonsense must not fill the memory
_WORD_BITS = 64  # of NVML's masks: C's unsigned long on every platform that has the driver


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A NUMA node. One may have memory and no CPUs (a Grace Hopper's HBM, CXL), or CPUs and no memory."""

    index: int
    cpus: frozenset[int] = frozenset()
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The nodes of a host, and its physical cores as the CPUs (SMT siblings) that share one."""

    nodes: tuple[Node, ...] = ()
    cores: tuple[frozenset[int], ...] = ()

    @property
    def cpus(self) -> frozenset[int]:
        return frozenset().union(*(node.cpus for node in self.nodes))

    def nodes_of(self, cpus: Iterable[int]) -> tuple[Node, ...]:
        """The nodes that these CPUs belong to."""
        wanted = frozenset(cpus)
        return tuple(node for node in self.nodes if node.cpus & wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a device is: the CPUs nearest to it; none where nobody knows, and `problem` says why."""

    cpus: frozenset[int] = frozenset()
    problem: str = ""


def topology(sys: Path = SYS) -> Topology:
    """This host's nodes and cores, as sysfs shows them; empty where it shows none."""
    nodes = tuple(
        Node(
            index=index,
            cpus=parse_list(_read(path / "cpulist")),
            memory_bytes=_memory_bytes(_read(path / "meminfo")),
        )
        for index, path in _numbered(sys / "devices/system/node", "node")
    )
    siblings = (
        parse_list(_read(path / "topology/thread_siblings_list"))
        for _, path in _numbered(sys / "devices/system/cpu", "cpu")
    )
    cores = sorted({core for core in siblings if core}, key=min)
    return Topology(nodes=nodes, cores=tuple(cores))


def allowed_cpus() -> frozenset[int]:
    """CPUs that the scheduler may put this process on: its affinity within its cgroup's cpuset."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not Linux
        return frozenset()


def allowed_memory(status: Path = STATUS) -> frozenset[int] | None:
    """Nodes that this process may take memory from, by its cgroup; None where the kernel does not say."""
    for line in _read(status).splitlines():
        key, _, value = line.partition(":")
        if key == "Mems_allowed_list":
            return parse_list(value)
    return None


def places(uuids: Sequence[str | None], host: Topology, *, sys: Path = SYS) -> list[Place | None]:
    """The place of each device; None for None, which is a rank without a device."""
    nvidia = _from_nvml([uuid for uuid in uuids if uuid], host, sys)
    found: list[Place | None] = []
    for uuid in uuids:
        if uuid is None:
            found.append(None)
        elif not uuid:
            found.append(Place(problem="its device has no UUID"))
        else:
            found.append(nvidia.get(uuid) or _from_kfd(uuid, sys) or Place(problem=f"no driver knows {uuid}"))
    return found


def pci_place(bus_id: str, sys: Path = SYS) -> Place:
    """The CPUs near a PCI device, by sysfs; `bus_id` as the kernel spells it, or with NVML's long domain."""
    domain, _, rest = bus_id.strip().lower().partition(":")
    try:
        directory = sys / "bus/pci/devices" / f"{int(domain, 16):04x}:{rest}"
    except ValueError:
        return Place(problem=f"{bus_id!r} is not the address of a PCI device")
    if _read(directory / "numa_node") in {"", "-1"}:  # -1: the firmware did not say
        return Place(problem=f"the kernel does not know the NUMA node of {directory.name}")
    cpus = parse_list(_read(directory / "local_cpulist"))
    return Place(cpus=cpus, problem="" if cpus else f"no CPUs are local to {directory.name}")


def parse_list(text: str) -> frozenset[int]:
    """The kernel's lists: `0-3,8` as 0, 1, 2, 3, 8; what is not a list is empty."""
    numbers: set[int] = set()
    try:
        for part in filter(None, (each.strip() for each in text.split(","))):
            first, dash, last = part.partition("-")
            if int(last if dash else first) >= _MOST_NUMBERS:
                return frozenset()
            numbers.update(range(int(first), int(last if dash else first) + 1))
    except ValueError:
        return frozenset()
    return frozenset(numbers)


def format_list(numbers: Iterable[int]) -> str:
    """Numbers as the kernel writes them: `0-3,8`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def mask_bits(words: Iterable[int]) -> frozenset[int]:
    """The set bits of NVML's mask, lowest word first."""
    return frozenset(
        position * _WORD_BITS + bit
        for position, word in enumerate(words)
        for bit in range(_WORD_BITS)
        if word >> bit & 1
    )


def _from_nvml(uuids: Sequence[str], host: Topology, sys: Path) -> dict[str, Place]:
    """Places of the devices that NVML knows; nothing without a driver: then the devices are not NVIDIA's."""
    if not uuids:
        return {}
    with opened() as nvml:
        asked = {uuid: _ask_nvml(nvml, uuid, host, sys) for uuid in uuids}
    return {uuid: place for uuid, place in asked.items() if place is not None}


def _ask_nvml(nvml: Nvml, uuid: str, host: Topology, sys: Path) -> Place | None:
    """None: not a device of NVML's. Where it keeps silent on affinity, sysfs is asked by the bus id."""
    handle = nvml.handle(uuid)
    if handle is not None and uuid.startswith("MIG-"):  # a slice is where its GPU is
        handle = nvml.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
    if handle is None:
        return None
    words = max(host.cpus, default=0) // _WORD_BITS + 1
    cpus = mask_bits(nvml.ask("nvmlDeviceGetCpuAffinity", handle, words) or ())
    if cpus:
        return Place(cpus=cpus)
    info, problem = nvml.attempt("nvmlDeviceGetPciInfo", handle)
    if info is None:
        return Place(problem=f"NVML does not say where {uuid} is: {problem}")
    return pci_place(decoded(info.busId), sys)


def _from_kfd(uuid: str, sys: Path) -> Place | None:
    """The place of an AMD GPU, whose UUID is `GPU-<unique_id>`, by the bus address in the kernel's topology."""
    for _, node in _numbered(sys / "class/kfd/kfd/topology/nodes", ""):
        pairs = (line.split() for line in _read(node / "properties").splitlines())
        properties = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
        unique_id = properties.get("unique_id")
        if unique_id and uuid.lower() == f"gpu-{unique_id:016x}":
            where = properties.get("location_id", 0)  # as PCI packs it: bus, then device and function
            bus, device, function = where >> 8 & 0xFF, where >> 3 & 0x1F, where & 0x7
            return pci_place(f"{properties.get('domain', 0):x}:{bus:02x}:{device:02x}.{function:x}", sys)
    return None


def _numbered(directory: Path, prefix: str) -> list[tuple[int, Path]]:
    """The entries named prefix and number, in the order of their numbers."""
    try:
        entries = list(directory.iterdir())
    except OSError:
        return []
    numbers = ((path.name.removeprefix(prefix), path) for path in entries if path.name.startswith(prefix))
    return sorted((int(number), path) for number, path in numbers if number.isdigit())


def _memory_bytes(meminfo: str) -> int:
    for line in meminfo.splitlines():  # "Node 0 MemTotal:  8140648 kB"
        words = line.split()
        if len(words) >= 4 and words[2] == "MemTotal:" and words[3].isdecimal():
            return int(words[3]) * 1024
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:  # a container may hide parts of sysfs
        return ""
