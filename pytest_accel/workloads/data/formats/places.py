"""Where a data set lies under the root, and what is said when it does not."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Literal, TypeAlias

from pytest_accel.workloads.data.errors import missing, unreadable

if TYPE_CHECKING:
    from pathlib import Path

Split: TypeAlias = Literal["train", "test"]


def find_folder(root: Path, name: str, *candidates: str, archives: tuple[str, ...] = ()) -> Path:
    """Return the first of the folders that is there; an archive of it is told how to extract."""
    for candidate in candidates:
        if (root / candidate).is_dir():
            return root / candidate
    for archive in archives:
        if (root / archive).is_file():
            raise unreadable(
                root / archive,
                "the archive was not extracted",
                f"Run: tar -xf {shlex.quote(str(root / archive))} -C {shlex.quote(str(root))}",
            )
    raise missing(
        name, [root / candidate for candidate in candidates], "Download it there, or name another root."
    )
