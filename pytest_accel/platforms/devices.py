"""Accelerators as drivers report them, and the variables that make some of them visible."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_accel.platforms.catalogue import Variant

_ORDINAL = re.compile(r"[+-]?\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedDevice:
    """One accelerator that this process may use, as its driver and the catalogue describe it."""

    index: int  # as the framework counts: cuda:0 is the first visible one
    name: str
    vendor: str = "nvidia"
    uuid: str = ""
    memory_bytes: int | None = None
    key: str | None = None  # of the catalogue; None for an unknown device
    variant: Variant | None = None


def select_visible(spec: str | None, uuids: Sequence[str]) -> list[int]:
    """Return the indices of the devices that a *_VISIBLE_DEVICES variable selects, in its order.

    The rules of the CUDA programming guide and of torch.cuda: unset selects all; entries are ordinals
    (text after the digits is ignored, as by strtol) or beginnings of UUIDs that fit exactly one device;
    the first invalid entry ends the list; a device that is named twice empties it.
    """
    if spec is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for entry in spec.split(","):
        index = _visible_index(entry.strip(), uuids)
        if index is None:
            break
        if index in chosen:
            return []
        chosen.append(index)
    return chosen


def uses_ordinals(spec: str | None) -> bool:
    """Whether the variable counts devices, so that the order of counting matters."""
    return spec is not None and _ORDINAL.match(spec.strip()) is not None


def _visible_index(entry: str, uuids: Sequence[str]) -> int | None:
    if entry.startswith("GPU-"):
        fitting = [index for index, uuid in enumerate(uuids) if uuid.startswith(entry)]
        return fitting[0] if len(fitting) == 1 else None
    match = _ORDINAL.match(entry)
    ordinal = int(match[0]) if match else -1
    return ordinal if 0 <= ordinal < len(uuids) else None
