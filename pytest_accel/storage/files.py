"""Files: errors with place and remedy, reads, atomic writes."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pytest_accel.storage.codec import FormatError

LOCK_TIMEOUT_S = 30.0  # a write takes milliseconds; after thirty seconds a writer is stuck
_LOCK_POLL_S = 0.02
_STALE_TEMPORARY_S = 3600.0  # a writer needs milliseconds


class StorageError(ValueError):
    """A stored file that cannot be used: the file, the place in it, the problem and the remedy."""

    def __init__(self, file: str, place: str, problem: str, remedy: str = "") -> None:
        self.file = file
        self.place = place
        self.problem = problem
        self.remedy = remedy or self.default_remedy(file)
        super().__init__(file, place, problem, self.remedy)  # so that it survives pickling

    @staticmethod
    def default_remedy(_file: str) -> str:
        """Return the remedy for a file of this kind that is damaged."""
        return "Name another file."

    def __str__(self) -> str:
        where = f"{self.file}: {self.place}" if self.place else self.file
        return f"{where}: {self.problem}\n{self.remedy}"


@contextmanager
def format_errors(file: str, kind: type[StorageError]) -> Iterator[None]:
    """Raise faults of the format as errors of this kind of file."""
    try:
        yield
    except FormatError as error:
        raise kind(file, error.place or "top level", error.problem, error.remedy) from None


# --- reading ----------------------------------------------------------------------------------------


def read_text(path: Path, kind: type[StorageError]) -> str | None:
    """Return the text of a file; None where there is none."""
    try:
        if is_special_file(path):  # before opening: a FIFO would block
            raise kind(str(path), "", "is no regular file", "Move it away.")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise kind(str(path), f"byte {error.start}", "not UTF-8") from None
    except FileNotFoundError:
        if path.is_symlink():
            raise kind(str(path), "", f"links to {path.readlink()}, which does not exist") from None
        return None
    except OSError as error:
        remedy = f"Make it a file that user {os.geteuid()} can read."
        raise kind(str(path), "", f"cannot be read: {error.strerror}", remedy) from None


@contextmanager
def unstorable_refused(file: str, kind: type[StorageError]) -> Iterator[None]:
    """Raise what makes a text that cannot be read back as an error of this kind of file, before it is written."""
    try:
        yield
    except (ValueError, TypeError) as error:  # also NaN or an object in a configuration
        remedy = "Nothing was written. The measured values cannot be stored; the file itself is intact."
        place, problem = getattr(error, "place", ""), getattr(error, "problem", str(error))
        raise kind(file, place, problem, remedy) from None


# --- writing ----------------------------------------------------------------------------------------


def write_atomic(path: Path, text: str) -> None:
    """Write a text file completely or not at all; folders are created, a link stays a link."""
    path.parent.mkdir(parents=True, exist_ok=True)
    target = Path(os.path.realpath(path))
    if is_special_file(target):
        fd = os.open(target, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # fails for a FIFO that nobody reads
        os.set_blocking(fd, True)
        with open(fd, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a descriptor has no Path
            stream.write(text)
        return
    remove_temporaries(target, older_than_s=_STALE_TEMPORARY_S)
    replace_file(target, text.encode("utf-8", "backslashreplace"))  # half surrogates of file names


def replace_file(target: Path, data: bytes) -> None:
    """Replace a file by a complete temporary one in a single step, so that a power cut leaves the old or the new."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(fd, "wb") as stream:  # noqa: PTH123 - a descriptor has no Path
            with suppress(FileNotFoundError):
                os.fchmod(fd, stat.S_IMODE(target.stat().st_mode))
            stream.write(data)
            stream.flush()
            os.fsync(fd)
        temporary.replace(target)
    except BaseException:  # Ctrl-C as well
        temporary.unlink(missing_ok=True)
        raise
    with suppress(OSError):  # some network file systems cannot sync a folder; the file is complete already
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def remove_temporaries(target: Path, *, older_than_s: float = 0.0) -> None:
    """Remove temporary files that killed writers of this file left behind."""
    for path in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime >= older_than_s:
                path.unlink()


def is_abandoned(path: Path) -> bool:
    """Return whether no process holds the lock of a file or folder: the kernel releases it when its owner dies."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or a file system without locks
        return False
    finally:
        os.close(fd)
    return True


def is_special_file(path: Path) -> bool:
    """Return whether something other than a regular file is there: /dev/stdout, a FIFO."""
    return path.exists() and not path.is_file()


def nearest_folder(path: Path) -> Path:
    """Return the path itself or its nearest parent that exists."""
    return next(each for each in (path, *path.parents) if os.path.exists(each))  # noqa: PTH110 - Path's raises without permission


def relative_path(directory: Path, path: Path) -> Path:
    """Return a path relative to a directory where it is below it."""
    return path.relative_to(directory) if path.is_relative_to(directory) else path


# --- writing under a lock ---------------------------------------------------------------------------


@contextmanager
def locked(path: Path, kind: type[StorageError]) -> Iterator[Callable[[bytes], None]]:
    """Keep other processes from writing a file, and yield the function that replaces it."""
    try:
        # A link to shared storage stays a link: its target is what is locked and replaced.
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        with _folder_lock(target.parent, path, kind):
            remove_temporaries(target)
            yield lambda data: replace_file(target, data)
    except OSError as error:
        remedy = (
            f"Make room, and make {path.parent} a folder that user {os.geteuid()} can write, on a file system with locks; "
            "then record again. What was stored before is intact."
        )
        raise kind(str(path), "", f"cannot be written: {error.strerror or error}", remedy) from None


@contextmanager
def _folder_lock(folder: Path, path: Path, kind: type[StorageError]) -> Iterator[None]:
    """Hold the lock of the folder. The kernel releases it when a writer dies."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            _wait_for(fd, path, kind)
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.EISDIR, errno.EINVAL, errno.EOPNOTSUPP):
                raise
            # NFS maps flock to record locks, which need a descriptor open for writing: a folder has
            # none. A lock file does; it stays, because removing it would race with the next writer.
            os.close(fd)
            fd = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            _wait_for(fd, path, kind)
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)  # at once, even where a forked child shares the descriptor
        os.close(fd)


def _wait_for(fd: int, path: Path, kind: type[StorageError]) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                problem = f"another writer has been writing here for more than {LOCK_TIMEOUT_S:g} s"
                remedy = "Wait for it or end it, and record again; nothing was written."
                raise kind(str(path), "", problem, remedy) from None
            time.sleep(_LOCK_POLL_S)
