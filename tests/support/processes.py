"""Processes as a test sees them from outside."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def working_in(folder: Path) -> list[str]:
    """The commands of living processes, other than this one, whose current directory is this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if process.name != str(os.getpid()) and (process / "cwd").readlink() == folder:
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def children() -> set[int]:
    """The processes that this one started, in any thread, and that live or were not waited for."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that is over
            found |= {int(each) for each in (thread / "children").read_text().split()}
    return found
