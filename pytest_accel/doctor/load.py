"""Other work on the CPUs that this process may use, watched for a moment in which we ourselves do nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_accel.doctor.findings import Sheet
from pytest_accel.doctor.pressure import pressure
from pytest_accel.platforms.host import whole_number
from pytest_accel.stats.quantities import percent

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_accel.doctor.finding import Finding
    from pytest_accel.platforms.host import Files

SHEET = Sheet(group="load")
WATCHED_S = 0.25  # 25 ticks of each CPU
BUSY = 0.10  # of the CPUs: one of ten is gone
TAKEN = 0.5  # of the CPUs: nothing that the host takes part in can be measured beside so much
STOLEN = 0.02
_LOADED = 0.5  # of the host's CPUs, over a minute: work that paused while we watched


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Of the time of the watched CPUs."""

    busy: float
    stolen: float  # by the hypervisor, for other virtual machines


def examine(files: Files, cpus: frozenset[int], pause: Callable[[float], None]) -> list[Finding]:
    before = files.text("proc/stat")
    pause(WATCHED_S)
    found = shares(before, files.text("proc/stat"), cpus)
    return [_busy(files, found), *_stolen(found), pressure(files, Sheet(group="load"), "io")]


def shares(before: str, after: str, cpus: frozenset[int]) -> Shares | None:
    """Between two readings of /proc/stat; None where they tell nothing."""
    old, new = _ticks(before), _ticks(after)
    both = [cpu for cpu in old if cpu in new and (cpu in cpus or not cpus)]
    spent = [[now - then for then, now in zip(old[cpu], new[cpu], strict=True)] for cpu in both]
    total = sum(map(sum, spent))
    if total <= 0 or any(ticks < 0 for each in spent for ticks in each):
        return None
    idle = sum(each[3] + each[4] for each in spent)
    stolen = sum(each[7] for each in spent)
    return Shares(busy=(total - idle - stolen) / total, stolen=stolen / total)


def _ticks(stat: str) -> dict[int, list[int]]:
    """By CPU: user, nice, system, idle, iowait, irq, softirq, steal. Guests are counted in user already."""
    found = {}
    for words in filter(None, map(str.split, stat.splitlines())):
        number = whole_number(words[0].removeprefix("cpu"))
        ticks = [each for each in map(whole_number, words[1:9]) if each is not None]
        if words[0].startswith("cpu") and number is not None and len(ticks) == 8:
            found[number] = ticks
    return found


def _busy(files: Files, found: Shares | None) -> Finding:
    online = len(_ticks(files.text("proc/stat")))
    try:
        minute = float(files.text("proc/loadavg").partition(" ")[0])
    except ValueError:
        minute = None
    if found is None:
        return SHEET.unknown("other work", "/proc/stat counts no time")
    text = f"{percent(found.busy, 0)} of these CPUs busy without us"
    text += "" if minute is None else f", load {minute:g} over the last minute"
    remedy = "End it or wait (`top`): beside other work, a run tells how busy the host was."
    if found.busy >= TAKEN:
        return SHEET.problem("other work", text, remedy)
    if found.busy >= BUSY or (minute is not None and minute >= max(1, _LOADED * online)):
        return SHEET.warning("other work", text, remedy)
    return SHEET.ok("other work", text)


def _stolen(found: Shares | None) -> list[Finding]:
    if found is None or found.stolen < STOLEN:
        return []
    return [
        SHEET.warning(
            "stolen time",
            f"{percent(found.stolen, 0)} of these CPUs went to other virtual machines",
            "Ask for dedicated CPUs, or measure when the host is quiet.",
        )
    ]
