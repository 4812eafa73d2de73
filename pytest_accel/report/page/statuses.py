"""How each end of a benchmark looks and what it asks for: its colour, its sign, its place in the order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_accel.report.attention import SETTLED
from pytest_accel.stats.results import Ending, Result, Status
from pytest_accel.stats.verdict import Outcome

Tone = Literal["bad", "warn", "gain", "good", "mute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    tone: Tone
    icon: str  # a symbol of the template: colour is never the only sign
    asks: str = ""  # what to think of it, and what to do, where it does not fail the session


# In the order in which they are read, which is that of `report/attention.py`.
LOOKS: dict[Status, Look] = {
    Ending.PLATFORM: Look(
        tone="bad", icon="down", asks="Nearly all benchmarks are slower by as much. Check the machine."
    ),
    Outcome.REGRESSED: Look(tone="bad", icon="down", asks="Worse than the baseline."),
    Outcome.INVALID: Look(tone="bad", icon="bang", asks="Disturbed, so that its figures mean nothing."),
    Ending.FAILED: Look(tone="bad", icon="cross", asks="Measured nothing, or a check of its own failed."),
    Ending.OFF_REFERENCE: Look(tone="bad", icon="down", asks="Not what was published, or is expected here."),
    Outcome.STALE_BASELINE: Look(
        tone="warn", icon="clock", asks="Measures something else than its baseline did. Replace the baseline."
    ),
    Ending.VANISHED: Look(
        tone="warn", icon="ghost", asks="Stands in the baseline and was not found. Was it renamed?"
    ),
    Outcome.INCONCLUSIVE: Look(tone="warn", icon="question"),  # its verdict says what would decide it
    Outcome.NO_BASELINE: Look(tone="warn", icon="ring", asks="Has nothing to be compared with. Record it."),
    Ending.NOT_MEASURED: Look(tone="warn", icon="ring", asks="Was not measured."),
    Outcome.DOES_NOT_FIT: Look(
        tone="warn", icon="box", asks="Does not fit into the memory of this platform."
    ),
    Outcome.IMPROVED: Look(
        tone="gain",
        icon="up",
        asks="Faster. Refresh the baseline, or the loss of this gain will go unnoticed.",
    ),
    Outcome.OK: Look(tone="good", icon="check"),
    Ending.RECORDED: Look(tone="good", icon="dot"),
    Ending.SKIPPED: Look(tone="mute", icon="dash"),
}
_RANKS = {status: rank for rank, status in enumerate(LOOKS)}


def shown_status(result: Result) -> Status:
    """What it counts as: one that is well against its baseline, and that broke when it was torn down, has failed."""
    is_short = result.failed and result.status in {*SETTLED, Outcome.IMPROVED}
    return Ending.FAILED if is_short else result.status


def rank(status: Status) -> int:
    return _RANKS[status]
