"""Texts as web corpora distribute them: one JSON object a line, plain or gzipped, as OSCAR has it."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import TYPE_CHECKING

from pytest_accel.workloads.data import checksums
from pytest_accel.workloads.data.errors import missing, reading, unreadable
from pytest_accel.workloads.data.formats.places import find_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENDINGS = (".jsonl", ".jsonl.gz")
KEYS = ("text", "content")  # OSCAR of 2019, and from 22.01 on
REMEDY = 'Valid: an object with a string "text" on every line. Correct or remove the line, or download the file again.'
_ZSTD = b"\x28\xb5\x2f\xfd"
_GZIP = b"\x1f\x8b"


def find_texts(root: Path) -> list[Path]:
    """Return the files of texts under the root of all data sets, in the order of their names."""
    folder = find_folder(root, "oscar", "oscar")
    with reading(folder):
        found = sorted(each for each in folder.iterdir() if _is_text(each))
    if not found:
        raise missing("oscar", [folder / f"*{ending}" for ending in ENDINGS], "Put the files of texts there.")
    return found


def read_documents(path: Path) -> Iterator[str]:
    """Yield the texts of a file; empty ones and blank lines are left out. DataError with the line where it is none."""
    checksums.verify(path, folder=path.parent)
    with reading(path), path.open("rb") as file:
        magic = file.read(4)
        file.seek(0)
        if magic == _ZSTD:
            raise unreadable(
                path, "compressed with zstd", "Run: unzstd, or zstdcat FILE | gzip > FILE.jsonl.gz"
            )
        number = 0
        lines = gzip.GzipFile(fileobj=file) if magic.startswith(_GZIP) else file
        try:
            for number, line in enumerate(lines, start=1):
                text = _text(line, path, number)
                if text:
                    yield text
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            problem = f"torn: the compressed file ends or breaks here: {error}"
            raise unreadable(f"{path}:{number + 1}", problem, "Download the file again.") from None


def _is_text(path: Path) -> bool:
    return path.name.endswith(ENDINGS) and not path.name.startswith(".") and path.is_file()


def _text(line: bytes, path: Path, number: int) -> str:
    if not line.strip():
        return ""
    where = f"{path}:{number}"
    try:
        found = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise unreadable(where, f"not UTF-8 from its byte {error.start} on", REMEDY) from None
    except (ValueError, RecursionError) as error:
        raise unreadable(where, f"not JSON: {error}", REMEDY) from None
    text = next((found[key] for key in KEYS if key in found), None) if isinstance(found, dict) else None
    if not isinstance(text, str):
        problem = f'"text" is {type(text).__name__}' if text is not None else 'no "text" in it'
        raise unreadable(where, problem if isinstance(found, dict) else "not an object", REMEDY)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise unreadable(where, f"half of a surrogate pair in its text, at {error.start}", REMEDY) from None
    return text
