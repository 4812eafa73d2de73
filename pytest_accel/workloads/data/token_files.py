"""Texts tokenised once: a file of token numbers that every later session maps into memory.

One file, so that it is there whole or not at all: a header of JSON in the first 4096 bytes, the tokens of all documents
with `<|endoftext|>` after each, and where each document ends. The header has a fingerprint of the texts and of the
vocabulary; a file of others, or a torn one, is made anew, with a warning.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import warnings
from array import array
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from pytest_accel.storage.whole import is_open, nearest_folder
from pytest_accel.workloads.data.errors import DataError, RebuiltCacheWarning, reading, unreadable
from pytest_accel.workloads.data.formats.jsonl import read_documents

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from pytest_accel.workloads.data.formats.bpe import Bpe

HEADER_BYTES = 4096  # a page: the tokens behind it are aligned
FORMAT, VERSION = "pytest-accel tokens", 1
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS, errno.EACCES, errno.EPERM}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenFile:
    """The tokens of all documents end to end, in memory that is the file's."""

    path: Path
    tokens: NDArray[Any]  # uint16 or uint32 (N,)
    ends: NDArray[np.int64]  # of each document, behind its end_of_text
    vocabulary: int  # tokens are below
    end_of_text: int

    def __len__(self) -> int:
        return len(self.tokens)


def open_tokens(files: Sequence[Path], vocabulary: Bpe, *, cache: Path | None = None) -> TokenFile:
    """Return the tokens of texts: those of an earlier session, or new ones.

    They are kept in `cache`; without one beside the texts, or where that folder is read-only, in the user's cache. Ranks
    that start together wait for the one that makes them.
    """
    if not files:
        raise ValueError("files: none. Name the files of texts.")
    fingerprint = _fingerprint(files, vocabulary)
    places = _places(files[0].parent, vocabulary, cache)
    reasons: list[str] = []
    for place in places:
        found = _opened(place, fingerprint)
        if isinstance(found, TokenFile):
            return found
        reasons += [f"{place}: {found}"] if found else []
    place = next((each for each in places if is_open(nearest_folder(each.parent))), places[0])
    with _writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(place):
        found = _opened(place, fingerprint)  # another rank may have made it while we waited
        if not isinstance(found, TokenFile):
            if reasons:
                said = f"{reasons[0]}. The texts are tokenised anew, into {place}."
                warnings.warn(said, RebuiltCacheWarning, stacklevel=2)
            _write(place, files, vocabulary, fingerprint)
            found = _opened(place, fingerprint)
    if not isinstance(found, TokenFile):
        raise unreadable(place, f"just written, and {found or 'gone'}", "Check the disk it lies on.")
    return found


def user_cache() -> Path | None:
    """Where a user's programs keep what they can make again; None: this user has no home."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):  # noqa: PTH117 - a string
        return Path(named, "pytest-accel")
    try:
        return Path.home() / ".cache/pytest-accel"
    except RuntimeError:
        return None


def _places(folder: Path, vocabulary: Bpe, cache: Path | None) -> list[Path]:
    """Where tokens of these texts may lie, best first. Elsewhere than beside them, their name says of which folder."""
    beside = f"tokens-{vocabulary.fingerprint[:12]}.bin"
    of_folder = hashlib.blake2b(os.fsencode(folder.absolute()), digest_size=4).hexdigest()
    elsewhere = f"{folder.name}-{of_folder}-{beside}"
    if cache is not None:
        return [cache / elsewhere]
    user = user_cache()
    return [folder / beside, *([user / elsewhere] if user else [])]


def _fingerprint(files: Sequence[Path], vocabulary: Bpe) -> str:
    """Names, sizes and times of the texts: reading them all to see that they are the same would take as long as to use them."""
    digest = hashlib.blake2b(f"{FORMAT}/{VERSION}/{vocabulary.fingerprint}".encode(), digest_size=16)
    for file in files:
        with reading(file):
            status = file.stat()
        digest.update(os.fsencode(file.name) + f"/{status.st_size}/{status.st_mtime_ns}/".encode())
    return digest.hexdigest()


def _opened(path: Path, fingerprint: str) -> TokenFile | str:
    """Map a file, or say why it cannot be used; "" where there is none."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(HEADER_BYTES).decode("ascii"))
            return _mapped(path, header, os.fstat(file.fileno()).st_size, fingerprint)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"not readable: {error.strerror or error}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return "torn: its header cannot be read"


