"""What can go wrong with data, and the words for it.

RuntimeError
└── DataError        a data set that cannot be read
    └── DataMissing  a data set that is not there at all: synthetic data may stand in

Both take one text: a loader's worker process rebuilds the exception that it died of from its text alone.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


class DataError(RuntimeError):
    """A data set that cannot be read: the file, what is wrong with it, what to do."""


class SlowDecodingWarning(UserWarning):
    """Decoding on the device will be slower than it could be."""


class SyntheticDataWarning(UserWarning):
    """A root of real data was named, and the set is not in it: synthetic data stands in."""


class BoxesChangedWarning(UserWarning):
    """Boxes of a set were clipped to their images, or left out because nothing of them lies inside."""


class RebuiltCacheWarning(UserWarning):
    """Tokens that were kept from an earlier session could not be used: they are made anew."""


class DataMissing(DataError):  # noqa: N818 - reads as what happened
    """The data set is not under the root at all; the text names where was looked."""


def unreadable(where: object, problem: str, remedy: str) -> DataError:
    """Return the error for one file, or one place in it."""
    return DataError(f"{where}: {problem}\n{remedy}")


def missing(name: str, looked: Iterable[Path | str], remedy: str) -> DataMissing:
    """Return the error for a set that was found in none of the places."""
    return DataMissing(f"{name}: not found. Looked for {' and '.join(map(str, looked))}.\n{remedy}")


def existing_root(root: Path | None, name: str) -> Path:
    """Return the folder that holds all data sets, or raise DataMissing where it is not there."""
    if root is None or not root.is_dir():
        place = "a root folder, and none was given" if root is None else root
        raise missing(name, [place], "Name the folder that holds the data sets.")
    return root


@contextmanager
def reading(where: object) -> Iterator[None]:
    """Turn the system's refusal to open or read a file into a DataError that names it."""
    try:
        yield
    except FileNotFoundError:
        raise unreadable(
            where, "missing", "The data set is not whole: download or extract it again."
        ) from None
    except OSError as error:
        raise unreadable(
            where, f"not readable: {error.strerror or error}", "Check the file and its rights."
        ) from None
