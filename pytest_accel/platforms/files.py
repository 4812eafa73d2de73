"""Small files of the kernel, read below a root that tests replace, and never more of them than is bounded."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 1 << 18  # /proc/stat of a thousand CPUs is 150 KB
MOST_NAMES = 10_000  # entries of one folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The host's files; paths are written without the leading slash."""

    root: Path = Path("/")

    def attempt(self, path: str) -> tuple[str, str]:
        """The text without its margins, and why there is none."""
        try:
            # Not blocking: somebody's pipe in the place of a file must not hold us up.
            descriptor = os.open(self.root / path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return _read(descriptor).decode("utf-8", "replace").strip(), ""
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:  # ValueError: a null byte in a path that we were told
            why = (getattr(error, "strerror", None) or str(error)).lower()
            return "", f"/{path}: {why}"

    def text(self, path: str) -> str:
        """The text, empty where there is none."""
        return self.attempt(path)[0]

    def lines(self, path: str) -> list[str]:
        return self.text(path).splitlines()

    def names(self, path: str) -> list[str]:
        """What a folder holds, sorted; nothing where there is no such folder."""
        try:
            with os.scandir(self.root / path) as entries:
                return sorted(entry.name for entry, _ in zip(entries, range(MOST_NAMES), strict=False))
        except (OSError, ValueError):
            return []

    def exists(self, path: str) -> bool:
        return os.path.lexists(self.root / path)


def whole(text: str) -> int | None:
    """A whole number that is not negative; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


def pairs(lines: list[str]) -> dict[str, int]:
    """Files of names and numbers: `nr_periods 12`; other lines are left out."""
    words = (line.split() for line in lines)
    found = ((word[0], whole(word[1])) for word in words if len(word) == 2)
    return {name: number for name, number in found if number is not None}


def _read(descriptor: int) -> bytes:
    content = b""
    while len(content) < MOST_BYTES and (part := os.read(descriptor, MOST_BYTES - len(content))):
        content += part
    return content
