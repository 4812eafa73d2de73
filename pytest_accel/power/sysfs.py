"""Sensors that are files of the kernel: one bounded read each, where a refusal is a value and nothing waits."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES = 4096  # a file of sysfs is a page at most
REFUSED = "permission denied"


def read(path: Path) -> tuple[str, str]:
    """The text without its margins, and why there is none."""
    try:
        # Not blocking: somebody's pipe in the place of a sensor must not hold a measurement up.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.read(descriptor, MOST_BYTES).decode("utf-8", "replace").strip(), ""
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            return "", REFUSED
        return "", (error.strerror or type(error).__name__).lower()


def read_whole(path: Path) -> tuple[int | None, str]:
    """A whole number that is not negative, and why there is none: sensors say `-1`, `N/A` or nothing when unwell."""
    text, why = read(path)
    if why:
        return None, why
    if text.isascii() and text.isdigit() and len(text) <= 20:
        return int(text), ""
    return None, f"says {text[:20]!r}, which is no reading"


def names(folder: Path) -> list[str]:
    """What a folder holds, sorted; nothing where there is none, or it may not be listed."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []
