"""NUMA topology: nodes and cores of this host, and the CPUs nearest to each GPU."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_accel.platforms.amd import topology_nodes
from pytest_accel.platforms.host import folder_names, read_file
from pytest_accel.platforms.nvidia import Nvml, opened

SYS = Path("/sys")

_MOST_NUMBERS = 1 << 16  # no kernel counts more CPUs; a corrupt list must not fill the memory
_WORD_BITS = 64  # of NVML's masks: C's unsigned long on every platform that has the driver


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


def device_affinities(
    uuids: Sequence[str | None], host: Topology, *, sys: Path = SYS
) -> list[DeviceAffinity | None]:
    """Return the affinity of each device; None for None, which is a rank without a device."""
    if not any(uuids):
        return [None if uuid is None else DeviceAffinity(problem="its device has no UUID") for uuid in uuids]
    with opened() as nvml:
        return [
            uuid
            if uuid is None
            else _from_nvml(nvml, uuid, host, sys)
            or _from_kfd(uuid, sys)
            or DeviceAffinity(problem=f"no driver knows {uuid or 'a device without UUID'}")
            for uuid in uuids
        ]


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


def mask_bits(words: Iterable[int]) -> frozenset[int]:
    """Return the set bits of NVML's mask, lowest word first."""
    return frozenset(
        position * _WORD_BITS + bit
        for position, word in enumerate(words)
        for bit in range(_WORD_BITS)
        if word >> bit & 1
    )


def _from_nvml(nvml: Nvml, uuid: str, host: Topology, sys: Path) -> DeviceAffinity | None:
    """Return None for a device that NVML does not know; sysfs answers where NVML has no affinity."""
    handle = nvml.handle(uuid)
    if handle is not None and uuid.startswith("MIG-"):  # a slice is where its GPU is
        handle = nvml.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
    if handle is None:
        return None
    words = max(host.cpus, default=0) // _WORD_BITS + 1
    cpus = mask_bits(nvml.ask("nvmlDeviceGetCpuAffinity", handle, words) or ())
    if cpus:
        return DeviceAffinity(cpus=cpus)
    info, problem = nvml.attempt("nvmlDeviceGetPciInfo", handle)
    if info is None:
        return DeviceAffinity(problem=f"NVML does not report the bus of {uuid}: {problem}")
    return pci_affinity(str(info.busId), sys)


def _from_kfd(uuid: str, sys: Path) -> DeviceAffinity | None:
    """Return the affinity of an AMD GPU, whose UUID is `GPU-<unique_id>`, by its bus address."""
    for _, properties in topology_nodes(sys):
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
