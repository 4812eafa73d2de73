"""Moving anchors: the stored runs of today become what later baselines are held against."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_accel.core.quantities import counted
from pytest_accel.store.schema import BaselineEntry, BaselineFile, LedgerEntry

if TYPE_CHECKING:
    from pytest_accel.store.baselines import BaselineStore


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
    done: list[str] = []

    def changed(current: BaselineFile) -> BaselineFile:
        done.clear()
        benchmarks = dict(current.benchmarks)
        for key, entry in current.benchmarks.items():
            if wanted(key) and entry.anchor != (() if clear else entry.runs):
                benchmarks[key] = _moved(entry, reason=reason, at=at, clear=clear)
                done.append(_line(key, entry, clear=clear))
        return dataclasses.replace(current, benchmarks=benchmarks)

    if changed(file) != file:  # what would change nothing is not written
        store.change(file.platform, file.suite, changed)
    return done


def _moved(entry: BaselineEntry, *, reason: str, at: str, clear: bool) -> BaselineEntry:
    runs = entry.anchor if clear else entry.runs
    line = LedgerEntry(at=at, action="anchor", reason=reason, runs=len(runs), session=runs[-1].session)
    return dataclasses.replace(entry, anchor=() if clear else entry.runs, ledger=(*entry.ledger, line))


def _line(key: str, entry: BaselineEntry, *, clear: bool) -> str:
    if clear:
        return f"{key}: its anchor ({counted(len(entry.anchor), 'run')}) is gone"
    before = "moved" if entry.anchor else "set"
    return f"{key}: anchor {before} to its {counted(len(entry.runs), 'stored run')}"
