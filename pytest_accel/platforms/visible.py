"""Which devices a *_VISIBLE_DEVICES variable leaves: parsed as the CUDA and HIP runtimes parse it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_ORDINAL = re.compile(r"[+-]?\d+")


def select(spec: str | None, uuids: Sequence[str], numbered: int | None = None) -> list[int]:
    """Indices of the visible ones of the devices with these UUIDs, in the order of the variable.

    Only the first `numbered` of them have an ordinal (MIG slices have none); all by default.

    The rules of the CUDA programming guide and of torch.cuda: unset is all of them; entries are
    ordinals (anything after the digits is ignored, as strtol does) or beginnings of UUIDs that fit
    exactly one device; the first invalid entry ends the list; a device named twice empties it.
    """
    numbered = len(uuids) if numbered is None else numbered
    if spec is None:
        return list(range(numbered))
    chosen: list[int] = []
    for entry in spec.split(","):
        index = _index(entry.strip(), uuids, numbered)
        if index is None:
            break
        if index in chosen:
            return []
        chosen.append(index)
    return chosen


def uses_ordinals(spec: str | None) -> bool:
    """Whether the variable counts devices, so that the order of counting matters."""
    return spec is not None and _ORDINAL.match(spec.strip()) is not None


def _index(entry: str, uuids: Sequence[str], numbered: int) -> int | None:
    if entry.startswith(("GPU-", "MIG-")):
        fitting = [index for index, uuid in enumerate(uuids) if uuid.startswith(entry)]
        return fitting[0] if len(fitting) == 1 else None
    match = _ORDINAL.match(entry)
    ordinal = int(match[0]) if match else -1
    return ordinal if 0 <= ordinal < numbered else None
