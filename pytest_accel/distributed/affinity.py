"""CPU affinity: each rank on the CPUs nearest to its device.

Memory follows: Linux takes it from the node of the CPU that touches it first. Ranks bind before their first test is set
up: thread pools and buffers come later.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from pytest_accel.platforms import host as this_host
from pytest_accel.platforms import machine
from pytest_accel.platforms.host import DeviceAffinity, Topology, format_list
from pytest_accel.stats.quantities import counted

TASKS = Path("/proc/self/task")
Cpus = frozenset[int]


def plan(host: Topology, *, allowed: Cpus, places: Sequence[DeviceAffinity | None]) -> list[Cpus | str]:
    """Return the CPUs of all ranks of one host, by local rank; for one that is not bound, the reason.

    `places` are where their devices are (None for ranks on the CPU). Ranks with the same CPUs to choose from get equal
    parts of them.
    """
    pools = [_pool(host, allowed, place) for place in places]
    planned: list[Cpus | str] = []
    for rank, pool in enumerate(pools):
        sharers = [other for other, its_pool in enumerate(pools) if its_pool == pool]
        if isinstance(pool, str):
            planned.append(pool)
        elif any(not isinstance(other, str) and other != pool and other & pool for other in pools):
            planned.append("the CPUs of local ranks overlap in part")
        elif len(pool) < len(sharers):
            planned.append(f"{counted(len(pool), 'CPU')} for {len(sharers)} ranks")
        else:
            planned.append(shares(pool, len(sharers), host)[sharers.index(rank)])
    return planned


def shares(cpus: Cpus, parts: int, host: Topology) -> list[Cpus]:
    """Split CPUs into disjoint parts, equal to within one core, that keep NUMA nodes and sibling threads together.

    With fewer cores than parts, siblings are separated; with fewer CPUs than parts, some parts are empty.
    """
    node_of = {cpu: index for index, node in enumerate(host.nodes) for cpu in node}
    known = [core & cpus for core in host.cores if core & cpus]
    cores = [*known, *(frozenset({cpu}) for cpu in cpus.difference(*known))]
    if len(cores) < parts:
        cores = [frozenset({cpu}) for cpu in cpus]
    cores.sort(key=lambda core: (node_of.get(min(core), -1), min(core)))
    cuts = [len(cores) * part // parts for part in range(parts + 1)]
    return [frozenset().union(*cores[begin:end]) for begin, end in pairwise(cuts)]


def _pool(host: Topology, allowed: Cpus, place: DeviceAffinity | None) -> Cpus | str:
    """Return the CPUs that a rank gets a part of; or why it is not bound."""
    if place is None:
        return allowed or "allowed CPUs unknown"
    near = allowed & place.cpus
    obstacles = {
        "allowed CPUs unknown": not allowed,
        "NUMA nodes unknown": not host.nodes,
        "one NUMA node": len(host.nodes) == 1,
        place.problem or "its device's CPUs unknown": not place.cpus,
        # So drivers and kernels answer where the firmware says nothing.
        "its device is near no NUMA node in particular": place.cpus >= host.cpus,
        f"its device's CPUs {format_list(place.cpus)} are not among the allowed {format_list(allowed)}": not near,
    }
    return next((reason for reason, holds in obstacles.items() if holds), near)


def bind_rank(*, mode: str, device_uuids: Sequence[str | None], local_rank: int) -> str:
    """Bind this process as one of the ranks of its host; return what was done: `cpus 0-15`, or `none (one NUMA node)`.

    `mode` is auto, none, or launcher (which gave each rank its CPUs). `device_uuids` are those of all local ranks, None
    for a rank on the CPU. Never raises.
    """
    if mode == "none":
        return "none (switched off)"
    allowed = this_host.allowed_cpus()
    if mode == "launcher":
        return f"none (the launcher gave it cpus {format_list(allowed)})"
    if list(device_uuids) == [None]:
        return "none (one rank on this host)"
    host = this_host.topology()
    cpus = plan(host, allowed=allowed, places=machine.device_affinities(device_uuids))[local_rank]
    if isinstance(cpus, str):
        return f"none ({cpus})"
    try:
        bind_threads(cpus)
    except OSError as error:
        return f"none (CPUs {format_list(cpus)}: {os.strerror(error.errno or 0).lower()})"
    return f"cpus {format_list(cpus)}"


def bind_threads(cpus: Cpus) -> None:
    """Bind all threads of this process; those that it will start inherit it."""
    bound: set[int] = set()
    while fresh := {int(task.name) for task in TASKS.iterdir()} - bound:  # a thread may start meanwhile
        for thread in fresh:
            try:
                os.sched_setaffinity(thread, cpus)
            except ProcessLookupError:
                continue
        bound |= fresh
