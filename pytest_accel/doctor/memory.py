"""The host's memory: how much this process may have, what is left, and whether the kernel is short of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_accel.doctor.findings import Sheet
from pytest_accel.doctor.pressure import pressure
from pytest_accel.platforms.host import read_memory_limit, whole_number
from pytest_accel.stats.quantities import gibibytes

if TYPE_CHECKING:
    from pytest_accel.doctor.finding import Finding
    from pytest_accel.platforms.host import Files

SHEET = Sheet(group="memory")
_HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"
LITTLE_BYTES = 2 << 30  # torch with CUDA and a small model take about that much of the host


def examine(files: Files) -> list[Finding]:
    return [*_room(files), pressure(files, SHEET, "memory"), _huge_pages(files)]


def _room(files: Files) -> list[Finding]:
    """What is left in the host and in this process's group; the smaller counts."""
    told = _meminfo(files)
    total, left = told.get("MemTotal"), told.get("MemAvailable")
    group = read_memory_limit(files)
    findings = []
    if total is None or left is None:
        findings.append(SHEET.unknown("host", "/proc/meminfo does not say"))
    else:
        findings.append(_judged("host", f"{gibibytes(left)} free of {gibibytes(total)}", left))
    if group.garbage:
        findings.append(SHEET.garbage("limit", *group.garbage))
    elif group.limit_bytes is None or (total is not None and group.limit_bytes >= total):
        findings.append(SHEET.ok("limit", "none: no group limits memory"))
    else:
        left = group.limit_bytes - (group.used_bytes or 0)
        text = f"{gibibytes(max(0, left))} left of {gibibytes(group.limit_bytes)} for this group"
        findings.append(_judged("limit", text, left))
    if group.kills:
        findings.append(
            SHEET.warning(
                "kills",
                f"processes of this group that the kernel ended for want of memory: {group.kills}",
                "Ask for more memory, or run fewer data workers.",
            )
        )
    return findings


def _judged(subject: str, text: str, left: int) -> Finding:
    if left < LITTLE_BYTES:
        return SHEET.warning(
            subject, text, "A run may be killed or swap: end what holds it, or ask for more memory."
        )
    return SHEET.ok(subject, text)


def _huge_pages(files: Files) -> Finding:
    text, why = files.attempt(_HUGE_PAGES)  # always [madvise] never
    if not text:
        return SHEET.unknown("huge pages", why or "the kernel says nothing")
    chosen = text.partition("[")[2].partition("]")[0]
    if chosen not in ("always", "madvise", "never"):
        return SHEET.garbage("huge pages", f"/{_HUGE_PAGES}", text)
    if chosen == "never":
        return SHEET.warning(
            "huge pages",
            "never: large tensors on the CPU pay for small pages",
            f"`echo madvise > /{_HUGE_PAGES}` as root, on the host.",
        )
    return SHEET.ok("huge pages", chosen)


def _meminfo(files: Files) -> dict[str, int]:
    words = (line.split() for line in files.lines("proc/meminfo"))  # MemTotal:  24682740 kB
    found = ((word[0].rstrip(":"), whole_number(word[1])) for word in words if len(word) >= 2)
    return {name: number * 1024 for name, number in found if number is not None}
