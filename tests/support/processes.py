"""Processes as a test sees them from outside."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pytest_accel.options import GROUP_ID_VARIABLE
from tests.support.waiting import eventually

FOREIGN_LOAD = """
import torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("working", flush=True)
while True:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
"""
_TO_GO_S = 60.0  # only what was forgotten stays so long
_LONG_S = 300.0  # only a broken command runs so long


def finished(*command: str | Path, check: bool = False, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; what it printed comes with its status."""
    return subprocess.run(command, capture_output=True, text=True, check=check, timeout=_LONG_S, **options)


def inherited(*without: str) -> dict[str, str]:
    """Return the environment of this process, without the variables whose names begin so."""
    return {name: value for name, value in os.environ.items() if not name.startswith(without)}


def left_in(folder: Path) -> list[str]:
    """The commands of processes that go on working in this folder.

    One that was killed takes a moment to go, on a busy machine seconds, and only its parent can wait for it.
    """
    eventually(lambda: not _working_in(folder), _TO_GO_S)
    return _working_in(folder)


def _working_in(folder: Path) -> list[str]:
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


def processes_of(group: str) -> list[int]:
    """Return the processes of a group by the id in their environment, which children inherit; `GROUP.RANK` finds one rank's."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone, or of another user
            ids = (folder / "environ").read_bytes().split(b"\0")
            mine = f"{GROUP_ID_VARIABLE}={group}".encode()
            if any(each == mine or each.startswith(mine + b".") for each in ids):
                found.append(int(folder.name))
    return [pid for pid in found if pid != os.getpid()]


@contextmanager
def working_beside(program: str, number: int = 1) -> Iterator[None]:
    """Run a Python program that prints `working` once it does, so many times, until the end of the block."""
    running: list[subprocess.Popen[str]] = []
    try:
        for _ in range(number):
            command = [sys.executable, "-c", program]
            running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        for each in running:
            assert each.stdout is not None
            assert each.stdout.readline().strip() == "working"
        yield
    finally:
        for each in running:
            each.kill()
            each.communicate()
