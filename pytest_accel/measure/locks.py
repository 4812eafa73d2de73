"""Device locks: one measurement on a device at a time, by a lock file for each UUID.

Record locks (fcntl.lockf) on files in a folder that all users of a machine share; the kernel drops them when the holder
dies. Forked loader workers do not inherit them. A process does not exclude itself, so that it may lock a device twice;
and closing any descriptor of a file drops its lock, so that there is one descriptor for each file. `filelock` was not
used: its flock locks are inherited by forked workers, and its files belong to one user.
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
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from pytest_accel.platforms.nvidia import short_uuid
from pytest_accel.stats.quantities import clipped, printable, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

Mode = Literal["wait", "fail", "off"]

FOLDER = (
    "pytest-accel-locks"  # in /tmp, whatever TMPDIR says: jobs that have one of their own must still meet
)
FOLDER_VARIABLE = "PYTEST_ACCEL_LOCKS"  # another place, such as a volume that containers share
_POLL_S, _TELL_S = 0.1, 1.0
_TRIES, _TRY_AGAIN_S = 5, 0.02  # another user has made the file and is about to open it to all
_WORDS = 60  # characters of a command
_RESTLESS = "another process removes it again and again"


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
    with ExitStack() as held:
        for uuid in wanted:
            device = _Device(uuid=uuid, path=where / f"{quote(uuid, safe='')}.lock")
            try:
                held.enter_context(_registered(device))
                _take(device, mode, waiting, until_s, timeout_s)
            except OSError as error:  # no such file for us, or a file system without locks
                if unlocked is not None:
                    _say_once(device, error, unlocked)
            else:
                held.callback(_release, device)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    uuid: str
    path: Path


@dataclass(slots=True, kw_only=True)
class _File:
    """The one descriptor of a lock's file in this process."""

    fd: int
    users: int = 0  # that hold it, or wait for it
    holds: int = 0


_files: dict[Path, _File] = {}
_said: set[Path] = set()
_mutex = threading.Lock()  # never held while waiting


def _forget() -> None:
    """Forget all locks in a forked child: they are the parent's."""
    global _mutex  # noqa: PLW0603 -- another thread of the parent may hold it for ever here
    _mutex = threading.Lock()
    _files.clear()


os.register_at_fork(after_in_child=_forget)


# --- one device ---------------------------------------------------------------------------------------


@contextmanager
def _registered(device: _Device) -> Iterator[None]:
    """Keep its file open as long as this process needs it."""
    owner = os.getpid()
    with _mutex:
        file = _files.get(device.path)
        if file is None:
            file = _files[device.path] = _File(fd=opened(device.path))
        file.users += 1
    try:
        yield
    finally:
        if os.getpid() == owner:  # a child that was forked in here has none of this
            with _mutex:
                file.users -= 1
                if not file.users:
                    del _files[device.path]
                    os.close(file.fd)


def _take(
    device: _Device, mode: Mode, waiting: Callable[[str], object], until_s: float, timeout_s: float
) -> None:
    """Wait for the lock; OSError where nothing can be locked."""
    tell_s = time.monotonic()
    while not _taken(device):
        held_by = f"held by {_holder(device)}"
        now_s = time.monotonic()
        if mode == "fail":
            raise LockedError(
                f"{short_uuid(device.uuid)} is {held_by}. Measure when it is done: -o accel_lock=wait does that by itself, "
                "-o accel_lock=off measures beside it. Or take another device."
            )
        if now_s >= until_s:
            raise LockedError(
                f"{short_uuid(device.uuid)} is {held_by}, and was not free within {seconds(timeout_s)}. Wait for it or end it, "
                "or take another device; -o accel_lock=off measures beside it."
            )
        if now_s >= tell_s:
            waiting(f"waiting for {short_uuid(device.uuid)}: {held_by}")
            tell_s = now_s + _TELL_S
        time.sleep(min(_POLL_S, until_s - now_s))


def _taken(device: _Device) -> bool:
    """Return whether this process holds it."""
    with _mutex:
        file = _files[device.path]
        if file.holds or _locked(file, device.path):
            file.holds += 1
            return True
        return False


def _locked(file: _File, path: Path) -> bool:
    for _ in range(_TRIES):
        try:
            fcntl.lockf(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        if _still_there(file.fd, path):
            _sign(file.fd)
            return True
        stale, file.fd = file.fd, opened(path)  # the file was removed and made anew
        os.close(stale)
    raise OSError(errno.EAGAIN, _RESTLESS)


def _release(device: _Device) -> None:
    with _mutex:
        file = _files.get(device.path)
        if file is None:  # a forked child, which never held it
            return
        file.holds -= 1
        if not file.holds:
            with suppress(OSError):
                os.ftruncate(file.fd, 0)
            with suppress(OSError):
                fcntl.lockf(file.fd, fcntl.LOCK_UN)


def _say_once(device: _Device, error: OSError, unlocked: Callable[[str], object]) -> None:
    """Report once that a device is not locked; it is measured all the same."""
    if device.path in _said:
        return
    _said.add(device.path)
    why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror or str(error)
    named = Path(os.fsdecode(error.filename or ""))
    where = named if named.is_absolute() else device.path  # what is in the way may be a folder above
    unlocked(
        f"{short_uuid(device.uuid)} is not locked, and others may measure on it meanwhile: {where}: {why}. "
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


# --- the file -----------------------------------------------------------------------------------------


def opened(path: Path) -> int:
    """Open a lock file, made by the first user and written by all; links are not followed."""
    folder = _opened_folder(path.parent)
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = _opened_or_made(path.name, flags, folder)
    finally:
        os.close(folder)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:  # we would write into what is not ours
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


# --- who holds it -------------------------------------------------------------------------------------


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


def _holder(device: _Device) -> str:
    """Return the holder as its file says. Any user may write there, so it is shown and never trusted."""
    try:
        who = json.loads(os.pread(_files[device.path].fd, 4096, 0))
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
