"""Device locks: one measurement on a device at a time, by a lock file for each UUID.

Record locks (fcntl.lockf) on files in a folder that all users of a machine share: the kernel drops them when the holder
dies, and forked loader workers do not inherit them, as they would inherit the flock locks of `filelock`.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import platform as host
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from pytest_accel.platforms.nvidia import short_uuid
from pytest_accel.stats.quantities import clipped, printable, seconds

FOLDER = "/tmp/pytest-accel-locks"  # noqa: S108 - whatever TMPDIR says: jobs with their own TMPDIR must share it
FOLDER_VARIABLE = "PYTEST_ACCEL_LOCKS"  # another place, such as a volume that containers share
_POLL_S, _REPORT_S = 0.1, 1.0
_WORDS = 60  # characters of a command

Mode = Literal["wait", "fail", "off"]
Report = Callable[[str], object]


class LockedError(ValueError):
    """A device is held by another session, or the lock folder is wrong; the text says what to do."""


@contextmanager
def lock_devices(
    uuids: Iterable[str], *, mode: Mode, waiting: Report, unlocked: Report, timeout_s: float
) -> Iterator[None]:
    """Lock these devices, in one order for all sessions.

    `waiting` is called every second with the holder, `unlocked` for a device that cannot be locked: it is measured
    all the same.
    """
    until_s = time.monotonic() + timeout_s
    with ExitStack() as held:
        for uuid in sorted(set(uuids)) if mode != "off" else ():
            path = lock_folder() / f"{quote(uuid, safe='')}.lock"
            try:
                fd = _wait(short_uuid(uuid), path, mode, waiting, until_s=until_s, timeout_s=timeout_s)
            except OSError as error:  # the file cannot be opened, or its file system has no locks
                unlocked(
                    f"{short_uuid(uuid)} is not locked, and others may measure on it meanwhile: {path}: {error.strerror}. Name a "
                    f"folder that all sessions can write to with {FOLDER_VARIABLE}; -o accel_lock=off silences this."
                )
            else:
                held.callback(os.close, fd)
        yield


def lock_folder() -> Path:
    folder = Path(os.environ.get(FOLDER_VARIABLE) or FOLDER)
    if not folder.is_absolute():
        raise LockedError(
            f"{FOLDER_VARIABLE}: {str(folder)!r} is not an absolute path, and sessions that start in other folders would "
            "not meet there. Write one that all of them share, such as /var/lock/pytest-accel."
        )
    return folder


def _wait(device: str, path: Path, mode: Mode, waiting: Report, *, until_s: float, timeout_s: float) -> int:
    report_s = time.monotonic()
    while True:
        fd = _open(path)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:  # else the file was removed, and others lock another one
                _sign(fd)
                return fd
            holder = "another process"
        except (BlockingIOError, PermissionError):
            # Any user may write there, so it is shown and never trusted.
            text = os.pread(fd, 4096, 0).decode(errors="replace")
            holder = clipped(printable(text), 4 * _WORDS) or "another process"
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        now_s = time.monotonic()
        if mode == "fail":
            raise LockedError(
                f"{device} is held by {holder}. Measure when it is done: -o accel_lock=wait does that by itself, "
                "-o accel_lock=off measures beside it. Or take another device."
            )
        if now_s >= until_s:
            raise LockedError(
                f"{device} is held by {holder}, and was not free within {seconds(timeout_s)}. Wait for it or end it, "
                "or take another device; -o accel_lock=off measures beside it."
            )
        if now_s >= report_s:
            waiting(f"waiting for {device}: held by {holder}")
            report_s = now_s + _REPORT_S
        time.sleep(min(_POLL_S, until_s - now_s))


def _open(path: Path) -> int:
    """Open a lock file, made by the first user and written by all; a link is not followed."""
    with suppress(FileExistsError):
        path.parent.mkdir()
        path.parent.chmod(0o1777)  # all may write, and none may remove another's file
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(FileExistsError):
        made = os.open(path, flags | os.O_CREAT | os.O_EXCL)
        os.fchmod(made, 0o666)
        os.close(made)
    # Without O_CREAT: in a sticky folder the kernel refuses that for a file of another user (protected_regular).
    return os.open(path, flags)


def _sign(fd: int) -> None:
    """Write who holds the lock, for those who wait; ignore a full disk."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container that runs as a number
        user = f"uid {os.getuid()}"
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name  # of `python -m pytest`
    command = clipped(" ".join([name, *sys.argv[1:]]), _WORDS)
    who = f"pid {os.getpid()} on {host.node()} ({user}, {command}, since {datetime.now():%Y-%m-%d %H:%M})"  # noqa: DTZ005
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, who.encode(errors="replace"), 0)
