"""Processes: found by the group id in their environment, ended, and their parents and children."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_accel.options import GROUP_ID_VARIABLE

_PROC = Path("/proc")
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A live process; a zombie has no environment any more and is none."""

    pid: int
    environ: Mapping[str, str]


def processes_of(group: str) -> list[Process]:
    """Return the processes of a group that this user may see; `GROUP.RANK` finds one rank's, an empty name all groups'.

    Children inherit the environment of a rank, so grandchildren in sessions of their own are found too.
    """
    folders = (folder for folder in _PROC.glob("[0-9]*") if int(folder.name) != os.getpid())
    found = [process for folder in folders if (process := _read(folder))]
    return [each for each in found if not group or f"{_group_id(each)}.".startswith(f"{group}.")]


def end_processes(group: str, *, patience_s: float = 5.0) -> list[Process]:
    """Send SIGKILL to a group until no process is left, since one may fork meanwhile; return those left at last."""
    assert group, "never the groups of other sessions"
    deadline = time.monotonic() + patience_s
    while found := processes_of(group):
        for process in found:
            send(process, signal.SIGKILL)
        if time.monotonic() > deadline:
            return found
        time.sleep(_POLL_S)
    return []


def runs(process: Process) -> bool:
    """Return whether it still runs, and its pid was not reused."""
    again = _read(_PROC / str(process.pid))
    return again is not None and _group_id(again) == _group_id(process)


def send(process: Process, number: signal.Signals) -> None:
    """Send a signal to this process, if it still runs."""
    if runs(process):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process group that we started; it may be gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def kernel_state(pid: int) -> str:
    """Return the state of the threads of a process that does not react to signals."""
    lines = []
    for task in sorted((_PROC / str(pid) / "task").glob("*")):
        try:
            name, (state, *_) = _stat(task)
            where = (task / "wchan").read_text().strip()
        except OSError:
            continue
        lines.append(f"  thread {name}: state {state}" + (f" in {where}" if where not in ("", "0") else ""))
    return "\n".join(lines)


def exit_words(status: int) -> str:
    """Describe an exit status of Popen."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def with_verb(status: str) -> str:
    """Return "was killed by ..." or "left with exit status ..."."""
    return f"was {status}" if status.startswith("killed") else f"left with {status}"


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the thread that started this process ends; Linux only."""
    import ctypes

    pr_set_pdeathsig = 1  # <linux/prctl.h>
    with suppress(OSError, AttributeError):  # not Linux: deadlines and closed connections still end it
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGKILL))


def disable_core_dump(pid: int = 0) -> None:
    """Disable core dumps of this process or a child: those of a CUDA process take gigabytes and minutes."""
    import resource

    with suppress(OSError, ValueError, AttributeError):  # gone already; not Linux
        _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, hard))


def ancestry(proc: Path = _PROC) -> list[int]:
    """Return this process and its ancestors: their memory on a device is not foreign."""
    pids = [os.getpid()]
    while (parent := parent_of(proc / str(pids[-1]))) is not None and parent > 1 and parent not in pids:
        pids.append(parent)
    return pids


def descendants(pid: int, proc: Path = _PROC) -> frozenset[int]:
    """Return all children of a process and theirs, such as loader workers."""
    children: dict[int, list[int]] = {}
    for folder in proc.iterdir():
        if folder.name.isdecimal() and (parent := parent_of(folder)) is not None:
            children.setdefault(parent, []).append(int(folder.name))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return frozenset(found)


def parent_of(folder: Path) -> int | None:
    """Return the parent of a process from its folder in /proc; None if it is gone."""
    try:
        return int(_stat(folder)[1][1])
    except (OSError, ValueError, IndexError):
        return None


def _stat(folder: Path) -> tuple[str, list[str]]:
    """Parse `pid (name) state ppid ...`: the name, which may hold spaces and brackets, and what follows it."""
    name, _, rest = (folder / "stat").read_text(errors="replace").rpartition(")")
    return name.partition("(")[2], rest.split()


def _group_id(process: Process) -> str:
    return process.environ.get(GROUP_ID_VARIABLE, "")


def _read(folder: Path) -> Process | None:
    """Return None for a process that is gone or of another user."""
    try:
        environ = (folder / "environ").read_bytes()
    except OSError:
        return None
    if GROUP_ID_VARIABLE.encode() not in environ or parent_of(folder) is None:
        return None
    pairs = (item.partition("=") for item in environ.decode(errors="replace").split("\0"))
    return Process(pid=int(folder.name), environ={name: value for name, _, value in pairs})
