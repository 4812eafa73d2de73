"""Files that are written whole or not at all; whether a place can be written to, and how it is said."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """A reader never sees half of it, and what stood there before stays if this fails; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    target = Path(os.path.realpath(path))  # a link stays one
    if is_device(target):
        target.write_text(text, encoding="utf-8")
        return
    replace_whole(target, text.encode("utf-8"))


def is_device(path: Path) -> bool:
    """Whether what stands there is no file that could be replaced: /dev/stdout, a FIFO."""
    return path.exists() and not path.is_file()


def replace_whole(target: Path, data: bytes) -> None:
    """All or nothing, also at a power cut: a complete temporary file takes the name in one step."""
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
    except BaseException:  # Ctrl-C as well: no litter
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    # The new file stands already; some network file systems cannot sync a folder.
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def nearest_folder(path: Path) -> Path:
    """What there is already of the way to it, itself included: that is where the first folder or file would be made."""
    return next(each for each in (path, *path.parents) if os.path.exists(each))  # noqa: PTH110 - Path's raises where it may not look


def is_open(folder: Path) -> bool:
    """Whether it is a folder that we may write to."""
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def seen_from(directory: Path, path: Path) -> Path:
    """Relative where it lies below: as short as it can be said there."""
    return path.relative_to(directory) if path.is_relative_to(directory) else path
