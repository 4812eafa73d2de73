"""CPU and memory affinity: each rank on the CPUs and the memory nearest to its device.

Ranks bind before their first test is set up: thread pools and buffers come later. Memory that was touched while
modules were imported stays where it is.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from pytest_accel.platforms import numa
from pytest_accel.platforms.numa import DeviceAffinity, Topology, format_list
from pytest_accel.stats.quantities import counted

TASKS = Path("/proc/self/task")

# linux/mempolicy.h. Preferred, not bound: a full node then means slower memory, not the end of the rank.
MPOL_PREFERRED = 1
MPOL_PREFERRED_MANY = 5  # Linux 5.15

# Numbers of get_mempolicy and set_mempolicy (the kernel's syscall tables).
_SYSCALLS = {"x86_64": (239, 238), "aarch64": (236, 237)}
_MASK_BITS = 1024  # the largest MAX_NUMNODES that a kernel can be built with
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """CPUs and memory nodes of one rank. No CPUs: it is not bound, and `reason` says why."""

    cpus: frozenset[int] = frozenset()
    memory_nodes: frozenset[int] = frozenset()  # none: the kernel's own choice, which is near the running CPU
    reason: str = ""


def plan(
    host: Topology,
    *,
    allowed: frozenset[int],
    places: Sequence[DeviceAffinity | None],
    memory: frozenset[int] | None = None,
) -> tuple[Binding, ...]:
    """Return the bindings of all ranks of one host, by local rank.

    `places` are where their devices are (None for ranks on the CPU). Ranks with the same CPUs to choose from get equal
    parts of them. `memory` are the allowed memory nodes, if known.
    """
    pools = [_pool(host, allowed, place) for place in places]
    return tuple(_bind_to_part(host, pools, rank, memory) for rank in range(len(pools)))


def shares(cpus: frozenset[int], parts: int, host: Topology) -> list[frozenset[int]]:
    """Split CPUs into disjoint parts, equal to within one core, that keep NUMA nodes and sibling threads together.

    With fewer cores than parts, siblings are separated; with fewer CPUs than parts, some parts are empty.
    """
    node_of = {cpu: node.index for node in host.nodes for cpu in node.cpus}
    known = [core & cpus for core in host.cores if core & cpus]
    cores = [*known, *(frozenset({cpu}) for cpu in cpus.difference(*known))]
    if len(cores) < parts:
        cores = [frozenset({cpu}) for cpu in cpus]
    cores.sort(key=lambda core: (node_of.get(min(core), -1), min(core)))
    cuts = [len(cores) * part // parts for part in range(parts + 1)]
    return [frozenset().union(*cores[begin:end]) for begin, end in pairwise(cuts)]


def _pool(host: Topology, allowed: frozenset[int], place: DeviceAffinity | None) -> frozenset[int] | str:
    """Return the CPUs that a rank gets a part of; or why it is not bound."""
    if place is None:
        return allowed or "allowed CPUs unknown"
    near = allowed & place.cpus
    obstacles = {
        "allowed CPUs unknown": not allowed,
        "NUMA nodes unknown": not host.cpus,
        "one NUMA node": len(host.nodes_of(host.cpus)) == 1,
        place.problem or "its device's CPUs unknown": not place.cpus,
        # So drivers and kernels answer where the firmware says nothing.
        "its device is near no NUMA node in particular": place.cpus >= host.cpus,
        f"its device's CPUs {format_list(place.cpus)} are not among the allowed {format_list(allowed)}": not near,
    }
    return next((reason for reason, holds in obstacles.items() if holds), near)


def _bind_to_part(
    host: Topology, pools: Sequence[frozenset[int] | str], rank: int, memory: frozenset[int] | None
) -> Binding:
    """Return the binding of a rank to its part of the pool that it shares."""
    pool = pools[rank]
    if isinstance(pool, str):
        return Binding(reason=pool)
    if any(not isinstance(other, str) and other != pool and other & pool for other in pools):
        return Binding(reason="the CPUs of local ranks overlap in part")
    sharers = [other for other, its_pool in enumerate(pools) if its_pool == pool]
    if len(pool) < len(sharers):
        return Binding(reason=f"{counted(len(pool), 'CPU')} for {len(sharers)} ranks")
    cpus = shares(pool, len(sharers), host)[sharers.index(rank)]
    return Binding(cpus=cpus, memory_nodes=_memory_of(host, cpus, memory))


def _memory_of(host: Topology, cpus: frozenset[int], memory: frozenset[int] | None) -> frozenset[int]:
    """Return the memory nodes of these CPUs; none where there is nothing to choose.

    Only nodes with CPUs count: memory without CPUs is a device's own (a Grace Hopper's HBM) or far away (CXL).
    """
    near = host.nodes_of(cpus)
    if len(near) == len(host.nodes_of(host.cpus)):
        return frozenset()
    return frozenset(
        node.index for node in near if node.memory_bytes and (memory is None or node.index in memory)
    )


@dataclass(slots=True, kw_only=True)
class Bound:
    """A binding that was applied to this process, and how to undo it."""

    binding: Binding
    memory: str = ""  # in words: "memory node 0", or why not
    cpus_before: dict[int, frozenset[int]] = field(default_factory=dict)  # by thread
    policy_before: tuple[int, frozenset[int]] | None = None  # mode and nodes

    def describe(self) -> str:
        """`cpus 0-15, memory node 0`, or `none (one NUMA node)`."""
        if not self.binding.cpus:
            return f"none ({self.binding.reason})"
        return ", ".join(filter(None, [f"cpus {format_list(self.binding.cpus)}", self.memory]))

    def restore(self) -> None:
        """Undo the binding; threads started since get what the first thread had. A second call does nothing."""
        before, self.cpus_before = self.cpus_before, {}
        for thread in _threads() if before else ():
            with suppress(OSError):  # it ended, or the cpuset shrank
                os.sched_setaffinity(thread, before.get(thread, before.get(os.getpid(), self.binding.cpus)))
        policy, self.policy_before = self.policy_before, None
        if policy is not None:
            with suppress(OSError):
                set_memory_policy(*policy)


def bind_rank(*, mode: str, device_uuids: Sequence[str | None], local_rank: int) -> Bound:
    """Bind this process as one of the ranks of its host. Never raises: the result says what was done.

    `mode` is auto, none, or launcher (which gave each rank its CPUs). `device_uuids` are those of all local ranks, None
    for a rank on the CPU.
    """
    if mode == "none":
        return Bound(binding=Binding(reason="switched off"))
    allowed = numa.allowed_cpus()
    if mode == "launcher":
        return Bound(binding=Binding(reason=f"the launcher gave it cpus {format_list(allowed)}"))
    if list(device_uuids) == [None]:
        return Bound(binding=Binding(reason="one rank on this host"))
    host = numa.topology()
    places = numa.device_affinities(device_uuids, host)
    return apply(plan(host, allowed=allowed, places=places, memory=numa.allowed_memory())[local_rank])


def apply(binding: Binding) -> Bound:
    """Bind all threads of this process to the CPUs; this thread, and those it will start, to the memory."""
    bound = Bound(binding=binding)
    if not binding.cpus:
        return bound
    try:
        # A thread may start meanwhile.
        while fresh := [thread for thread in _threads() if thread not in bound.cpus_before]:
            for thread in fresh:
                bound.cpus_before[thread] = _bind_thread(thread, binding.cpus)
    except OSError as error:
        bound.restore()
        return Bound(binding=Binding(reason=f"CPUs {format_list(binding.cpus)}: {_why(error)}"))
    if nodes := binding.memory_nodes:
        try:
            before = memory_policy()
            set_memory_policy(MPOL_PREFERRED if len(nodes) == 1 else MPOL_PREFERRED_MANY, nodes)
        except OSError as error:
            bound.memory = f"memory not bound: {_why(error)}"
        else:
            bound.memory = f"memory node{'' if len(nodes) == 1 else 's'} {format_list(nodes)}"
            bound.policy_before = before
    return bound


def _bind_thread(thread: int, cpus: frozenset[int]) -> frozenset[int]:
    """Bind a thread; return the CPUs it had before."""
    try:
        before = frozenset(os.sched_getaffinity(thread))
        os.sched_setaffinity(thread, cpus)
    except ProcessLookupError:
        return cpus
    return before


def _threads() -> list[int]:
    return [int(path.name) for path in TASKS.iterdir()]


# --- memory policy of the kernel --------------------------------------------------------------------------


def memory_policy() -> tuple[int, frozenset[int]]:
    """Return mode and nodes of this thread's memory policy."""
    mode = ctypes.c_int()
    mask = _mask(())
    _memory_call(0, ctypes.byref(mode), mask, ctypes.c_ulong(_MASK_BITS + 1), None, ctypes.c_ulong(0))
    nodes = (bit for bit in range(_MASK_BITS) if mask[bit // _WORD_BITS] >> bit % _WORD_BITS & 1)
    return mode.value, frozenset(nodes)


def set_memory_policy(mode: int, nodes: Iterable[int]) -> None:
    """Set where this thread's new memory comes from. The kernel reads one bit less than the given size."""
    _memory_call(1, ctypes.c_int(mode), _mask(nodes), ctypes.c_ulong(_MASK_BITS + 1))


def _mask(nodes: Iterable[int]) -> ctypes.Array[ctypes.c_ulong]:
    mask = (ctypes.c_ulong * (_MASK_BITS // _WORD_BITS + 1))()
    for node in nodes:
        mask[node // _WORD_BITS] |= 1 << node % _WORD_BITS
    return mask


def _memory_call(which: int, *arguments: object) -> None:
    """Call get_mempolicy (0) or set_mempolicy (1) by number: libnuma is rarely installed."""
    numbers = _SYSCALLS.get(platform.machine())
    if numbers is None:
        raise OSError(errno.ENOSYS, "")
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    if call(ctypes.c_long(numbers[which]), *arguments) != 0:
        raise OSError(ctypes.get_errno(), "")


def _why(error: OSError) -> str:
    return os.strerror(error.errno or 0).lower()
