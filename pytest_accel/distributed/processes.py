"""Processes: found by the group id in their environment, ended, and their parents and children."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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
    """Return the processes of a group that this user may see; `GROUP.RANK` finds one rank's, an empty name those of all groups.

    Children inherit the environment of a rank, so grandchildren in sessions of their own are found too. Empty
    where there is no /proc.
    """
    folders = (folder for folder in _PROC.glob("[0-9]*") if int(folder.name) != os.getpid())
    return [process for folder in folders if (process := _read(folder)) and _belongs(process, group)]


def end_processes(group: str, *, patience_s: float = 5.0) -> list[Process]:
    """Send SIGKILL to all processes of a group until none is left; return those that are left after the patience.

    Repeatedly, since a process may have forked while the list was read.
    """
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
    return again is not None and again.environ.get(GROUP_ID_VARIABLE) == process.environ.get(
        GROUP_ID_VARIABLE
    )


def send(process: Process, number: signal.Signals) -> bool:
    """Send a signal to this process, never to one that reuses its pid; return whether it was sent."""
    try:
        with _held(process.pid) as held:
            if not runs(process):
                return False
            if held is None:
                os.kill(process.pid, number)
            else:
                signal.pidfd_send_signal(held, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process group that we started; it may be gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def kernel_state(pid: int) -> str:
    """Return the state of the threads of a process that does not react to signals."""
    lines = []
    for task in sorted((_PROC / str(pid) / "task").glob("*")):
        try:
            name, state = _name_and_state((task / "stat").read_text(errors="replace"))
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
    """Return the parent from `pid (name) state ppid ...`; the name may hold parentheses."""
    try:
        return int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):  # gone meanwhile
        return None


def _belongs(process: Process, group: str) -> bool:
    value = process.environ.get(GROUP_ID_VARIABLE, "")
    return not group or value == group or value.startswith(f"{group}.")


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


def _name_and_state(stat: str) -> tuple[str, str]:
    """Parse /proc/PID/stat; a name may hold spaces and brackets."""
    name, _, rest = stat.rpartition(")")
    return name.partition("(")[2], rest.split()[0]


@contextmanager
def _held(pid: int) -> Iterator[int | None]:
    """Yield a pidfd; None where the kernel has none."""
    held = None
    if hasattr(os, "pidfd_open"):
        try:
            held = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except OSError:  # an old kernel, or not permitted by a sandbox
            held = None
    try:
        yield held
    finally:
        if held is not None:
            os.close(held)
