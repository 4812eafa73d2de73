"""Errors and warnings about data sets, the search for their folders, and the reading of small files.

RuntimeError
└── DataError        a data set that cannot be read
    └── DataMissing  a data set that is not there; synthetic data may replace it

Both take one text, because a loader's worker process rebuilds its exception from the text alone.
"""

from __future__ import annotations

import json
import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

Split: TypeAlias = Literal["train", "test"]


class DataError(RuntimeError):
    """A data set that cannot be read: the file, what is wrong with it, what to do."""


class DataMissing(DataError):  # noqa: N818 - reads as what happened
    """The data set is not under the root; the text lists the searched places."""


class SlowDecodingWarning(UserWarning):
    """Decoding on the device will be slower than it could be."""


class SyntheticDataWarning(UserWarning):
    """The named root of real data does not hold the set: synthetic data replaces it."""


class BoxesChangedWarning(UserWarning):
    """Boxes of a set were clipped to their images, or dropped because they are outside."""


class RebuiltCacheWarning(UserWarning):
    """Cached tokens of an earlier session could not be used and are built again."""


def unreadable(where: object, problem: str, remedy: str) -> DataError:
    """Return the error for one file, or one place in it."""
    return DataError(f"{where}: {problem}\n{remedy}")


def missing(name: str, searched: Iterable[Path | str], remedy: str) -> DataMissing:
    """Return the error for a set that was found in none of the places."""
    return DataMissing(f"{name}: not found. Looked for {' and '.join(map(str, searched))}.\n{remedy}")


def existing_root(root: Path | None, name: str) -> Path:
    """Return the root folder of all data sets; DataMissing where it does not exist."""
    if root is None or not root.is_dir():
        place = "a root folder, and none was given" if root is None else root
        raise missing(name, [place], "Name the folder that holds the data sets.")
    return root


def find_folder(root: Path, name: str, *candidates: str, archives: tuple[str, ...] = ()) -> Path:
    """Return the first folder that exists; for an archive that was not extracted, raise with the command."""
    for candidate in candidates:
        if (root / candidate).is_dir():
            return root / candidate
    for archive in archives:
        if (root / archive).is_file():
            command = f"tar -xf {shlex.quote(str(root / archive))} -C {shlex.quote(str(root))}"
            raise unreadable(root / archive, "the archive was not extracted", f"Run: {command}")
    searched = [root / candidate for candidate in candidates]
    raise missing(name, searched, "Download it there, or name another root.")


@contextmanager
def reading(where: object) -> Iterator[None]:
    """Turn an OSError of opening or reading a file into a DataError that names it."""
    try:
        yield
    except FileNotFoundError:
        remedy = "The data set is not whole: download or extract it again."
        raise unreadable(where, "missing", remedy) from None
    except OSError as error:
        problem = f"not readable: {error.strerror or error}"
        raise unreadable(where, problem, "Check the file and its rights.") from None


def read_text(path: Path, remedy: str) -> str:
    """Return a file's text; DataError with the line where it is not UTF-8."""
    with reading(path):
        data = path.read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise unreadable(f"{path}:{line}", "not UTF-8", remedy) from None


def read_json(path: Path, remedy: str, *, object_hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Return a JSON file's content; DataError with the line where it is not JSON."""
    try:
        return json.loads(read_text(path, remedy), object_hook=object_hook)
    except json.JSONDecodeError as error:
        raise unreadable(f"{path}:{error.lineno}", f"not JSON: {error.msg}", remedy) from None
    except (ValueError, RecursionError) as error:
        raise unreadable(path, f"not JSON: {error}", remedy) from None
