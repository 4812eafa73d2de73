"""Moving tolerances: how much a benchmark may lose against its stored runs is stored beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias

from pytest_accel.core.quantities import percent
from pytest_accel.core.standing import auto_tolerance, standing
from pytest_accel.store.amending import Why, amend
from pytest_accel.store.schema import BaselineEntry, BaselineFile

if TYPE_CHECKING:
    from pytest_accel.store.baselines import BaselineStore

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

    def moved(key: str, entry: BaselineEntry) -> tuple[BaselineEntry, str] | None:
        now = standing(entry.runs, entry.tolerance)
        if not wanted(key) or (noisy_alone and not now.too_noisy):
            return None
        if to == "auto" and now.provisional:
            return entry, (
                f"{key}: left at {percent(now.tolerance)}: provisional ({now.provisional}), and so few runs would choose too much"
            )
        stored = auto_tolerance(entry.runs) if to == "auto" else to
        if stored == entry.tolerance:
            return None
        new = dataclasses.replace(why.noted(entry, entry.runs), tolerance=stored)
        then = standing(entry.runs, stored)
        return new, (
            f"{key}: {percent(then.tolerance)} is tolerated, {percent(now.tolerance)} before; its runs resolve "
            f"{percent(now.resolution)}"
        )

    return amend(store, file, moved)
