"""The kernel's own measure of want (PSI): for which share of the last seconds somebody had to wait."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_accel.doctor.finding import Finding
    from pytest_accel.doctor.findings import Sheet
    from pytest_accel.platforms.host import Files

_LINE = re.compile(r"(some|full) avg10=(\d+(?:\.\d+)?) ")
# Percent of ten seconds. Some waiting is a start-up; all of them waiting is a host that gets nothing done.
SOME_WAIT = {"memory": 1.0, "io": 10.0}
ALL_WAIT = 10.0
_WORDS = {"memory": ("pressure", "memory"), "io": ("disks", "a disk")}  # the subject, and what was waited for
_REMEDIES = {
    "memory": "End what fills the memory (`top`), or wait: pages are being taken back while you measure.",
    "io": "Wait for the disk (`iotop`), or keep the data in memory: a step that reads would be measured with it.",
}


def pressure(files: Files, sheet: Sheet, what: str) -> Finding:
    """The want of `memory` or `io`."""
    subject, noun = _WORDS[what]
    path = f"proc/pressure/{what}"
    text, why = files.attempt(path)
    if not text:
        return sheet.unknown(subject, why or "the kernel counts none")
    told = {kind: float(value) for kind, value in _LINE.findall(text)}
    if "some" not in told:
        return sheet.garbage(subject, f"/{path}", text.splitlines()[0])
    shown = (
        f"nobody waited for {noun} in the last 10 s"
        if not told["some"]
        else f"somebody waited for {noun} in {told['some']:g} % of the last 10 s"
    )
    if told.get("full", 0.0) >= ALL_WAIT:
        return sheet.problem(subject, f"{shown}, everybody in {told['full']:g} %", _REMEDIES[what])
    if told["some"] >= SOME_WAIT[what]:
        return sheet.warning(subject, shown, _REMEDIES[what])
    return sheet.ok(subject, shown)
