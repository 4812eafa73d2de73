"""Device locks: one measurement on a device at a time, by a lock file for each UUID.

Record locks (fcntl.lockf) on files in a folder that all users of a machine share: the kernel drops them when the holder
dies, and forked loader workers do not inherit them. `filelock` was not used: its flock locks are inherited by forked
workers, and its files belong to one user.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pwd
import stat
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from pytest_accel.platforms.nvidia import short_uuid
from pytest_accel.stats.quantities import clipped, printable, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

Mode = Literal["wait", "fail", "off"]

FOLDER = "pytest-accel-locks"  # in /tmp, whatever TMPDIR says: jobs with their own TMPDIR must share it
FOLDER_VARIABLE = "PYTEST_ACCEL_LOCKS"  # another place, such as a volume that containers share
_POLL_S, _REPORT_S = 0.1, 1.0
_TRIES, _TRY_AGAIN_S = 5, 0.02  # another user has made the file and is about to open it to all
_WORDS = 60  # characters of a command
_RESTLESS = "another process removes it repeatedly"

# Held by this process: closing a second descriptor of a file would drop its lock. A forked child holds none.
_held: set[Path] = set()
_reported: set[Path] = set()
os.register_at_fork(after_in_child=_held.clear)


class LockedError(ValueError):
    """A device is held by another session, or the lock folder is wrong; the text says what to do."""


@contextmanager
def lock_devices(
    uuids: Iterable[str],
    *,
    mode: Mode,
    waiting: Callable[[str], object],
    unlocked: Callable[[str], object] | None,
    timeout_s: float,
    folder: Path | None = None,
) -> Iterator[None]:
    """Lock these devices. `waiting` is called every second with the holder; `unlocked` once for one that cannot be locked.

    In one order for all, so that two sessions that want the same devices do not deadlock.
    """
    wanted = sorted(set(uuids)) if mode != "off" else []
    where = folder or (lock_folder() if wanted else Path())
    until_s = time.monotonic() + timeout_s
    with ExitStack() as locks:
        for uuid in wanted:
            path = where / f"{quote(uuid, safe='')}.lock"
            if path in _held:
                continue
            try:
                fd = _wait(uuid, path, mode, waiting, until_s=until_s, timeout_s=timeout_s)
            except OSError as error:  # the file cannot be opened, or its file system has no locks
                if unlocked is not None:
                    _report_once(uuid, path, error, unlocked)
            else:
                locks.callback(_release, fd, path, os.getpid())
                _held.add(path)
                _sign(fd)
        yield


def lock_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return one folder for all users of the machine."""
    if named := environ.get(FOLDER_VARIABLE):
        if not Path(named).is_absolute():
            raise LockedError(
                f"{FOLDER_VARIABLE}: {named!r} is not an absolute path, and sessions that start in other folders would "
                f"not meet there. Write one that all of them share, such as /var/lock/{FOLDER}."
            )
        return Path(named)
    return (Path("/tmp") if Path("/tmp").is_dir() else Path(tempfile.gettempdir())) / FOLDER  # noqa: S108 - shared on purpose


def _wait(
    uuid: str, path: Path, mode: Mode, waiting: Callable[[str], object], *, until_s: float, timeout_s: float
) -> int:
    """Return the locked descriptor; OSError where nothing can be locked."""
    report_s = time.monotonic()
    while True:
        fd, holder = _attempt(path)
        if fd is not None:
            return fd
        device, now_s = short_uuid(uuid), time.monotonic()
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


def _attempt(path: Path) -> tuple[int | None, str]:
    """Return the locked descriptor of the file; or None and who holds the lock."""
    for _ in range(_TRIES):
        fd = opened(path)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _still_there(fd, path):
                return fd, ""
        except (BlockingIOError, PermissionError):
            holder = _holder(fd)
            os.close(fd)
            return None, holder
        except OSError:
            os.close(fd)
            raise
        os.close(fd)  # the file was removed and made anew
    raise OSError(errno.EAGAIN, _RESTLESS)


def _release(fd: int, path: Path, owner: int) -> None:
    if os.getpid() == owner:  # else a forked child, which holds nothing
        _held.discard(path)
        with suppress(OSError):
            os.ftruncate(fd, 0)
    os.close(fd)


