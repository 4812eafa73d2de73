"""Language-model data: texts in JSON lines, encoded once into a token file that is mapped into memory."""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import json
import os
import secrets
import warnings
import zlib
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from pytest_accel.storage.files import is_writable_folder, nearest_folder
from pytest_accel.workloads.data.errors import (
    RebuiltCacheWarning,
    find_folder,
    missing,
    reading,
    unreadable,
)
from pytest_accel.workloads.data.vocabularies import find_gpt2, read_gpt2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from pytest_accel.workloads.data.order import TrainingOrder
    from pytest_accel.workloads.data.vocabularies import Gpt2Vocabulary

Tensor: TypeAlias = Any  # torch is untyped here

ENDINGS = (".jsonl", ".jsonl.gz")
KEYS = ("text", "content")  # OSCAR of 2019, and from 22.01 on
REMEDY = 'Valid: an object with a string "text" on every line. Correct or remove the line, or download the file again.'
FORMAT = "pytest-accel tokens 2"  # part of a token file's fingerprint
_ZSTD = b"\x28\xb5\x2f\xfd"
_GZIP = b"\x1f\x8b"
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def find_texts(root: Path) -> list[Path]:
    """Return the files of texts under the root of all data sets, in the order of their names."""
    folder = find_folder(root, "oscar", "oscar")
    with reading(folder):
        found = sorted(
            each
            for each in folder.iterdir()
            if each.name.endswith(ENDINGS) and not each.name.startswith(".") and each.is_file()
        )
    if not found:
        raise missing("oscar", [folder / f"*{ending}" for ending in ENDINGS], "Put the files of texts there.")
    return found


def read_documents(path: Path) -> Iterator[str]:
    """Yield the texts of a file without empty ones; DataError with the line that cannot be read."""
    with reading(path), path.open("rb") as file:
        magic = file.read(4)
        file.seek(0)
        if magic == _ZSTD:
            remedy = "Run: unzstd, or zstdcat FILE | gzip > FILE.jsonl.gz"
            raise unreadable(path, "compressed with zstd", remedy)
        number = 0
        lines = gzip.GzipFile(fileobj=file) if magic.startswith(_GZIP) else file
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip() and (text := _text(line, f"{path}:{number}")):
                    yield text
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            problem = f"torn: the compressed file ends or breaks here: {error}"
            raise unreadable(f"{path}:{number + 1}", problem, "Download the file again.") from None


def _text(line: bytes, where: str) -> str:
    try:
        found = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise unreadable(where, f"not UTF-8 from its byte {error.start} on", REMEDY) from None
    except (ValueError, RecursionError) as error:
        raise unreadable(where, f"not JSON: {error}", REMEDY) from None
    if not isinstance(found, dict):
        raise unreadable(where, "not an object", REMEDY)
    text = next((found[key] for key in KEYS if key in found), None)
    if not isinstance(text, str):
        problem = f'"text" is {type(text).__name__}' if text is not None else 'no "text" in it'
        raise unreadable(where, problem, REMEDY)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise unreadable(where, f"half of a surrogate pair in its text, at {error.start}", REMEDY) from None
    return text


class TokenFile(NamedTuple):
    """The tokens of all documents end to end, each followed by end_of_text, mapped from a file."""

    path: Path
    tokens: NDArray[Any]  # uint16 or uint32 (N,)
    vocabulary: int  # tokens are below


def open_texts(root: Path) -> TokenFile:
    """Return the tokens of `oscar/` with the vocabulary of `gpt2/`, both under the root; of an earlier session, or new.

    They are kept beside the texts, or in the user's cache where that folder is read-only. The file's name has hashes of the
    vocabulary and the texts: texts that changed get a new file, and the old one is removed. Ranks that start together
    wait for the one that writes it. DataMissing where a part is not there, DataError where it cannot be read.
    """
    files, vocabulary = find_texts(root), read_gpt2(find_gpt2(root))
    places = _places(files, vocabulary)
    problems: list[str] = []
    for place in places:
        tokens = _mapped(place, problems)
        if tokens is not None:
            return TokenFile(place, tokens, vocabulary.size)
    place = next((each for each in places if is_writable_folder(nearest_folder(each.parent))), places[0])
    with _writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
    with _locked(place):
        tokens = _mapped(place, [])  # another rank may have written it meanwhile
        if tokens is None:
            if problems:
                said = f"{problems[0]}. The texts are encoded again, into {place}."
                warnings.warn(said, RebuiltCacheWarning, stacklevel=2)
            _write(place, files, vocabulary)
            tokens = _mapped(place, problems)
    if tokens is None:
        raise unreadable(place, "just written, and not readable", "Check the disk it is on.")
    return TokenFile(place, tokens, vocabulary.size)


def _places(files: Sequence[Path], vocabulary: Gpt2Vocabulary) -> list[Path]:
    """Return where the tokens of these texts may be: beside them, and in the user's cache."""
    folder = files[0].parent
    state = ""
    for file in files:  # sizes and times: hashing all texts would take as long as encoding them
        with reading(file):
            status = file.stat()
        state += f"{file.name}/{status.st_size}/{status.st_mtime_ns}/"
    of_set = _hash(f"{FORMAT}/{vocabulary.fingerprint}/{folder.absolute()}")
    name = f"tokens-{of_set}-{_hash(state)}.npy"
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - raises without a home
    return [folder / name, Path(user, "pytest-accel", name)]


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()


