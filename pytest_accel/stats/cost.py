"""What verdicts cost: how long they took, how long devices were held for them, and where that time went."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pytest_accel.stats.quantities import counted, percent, seconds
from pytest_accel.stats.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """On one benchmark, with all its fresh processes."""

    name: str
    held_s: float  # from beginning to end, less what it waited for others to leave its devices
    devices: int  # that nobody else could use meanwhile; 0: none but the host's own
    runs: Sequence[Run] = field(default=())
    decided: bool = True  # whether it came to what it was measured for

    @property
    def device_s(self) -> float:
        return self.held_s * self.devices

    @property
    def warming_s(self) -> float:
        """Compiling too: the first step is the first of the warm-up."""
        return sum(run.warmup_s or 0.0 for run in self.runs)

    @property
    def measuring_s(self) -> float:
        return sum(run.steps_per_round * sum(run.rounds_s) for run in self.runs)


def cost_line(spent: Iterable[Spent], noun: str) -> str:
    """Say what each `noun` (verdict, recording) cost, where the time went, and which took the most; nothing of none.

    What came to none is paid for by the others.
    """
    paid = [each for each in spent if each.held_s > 0]
    if not paid:
        return ""
    held_s, device_s = sum(each.held_s for each in paid), sum(each.device_s for each in paid)
    decided = sum(each.decided for each in paid)
    without = f" and {counted(len(paid) - decided, 'benchmark')} without" if decided < len(paid) else ""
    total = [
        seconds(held_s),
        f"{seconds(held_s / decided)} each" if decided > 1 else "",
        f"{device_s:,.0f} device-seconds" if device_s else "",
    ]
    return (
        f"note: {counted(decided, noun)}{without} in {', '.join(filter(None, total))}: {_shares(paid, held_s)}"
        f"{_dearest(paid)}"
    )


def _shares(paid: Sequence[Spent], held_s: float) -> str:
    measuring = sum(each.measuring_s for each in paid) / held_s
    warming = sum(each.warming_s for each in paid) / held_s
    return (
        f"{percent(measuring, 0)} measuring, {percent(warming, 0)} compiling and warming up, "
        f"{percent(max(0.0, 1 - measuring - warming), 0)} starting, building and checking"
    )


def _dearest(paid: Sequence[Spent]) -> str:
    if len(paid) == 1:
        return ""
    most = max(paid, key=lambda each: each.held_s)
    return f"; the most for {most.name}, {seconds(most.held_s)}"
