"""The parent of one rank: ends all that the rank started when the rank or the session ends.

    python -I -S supervisor.py PID_OF_THE_SESSION FOLDER_OF_THE_RANK COMMAND...

A program of its own, of the standard library alone: it starts in 20 ms. Orphans below it become its children, whatever
session and environment they gave themselves, so none is left when it has no child. It ends as the rank ended. SIGTERM and
SIGABRT are passed on to the rank; SIGHUP, which the kernel sends at the death of the session, ends everything.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
_PASSED_ON = {signal.SIGTERM, signal.SIGABRT}
_AWAITED = {*_PASSED_ON, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD}  # SIGINT: the session decides
_GIVE_UP_S = 10.0  # for processes that the kernel does not release, or that this user may not end
_POLL_S = 0.01


def main(session: int, folder: Path, command: list[str]) -> None:
    """Start the rank, wait for its end or that of the session, and end the rest."""
    prctl = ctypes.CDLL(None).prctl
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it was ignored, no end of a child would be seen
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    prctl(_PR_SET_PDEATHSIG, int(signal.SIGHUP))
    me = os.getpid()
    rank = os.fork()
    if rank == 0:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() == me:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.execv(command[0], command)  # noqa: S606 - our own interpreter and our own arguments
        os._exit(1)
    ended: dict[int, int] = {}  # status of each child that has ended, by its pid
    while os.getppid() == session and rank not in ended:
        number = signal.sigwait(_AWAITED)
        if number in _PASSED_ON:
            os.kill(rank, number)
        elif number == signal.SIGHUP:
            break
        _reap(ended)
    _end_children(ended)
    if os.getppid() != session:  # which would have removed it
        with suppress(RecursionError):  # the next session removes it
            shutil.rmtree(folder, ignore_errors=True)
    _end_as(ended.get(rank, signal.SIGKILL))


def _reap(ended: dict[int, int]) -> bool:
    """Note children that have ended; return whether any is left."""
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]
    except ChildProcessError:
        return False
    return True


def _end_children(ended: dict[int, int]) -> None:
    """Kill children until there are none: those of a killed one become ours."""
    deadline = time.monotonic() + _GIVE_UP_S
    me = os.getpid()
    while _reap(ended) and time.monotonic() < deadline:
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError, IndexError):  # it is gone
                if int(stat.read_text(errors="replace").rpartition(")")[2].split()[1]) == me:
                    os.kill(int(stat.parent.name), signal.SIGKILL)
        time.sleep(_POLL_S)


def _end_as(status: int) -> None:
    """End with an exit status of waitpid, by the same signal where it was one."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):  # SIGKILL
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
