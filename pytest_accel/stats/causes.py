"""Causes of a loss: sentences with the share of the loss that each explains."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One cause of a loss."""

    kind: str  # "sm_clock", "environment", "host", "loader", "kernels", "collectives", "package"
    text: str  # one sentence: what it is now, what it was in the baseline
    explained: float | None = None  # of ln(step time); None for a suspect whose share is unknown
    remedy: str = ""