def _report_once(uuid: str, path: Path, error: OSError, unlocked: Callable[[str], object]) -> None:
    """Report once that a device is not locked; it is measured all the same."""
    if path in _reported:
        return
    _reported.add(path)
    why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror or str(error)
    named = Path(os.fsdecode(error.filename or ""))
    where = named if named.is_absolute() else path  # the obstacle may be a folder above
    unlocked(
        f"{short_uuid(uuid)} is not locked, and others may measure on it meanwhile: {where}: {why}. "
        f"{_remedy(error)}; -o accel_lock=off silences this."
    )


def _remedy(error: OSError) -> str:
    match error.errno:
        case errno.ELOOP | errno.ENOTDIR | errno.EPERM:  # something else is in its place
            return "Remove it"
        case errno.EACCES:
            return "Let all users write there (chmod 1777 the folder, 666 the file)"
        case _:
            return f"Name another folder, that all sessions of this machine share, with {FOLDER_VARIABLE}"


def opened(path: Path) -> int:
    """Open a lock file, made by the first user and written by all; links are not followed."""
    folder = _opened_folder(path.parent)
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = _opened_or_made(path.name, flags, folder)
    finally:
        os.close(folder)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:  # writing would change another file
        os.close(fd)
        raise OSError(errno.EPERM, "it is no plain file with one name")
    return fd


def _opened_or_made(name: str, flags: int, folder: int) -> int:
    """Without O_CREAT first: the kernel refuses that in a sticky folder for a file of another user (protected_regular)."""
    for left in reversed(range(_TRIES)):
        try:
            return os.open(name, flags, dir_fd=folder)
        except FileNotFoundError:
            with suppress(FileExistsError):
                fd = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
                os.fchmod(fd, 0o666)  # whatever the umask
                return fd
        except PermissionError:
            if not left:
                raise
            time.sleep(_TRY_AGAIN_S)
    raise OSError(errno.EAGAIN, _RESTLESS)


def _opened_folder(path: Path) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        _make_parents(path)
        path.mkdir(mode=0o777)
    except FileExistsError:
        return os.open(path, flags)
    folder = os.open(path, flags)
    os.fchmod(folder, 0o1777)  # all may write, and none may remove another's file
    return folder


def _make_parents(path: Path) -> None:
    """Make folders that all users may enter, whatever the umask."""
    for parent in reversed(path.parents):
        if not parent.exists():
            with suppress(FileExistsError):
                parent.mkdir()
                parent.chmod(0o755)


def _still_there(fd: int, path: Path) -> bool:
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), there)


def _sign(fd: int) -> None:
    """Write who holds the lock, for those who wait; ignore a full disk."""
    who = {
        "pid": os.getpid(),
        "host": os.uname().nodename,
        "user": _user(),
        "command": clipped(" ".join([_program(), *sys.argv[1:]]), _WORDS),
        "since_s": time.time(),
    }
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(who).encode(), 0)


def _holder(fd: int) -> str:
    """Return the holder as its file says. Any user may write there, so it is shown and never trusted."""
    try:
        who = json.loads(os.pread(fd, 4096, 0))
        words = [str(who["user"]), str(who["command"]), f"since {_since(float(who['since_s']))}"]
        host = "" if who["host"] == os.uname().nodename else f" on {who['host']}"
        return clipped(printable(f"pid {int(who['pid'])}{host} ({', '.join(words)})"), 4 * _WORDS)
    except (LookupError, OSError, OverflowError, RecursionError, TypeError, ValueError):
        return "another process"


def _since(at_s: float) -> str:
    then, now = (datetime.fromtimestamp(each, tz=UTC).astimezone() for each in (at_s, time.time()))
    return f"{then:%H:%M}" if then.date() == now.date() else f"{then:%Y-%m-%d %H:%M}"


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container that runs as a number
        return f"uid {os.getuid()}"


def _program() -> str:
    """Return `pytest`, also for `python -m pytest`."""
    name = Path(sys.argv[0])
    return name.parent.name if name.name == "__main__.py" else name.name
