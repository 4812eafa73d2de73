"""A million names as one object: a worker process that only reads them then copies no page of them.

A Python string each would be counted at every use, and each count writes to its page: forked workers would end with a
copy each of what they share.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedNames:
    """Names end to end, and where each ends; bytes as the file system has them."""

    text: bytes
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> str:
        start = int(self.ends[index - 1]) if index else 0
        return os.fsdecode(self.text[start : int(self.ends[index])])


def pack(names: Iterable[str]) -> PackedNames:
    encoded = [os.fsencode(name) for name in names]
    return PackedNames(text=b"".join(encoded), ends=np.fromiter(accumulate(map(len, encoded)), np.int64))


def concatenate(parts: Iterable[PackedNames]) -> PackedNames:
    kept = list(parts)
    starts = accumulate((len(part.text) for part in kept), initial=0)
    ends = [start + part.ends for start, part in zip(starts, kept, strict=False)]  # one start more: the end
    return PackedNames(
        text=b"".join(part.text for part in kept),
        ends=np.concatenate(ends) if ends else np.empty(0, np.int64),
    )
