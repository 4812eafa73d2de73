"""The processes of a gang: found by the id in their environment, ended whatever they do; and who started whom."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_accel.options import GANG_ID_VARIABLE

_PROC = Path("/proc")
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A live process; a zombie has no environment any more and is none."""

    pid: int
    environ: Mapping[str, str]


def processes_of(gang: str) -> list[Process]:
    """All processes of a gang that this user may see; `gang.RANK` finds those of one rank, no name those of all gangs.

    What a rank starts inherits its environment, so grandchildren in sessions of their own are found too.
    Empty where there is no /proc: then process groups must do.
    """
    folders = (folder for folder in _PROC.glob("[0-9]*") if int(folder.name) != os.getpid())
    return [process for folder in folders if (process := _read(folder)) and _belongs(process, gang)]


def end_processes(gang: str, *, patience_s: float = 5.0) -> list[Process]:
    """SIGKILL to all of a gang until none is left; those that the kernel did not let go in time.

    Again and again, since a process may have forked while the list was read.
    """
    assert gang, "not the gangs of others"
    deadline = time.monotonic() + patience_s
    while found := processes_of(gang):
        for process in found:
            send(process, signal.SIGKILL)
        if time.monotonic() > deadline:
            return found
        time.sleep(_POLL_S)
    return []


def runs(process: Process) -> bool:
    """Whether it is still there, and not another one that got its number since."""
    again = _read(_PROC / str(process.pid))
    return again is not None and again.environ.get(GANG_ID_VARIABLE) == process.environ.get(GANG_ID_VARIABLE)


def send(process: Process, number: signal.Signals) -> bool:
    """A signal to this very process, never to another one that got its number since; whether it was sent."""
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


def send_group(pid: int, number: signal.Signals) -> None:
    """A signal to a process group that we started; it may be gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def kernel_view(pid: int) -> str:
    """Where the kernel has the threads of a process: all that is known of one which does not react."""
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
    """An exit status as Popen gives it, in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def ended_words(status: str) -> str:
    """What became of a process that ended so, as a sentence goes on after its name."""
    return f"was {status}" if status.startswith("killed") else f"left with {status}"


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the thread that started this process ends; Linux only."""
    import ctypes

    pr_set_pdeathsig = 1  # <linux/prctl.h>
    with suppress(OSError, AttributeError):  # not Linux: deadlines and closed connections still end it
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGKILL))


def dump_no_core(pid: int = 0) -> None:
    """For this process, or one just started: a core of a CUDA process takes gigabytes and minutes."""
    import resource

    with suppress(OSError, ValueError, AttributeError):  # gone already; not Linux
        _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, hard))


def ancestry(proc: Path = _PROC) -> list[int]:
    """This process and those that started it: what they hold on a device is no stranger's."""
    pids = [os.getpid()]
    while (parent := parent_of(proc / str(pids[-1]))) is not None and parent > 1 and parent not in pids:
        pids.append(parent)
    return pids


def descendants(pid: int, proc: Path = _PROC) -> frozenset[int]:
    """What a process has started, and what that has: loader workers, a server that a step asks."""
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
    """From `pid (name) state ppid ...`: the name may hold anything, parentheses too."""
    try:
        return int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):  # gone meanwhile
        return None


def _belongs(process: Process, gang: str) -> bool:
    value = process.environ.get(GANG_ID_VARIABLE, "")
    return not gang or value == gang or value.startswith(f"{gang}.")


def _read(folder: Path) -> Process | None:
    """None for one that is gone, or another user's."""
    try:
        environ = (folder / "environ").read_bytes()
    except OSError:
        return None
    if GANG_ID_VARIABLE.encode() not in environ or parent_of(folder) is None:
        return None
    pairs = (item.partition("=") for item in environ.decode(errors="replace").split("\0"))
    return Process(pid=int(folder.name), environ={name: value for name, _, value in pairs})


def _name_and_state(stat: str) -> tuple[str, str]:
    """Of /proc/PID/stat: a name may hold spaces and brackets."""
    name, _, rest = stat.rpartition(")")
    return name.partition("(")[2], rest.split()[0]


@contextmanager
def _held(pid: int) -> Iterator[int | None]:
    """The process itself rather than its number; None where the kernel cannot."""
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
