"""Moving tolerances: how much a benchmark may lose against its stored runs is stored beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias

from pytest_accel.stats.baseline_quality import NO_GATE, Standing, auto_tolerance, platform_prior, standing
from pytest_accel.stats.quantities import percent
from pytest_accel.stats.verdict import Policy
from pytest_accel.storage.amending import Why, amend
from pytest_accel.storage.schema import BaselineEntry, BaselineFile, rounded
from pytest_accel.storage.stored_runs import runs_of_platform

if TYPE_CHECKING:
    from pytest_accel.storage.baselines import BaselineStore

_NO_GATE_IT_IS = ": that is no gate, it catches a breakdown and nothing else"
Tolerance: TypeAlias = float | Literal["auto"] | None  # None: the gate's own


class ToleranceError(ValueError):
    """A tolerance that cannot be moved."""


def move_tolerance(
    store: BaselineStore,
    file: BaselineFile,
    wanted: Callable[[str], bool],
    *,
    to: Tolerance,
    noisy_alone: bool,
    reason: str,
    at: str,
) -> list[str]:
    """Store another tolerance beside the runs of each wanted benchmark; a line for each, and why one was left as it is.

    `noisy_alone`: of those alone whose runs are too noisy for the tolerance that they have.
    """
    if not reason.strip():
        raise ToleranceError(
            'A tolerance moves with a reason, which goes into the ledger: --reason "the host is shared".'
        )
    why = Why(action="tolerance", reason=reason, at=at)
    prior = platform_prior(runs_of_platform(store, file.platform))

    def moved(key: str, entry: BaselineEntry) -> tuple[BaselineEntry, str] | None:
        if not wanted(key):
            return None
        now = standing(entry.runs, entry.tolerance, prior)
        if noisy_alone and not now.too_noisy:
            return None
        new = auto_tolerance(entry.runs, prior) if to == "auto" else to
        if problem := _refused(now, new, chosen=to == "auto"):
            return entry, f"{key}: left at {percent(now.tolerance)}: {problem}"
        new = None if new is None else rounded(new)
        if new in (entry.tolerance, now.tolerance):
            return None
        then = Policy().tolerance if new is None else new
        return dataclasses.replace(why.noted(entry, entry.runs), tolerance=new), (
            f"{key}: {percent(then)} is stored, {percent(now.tolerance)} before; its runs resolve "
            f"{percent(now.resolution)}{_NO_GATE_IT_IS if then > NO_GATE else ''}"
        )

    return amend(store, file, moved)


def _refused(now: Standing, new: float | None, *, chosen: bool) -> str:
    """Why a tolerance is not stored; empty where it is."""
    if chosen and now.provisional:
        return f"provisional ({now.provisional}): record the rest first"
    if chosen and new is not None and new > NO_GATE:
        return (
            f"its runs resolve {percent(now.resolution)}, and no gate holds on it: quieten the machine (pytest-accel doctor), or "
            "name a number that lets it pass"
        )
    return ""
