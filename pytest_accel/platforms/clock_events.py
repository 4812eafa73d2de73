"""Why a GPU's clocks are where they are: NVML's bits and their words, in one place for all who show or judge them."""

from __future__ import annotations

from dataclasses import dataclass

# NVML's clock event reasons (nvml.h).
IDLE = 0x1
POWER_CAP = 0x4
HW_SLOWDOWN = 0x8
SW_THERMAL = 0x20
HW_THERMAL = 0x40
POWER_BRAKE = 0x80


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockEvent:
    """One bit."""

    bit: int
    name: str  # short, beside a share
    words: str  # for somebody who reads it for the first time
    distress: bool  # of the hardware; else somebody asked for it


EVENTS = (
    ClockEvent(bit=0x2, name="application clocks", words="application clocks", distress=False),
    ClockEvent(bit=POWER_CAP, name="power cap", words="power limit", distress=False),
    ClockEvent(bit=0x10, name="sync boost", words="sync boost", distress=False),
    ClockEvent(bit=0x100, name="display clocks", words="display clocks", distress=False),
    ClockEvent(bit=HW_SLOWDOWN, name="HW slowdown", words="hardware slowdown", distress=True),
    ClockEvent(bit=SW_THERMAL, name="SW thermal", words="too hot (software)", distress=True),
    ClockEvent(bit=HW_THERMAL, name="HW thermal", words="too hot (hardware)", distress=True),
    ClockEvent(bit=POWER_BRAKE, name="power brake", words="power brake", distress=True),
    ClockEvent(bit=0x200, name="board limit", words="board limit", distress=True),
    ClockEvent(bit=0x400, name="reliability", words="reliability", distress=True),
)
KNOWN = IDLE | sum(event.bit for event in EVENTS)