def _mapped(path: Path, header: dict[str, Any], size: int, fingerprint: str) -> TokenFile | str:
    if (header["format"], header["version"]) != (FORMAT, VERSION):
        return "not of this version"
    dtype = np.dtype(header["dtype"])
    tokens, documents = int(header["tokens"]), int(header["documents"])
    ends_at = HEADER_BYTES + _padded(tokens * dtype.itemsize)
    if size != ends_at + 8 * documents or tokens < 1 or documents < 1:
        return f"torn: {size} bytes are not {tokens} tokens of {documents} documents"
    if header["fingerprint"] != fingerprint:
        return "made of other texts, or with another vocabulary"
    return TokenFile(
        path=path,
        tokens=np.memmap(path, dtype, "r", HEADER_BYTES, (tokens,)),
        ends=np.memmap(path, np.int64, "r", ends_at, (documents,)),
        vocabulary=int(header["vocabulary"]),
        end_of_text=int(header["end_of_text"]),
    )


def _write(path: Path, files: Sequence[Path], vocabulary: Bpe, fingerprint: str) -> None:
    """A complete temporary file takes the name in one step; nothing is left of one that could not be completed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with _writing(path), temporary.open("xb", buffering=2**20) as out:
            _write_tokens(out, files, vocabulary, fingerprint)
            out.flush()
            os.fsync(out.fileno())
        with _writing(path):
            temporary.replace(path)
    except BaseException:  # Ctrl-C as well: no litter
        temporary.unlink(missing_ok=True)
        raise


def _write_tokens(out: BinaryIO, files: Sequence[Path], vocabulary: Bpe, fingerprint: str) -> None:
    out.write(bytes(HEADER_BYTES))
    end_of_text = np.array([vocabulary.end_of_text], vocabulary.dtype).tobytes()
    ends = array("q")
    count_bytes = 0
    for file in files:
        for text in read_documents(file):
            packed = vocabulary.encode_packed(text) + end_of_text
            out.write(packed)
            count_bytes += len(packed)
            ends.append(count_bytes // vocabulary.dtype.itemsize)
    if not ends:
        raise unreadable(files[0], "no document in it, nor in any file beside it", "Put texts there.")
    out.write(bytes(_padded(count_bytes) - count_bytes))
    out.write(ends.tobytes())
    header = {
        "format": FORMAT,
        "version": VERSION,
        "dtype": vocabulary.dtype.str,
        "tokens": ends[-1],
        "documents": len(ends),
        "vocabulary": vocabulary.size,
        "end_of_text": vocabulary.end_of_text,
        "fingerprint": fingerprint,
    }
    out.seek(0)
    out.write(json.dumps(header).encode("ascii").ljust(HEADER_BYTES - 1) + b"\n")


def _padded(count_bytes: int) -> int:
    return -(-count_bytes // 8) * 8  # what follows is read in eights


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn the system's refusal to write into a DataError that names the file and what would help."""
    try:
        yield
    except OSError as error:
        remedy = "Make its folder writable, or name another for the tokens."
        if error.errno in _NO_ROOM:
            remedy = "Free some, about as much as the texts take, or name another folder for the tokens."
        problem = f"the tokens could not be written: {error.strerror or error}"
        raise unreadable(path, problem, remedy) from None


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Hold the lock of a file while it is made. Without locks several processes make it, and each makes it whole."""
    try:
        descriptor = os.open(
            path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666
        )
    except OSError:
        yield  # writing will tell
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise DataError(
                    f"{path}: its lock cannot be had: {error.strerror}\nRemove it, or try again."
                ) from None
        yield
    finally:
        with suppress(OSError):
            os.close(descriptor)
