"""The host's processors: which this process may use, for how long, how fast they are let, and by which clock."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_accel.doctor.findings import Sheet
from pytest_accel.platforms.host import read_quota
from pytest_accel.platforms.machine import find_cpu
from pytest_accel.platforms.numa import format_list, parse_list, topology
from pytest_accel.stats.quantities import counted, percent

if TYPE_CHECKING:
    from pytest_accel.doctor.finding import Finding
    from pytest_accel.platforms.host import Files

SHEET = Sheet(group="cpu")
_CPUS = "sys/devices/system/cpu"
_CLOCKS = "sys/devices/system/clocksource/clocksource0"
# Read by a system call or over a slow bus: a microsecond and more, where the others take some 20 ns.
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "xen", "pit")
_THROTTLED = 0.01  # of periods: below it, a start-up


def examine(files: Files, cpus: frozenset[int]) -> list[Finding]:
    """`cpus` are those that the scheduler may put this process on."""
    return [
        _visible(files, cpus),
        *_quota(files, len(cpus)),
        _governor(files, cpus),
        _clock(files),
        _numa(files, cpus),
    ]


def _visible(files: Files, cpus: frozenset[int]) -> Finding:
    name = find_cpu(cpuinfo=files.root / "proc/cpuinfo").name
    online = parse_list(files.text(f"{_CPUS}/online"))
    if not cpus:
        return SHEET.unknown("CPUs", "this system does not say which this process may use")
    rest = f" of the host's {len(online)}" if online - cpus else ""
    return SHEET.ok("CPUs", f"{counted(len(cpus), 'CPU')}{rest} ({format_list(cpus)}), {name}")


def _quota(files: Files, visible: int) -> list[Finding]:
    quota = read_quota(files)
    if quota.garbage:
        return [SHEET.garbage("quota", *quota.garbage)]
    if quota.cpus is None:
        return [SHEET.ok("quota", "none: no group limits CPU time")]
    waited = quota.throttled / quota.periods if quota.periods else 0.0
    text = f"{quota.cpus:g} CPUs' worth of time, {visible} visible"
    if waited >= _THROTTLED:
        text += f"; it ran out in {percent(waited)} of periods so far"
    if quota.cpus < visible:
        threads = max(1, int(quota.cpus))
        return [
            SHEET.warning(
                "quota",
                text,
                f"Threads for all visible CPUs would stall: set OMP_NUM_THREADS={threads} and at most {threads} "
                "data workers, or have the limit lifted (Kubernetes: limits.cpu; docker: --cpus).",
            )
        ]
    if waited >= _THROTTLED:
        return [SHEET.warning("quota", text, "Run fewer threads, or have the limit lifted.")]
    return [SHEET.ok("quota", text)]


def _governor(files: Files, cpus: frozenset[int]) -> Finding:
    told = Counter(
        governor
        for cpu in sorted(cpus)
        if (governor := files.text(f"{_CPUS}/cpu{cpu}/cpufreq/scaling_governor"))
    )
    if not told:
        return SHEET.unknown("governor", "no cpufreq here; a virtual machine or its host decides")
    words = ", ".join(name if len(told) == 1 else f"{name} on {count}" for name, count in told.most_common(3))
    if set(told) != {"performance"}:
        return SHEET.warning(
            "governor",
            f"{words}: clocks follow the load, and the first steps are slower",
            "`cpupower frequency-set -g performance` as root, on the host.",
        )
    return SHEET.ok("governor", words)


def _clock(files: Files) -> Finding:
    current, why = files.attempt(f"{_CLOCKS}/current_clocksource")
    if not current:
        return SHEET.unknown("clock", why or "the kernel names none")
    others = [name for name in files.text(f"{_CLOCKS}/available_clocksource").split() if name != current]
    better = [name for name in others if name not in _SLOW_CLOCKS]
    if current in _SLOW_CLOCKS:
        way = (
            f"`echo {better[0]} > /{_CLOCKS}/current_clocksource` as root"
            if better
            else "There is no other: `dmesg | grep -i clocksource` says why the kernel gave up the TSC"
        )
        return SHEET.warning("clock", f"{current}: reading the time is slow", f"{way}.")
    return SHEET.ok("clock", f"{current}: reading the time is quick")


def _numa(files: Files, cpus: frozenset[int]) -> Finding:
    nodes = topology(files.root / "sys").nodes
    if not nodes:
        return SHEET.unknown("NUMA", "sysfs shows no nodes")
    if len(nodes) == 1:
        return SHEET.ok("NUMA", "1 node")
    mine = [str(node.index) for node in nodes if node.cpus & cpus]
    text = f"{len(nodes)} nodes; this process may run on {'node' if len(mine) == 1 else 'nodes'} {', '.join(mine)}"
    if files.text("proc/sys/kernel/numa_balancing") not in ("", "0"):
        return SHEET.warning(
            "NUMA",
            f"{text}; the kernel moves pages between them while it measures",
            "`sysctl kernel.numa_balancing=0` as root, on the host.",
        )
    return SHEET.ok("NUMA", text)