def _mapped(path: Path, problems: list[str]) -> NDArray[Any] | None:
    """Map a token file; None where there is none or it cannot be read, with the problem appended."""
    try:
        tokens: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError) as error:  # NumPy checks the header and the length
        problems.append(f"{path}: torn or not readable: {error}")
        return None
    return tokens


def _write(path: Path, files: Sequence[Path], vocabulary: Gpt2Vocabulary) -> None:
    """Write a complete temporary file, then rename it; remove it where that fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    end_of_text = np.array([vocabulary.end_of_text], vocabulary.dtype).tobytes()
    header = {"descr": vocabulary.dtype.str, "fortran_order": False, "shape": (2**62,)}
    total = 0
    try:
        with _writing(path), temporary.open("xb", buffering=2**20) as out:
            np.lib.format.write_array_header_1_0(out, header)  # with room for any number of tokens
            begin = out.tell()
            for file in files:
                for text in read_documents(file):
                    packed = vocabulary.encode(text).tobytes() + end_of_text
                    out.write(packed)
                    total += len(packed)
            _check_any(total, files)
            out.seek(0)
            np.lib.format.write_array_header_1_0(
                out, header | {"shape": (total // vocabulary.dtype.itemsize,)}
            )
            assert out.tell() == begin  # NumPy pads headers to 64 bytes
            out.flush()
            os.fsync(out.fileno())
        with _writing(path):
            temporary.replace(path)
            for outdated in path.parent.glob(f"{_set_name(path)}-*.npy"):  # of texts that changed
                if outdated != path:
                    outdated.unlink(missing_ok=True)
    except BaseException:  # Ctrl-C as well
        temporary.unlink(missing_ok=True)
        raise


def _set_name(path: Path) -> str:
    return path.name.rpartition("-")[0]


def _check_any(total: int, files: Sequence[Path]) -> None:
    if not total:
        raise unreadable(files[0], "no document in it, nor in any file beside it", "Put texts there.")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn an OSError of writing into a DataError that names the file and the remedy."""
    try:
        yield
    except OSError as error:
        remedy = "Make its folder writable, or set XDG_CACHE_HOME."
        if error.errno in _NO_SPACE:
            remedy = "Free some space, about as much as the texts take."
        raise unreadable(
            path, f"the tokens could not be written: {error.strerror or error}", remedy
        ) from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file's lock while it is written. Without locks several processes write it, each completely."""
    try:
        descriptor = os.open(
            path.with_name(f".{_set_name(path)}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666
        )
    except OSError:
        yield  # writing will raise
        return
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class Sequences:
    """Sequences of `length` inputs and as many targets, which are the inputs one token later.

    Documents are end to end. A sequence begins where the last one stopped, so that every token is a target once; the
    rest at the end that fills no sequence is not used.
    """

    def __init__(self, file: TokenFile, *, length: int) -> None:
        self.length = length
        self._file = file
        self._total = (len(file.tokens) - 1) // length
        if self._total < 1:
            raise unreadable(
                file.path,
                f"{len(file.tokens)} tokens are not one sequence of {length} and its targets",
                "Put more texts there, or ask for shorter sequences.",
            )

    def __len__(self) -> int:
        return self._total

    def read(self, indices: Sequence[int], *, pinned: bool = False) -> tuple[Tensor, Tensor]:
        """Return inputs and targets, int64 (sequences, length) each, optionally in pinned memory."""
        shape = (len(indices), self.length)
        inputs = torch.empty(shape, dtype=torch.int64, pin_memory=pinned)
        targets = torch.empty(shape, dtype=torch.int64, pin_memory=pinned)
        into_inputs, into_targets = inputs.numpy(), targets.numpy()
        tokens = self._file.tokens
        for row, index in enumerate(indices):
            first, stop = index * self.length, (index + 1) * self.length
            into_inputs[row] = tokens[first:stop]
            into_targets[row] = tokens[first + 1 : stop + 1]
        # A token outside the vocabulary is a device-side assertion on CUDA, which ends the process.
        most = max(into_inputs.max(initial=0), into_targets.max(initial=0))
        if most >= self._file.vocabulary:
            problem = f"damaged: it has the token {most}, and there are {self._file.vocabulary}"
            raise unreadable(self._file.path, problem, "Remove it: it will be written again.")
        return inputs, targets


class TokenSource:
    """Batch source of sequences in the order of a rank. A batch is a few hundred kilobytes: it needs no worker."""

    buffered, burst = 0, 1
    loads = True

    def __init__(self, sequences: Sequences, order: TrainingOrder, device: torch.device) -> None:
        self._sequences = sequences
        self._order = order
        self._device = device
        self._steps = count()

    def __next__(self) -> tuple[Tensor, Tensor]:
        pinned = self._device.type == "cuda"
        inputs, targets = self._sequences.read(self._order.indices(next(self._steps)), pinned=pinned)
        return inputs.to(self._device, non_blocking=True), targets.to(self._device, non_blocking=True)

    def close(self) -> None:
        """Do nothing: a memory map is freed with its last user."""
