"""Moving anchors: the stored runs of today become what later baselines are held against."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_accel.stats.quantities import counted
from pytest_accel.storage.amending import Why, amend
from pytest_accel.storage.schema import BaselineEntry, BaselineFile

if TYPE_CHECKING:
    from pytest_accel.storage.baselines import BaselineStore


class AnchorError(ValueError):
    """An anchor that cannot be moved."""


def anchor(
    store: BaselineStore,
    file: BaselineFile,
    wanted: Callable[[str], bool],
    *,
    reason: str,
    at: str,
    clear: bool = False,
) -> list[str]:
    """Take the stored runs for the anchor of each wanted benchmark, or take its anchor away; a line for each that changed."""
    if not reason.strip():
        raise AnchorError(
            'An anchor moves with a reason, which goes into the ledger: --reason "release 1.4".'
        )
    why = Why(action="anchor", reason=reason, at=at)

    def moved(key: str, entry: BaselineEntry) -> tuple[BaselineEntry, str] | None:
        runs = () if clear else entry.runs
        if not wanted(key) or entry.anchor == runs:
            return None
        noted = why.noted(entry, entry.anchor if clear else entry.runs)
        return dataclasses.replace(noted, anchor=runs), _line(key, entry, clear=clear)

    return amend(store, file, moved)


def _line(key: str, entry: BaselineEntry, *, clear: bool) -> str:
    if clear:
        return f"{key}: its anchor ({counted(len(entry.anchor), 'run')}) is gone"
    before = "moved" if entry.anchor else "set"
    return f"{key}: anchor {before} to its {counted(len(entry.runs), 'stored run')}"
