"""Validity of a measurement, from the state of the device during it.

A run is invalid because of causes that a repeat may not meet: heat, a power brake, foreign load, memory errors. What was
set on purpose or is permanent (clocks, limits, links) is a note, and the run counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from operator import or_
from statistics import fmean, median

from pytest_accel.platforms.nvidia import (
    EVENTS,
    HW_SLOWDOWN,
    HW_THERMAL,
    IDLE,
    KNOWN,
    POWER_BRAKE,
    POWER_CAP,
    SW_THERMAL,
)
from pytest_accel.stats.quantities import gibibytes, percent, seconds

THROTTLES = HW_SLOWDOWN | SW_THERMAL | HW_THERMAL | POWER_BRAKE
# Drivers set HW slowdown together with its cause, and for a moment with any change of clocks (nvml.h).
_CAUSES = HW_THERMAL | POWER_BRAKE
# Of the samples. HW slowdown halves the clocks: in 5 % of the window it costs 2.5 % and more, half the default
# tolerance. A single sample of it is never a reason to measure again.
THROTTLED_SHARE = 0.05
THROTTLED_SAMPLES = 2
# Of the SMs: 5 % is the default tolerance. A monitoring agent takes less.
BUSY_SHARE = 0.05
# Below: the CUDA context of our own process (hundreds of MiB), a driver, a display server.
FOREIGN_BYTES = 1 << 30
# An idle process does not allocate; the context of a new one takes hundreds of MiB.
MOVED_BYTES = 64 << 20
# With longer gaps between samples, their shares are not those of the window.
MAX_GAP_SHARE = 0.5
MAX_GAP_S = 1.0
# Beyond: 0xffffffff and the like.
MOST_MHZ = 10_000
MOST_C = 200
SHOWN_PIDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One sample of the device; None where it gives no answer."""

    at_s: float
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    event_reasons: int | None = None  # NVML's bit set, see platforms/nvml.py
    memory_used_bytes: int | None = None  # by all processes
    own_memory_bytes: int | None = None  # ours, up to a constant


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignProcess:
    """Another process on the device during the window."""

    pid: int
    memory_bytes: int | None = None
    busy_share: float | None = None  # of the SMs, over the window; None unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReadings:
    """All readings of one device in one window."""

    begin_s: float
    end_s: float
    samples: tuple[DeviceSample, ...] = ()
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    ecc_uncorrected_before: int | None = None
    ecc_uncorrected_after: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    foreign: tuple[ForeignProcess, ...] = ()
    foreign_memory_bytes: int | None = None  # where pids are hidden: the most memory that was not ours
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """Any text in `invalid`: the run is not judged. Notes are printed below it."""

    invalid: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)  # metrics, by name


def assess(readings: DeviceReadings) -> Validity:
    """Judge all readings; a missing one is noted, and never invalidates."""
    shares = _shares(readings.samples)
    verdicts = [
        _gaps(readings),
        _throttled(readings.samples, shares),
        _configured(readings, shares),
        _processes(readings.foreign),
        _hidden(readings),
        _memory_errors(readings),
        _link(readings),
    ]
    return Validity(
        invalid=tuple(text for invalid, _ in verdicts for text in invalid),
        notes=tuple(text for _, notes in verdicts for text in notes),
        figures=_figures(readings.samples),
    )


_Texts = tuple[Sequence[str], Sequence[str]]  # what invalidates; what is noted
_NOTHING: _Texts = ((), ())


# --- gaps ---------------------------------------------------------------------------------


def _gaps(readings: DeviceReadings) -> _Texts:
    """Note gaps, in which shares of the samples are not those of the window."""
    problems = list(dict.fromkeys(readings.problems))  # each once
    if not readings.samples:
        return (), [f"the device was not sampled: {'; '.join(problems) or 'no sample fell into the window'}"]
    window_s = readings.end_s - readings.begin_s
    marks_s = [readings.begin_s, *sorted(sample.at_s for sample in readings.samples), readings.end_s]
    gap_s = max(right_s - left_s for left_s, right_s in pairwise(marks_s))
    if gap_s > MAX_GAP_SHARE * window_s and gap_s > MAX_GAP_S:
        problems.insert(0, f"for {seconds(gap_s)} of {seconds(window_s)} nothing was sampled")
    if not _reasons(readings.samples):
        problems.append("clock events are not available")
    return (), [f"the device was sampled in part: {'; '.join(problems)}"] if problems else []


def _figures(samples: Sequence[DeviceSample]) -> dict[str, float]:
    """Return the metrics that the samples have."""
    reasons = _reasons(samples)
    found: dict[str, float] = {}
    if sm_mhz := _plausible((sample.sm_mhz for sample in samples), MOST_MHZ):
        found["sm_clock_mhz"] = fmean(sm_mhz)
    if memory_mhz := _plausible((sample.memory_mhz for sample in samples), MOST_MHZ):
        found["memory_clock_mhz"] = fmean(memory_mhz)
    if temperatures_c := _plausible((sample.temperature_c for sample in samples), MOST_C):
        found["temperature_c"] = float(max(temperatures_c))
    if reasons:
        found["power_capped_share"] = _share(reasons, POWER_CAP)
        found["throttled_share"] = _share(reasons, THROTTLES)
    return found


def _plausible(readings: Iterable[int | None], most: int) -> list[int]:
    return [reading for reading in readings if reading is not None and 0 <= reading <= most]


# --- clocks -----------------------------------------------------------------------------------------------


def _reasons(samples: Sequence[DeviceSample]) -> list[int]:
    """Return the bit sets, each with the cause of a slowdown instead of the slowdown."""
    found = [sample.event_reasons for sample in samples if sample.event_reasons is not None]
    # A broken sensor sets all bits at once.
    sane = [each for each in found if each >= 0 and each & KNOWN != KNOWN]
    return [each & ~HW_SLOWDOWN if each & _CAUSES else each for each in sane]


def _share(reasons: Sequence[int], bits: int) -> float:
    return sum(1 for each in reasons if each & bits) / len(reasons)


def _shares(samples: Sequence[DeviceSample]) -> dict[str, float]:
    """Return the share of each reason by its name, the largest first; without idle."""
    reasons = _reasons(samples)
    if not reasons:
        return {}
    shares = {event.name: _share(reasons, event.bit) for event in EVENTS}
    if unknown := reduce(or_, reasons) & ~KNOWN:  # of a newer driver
        shares[f"unknown reason {unknown:#x}"] = _share(reasons, unknown)
    return {name: share for name, share in sorted(shares.items(), key=lambda item: -item[1]) if share}


def _throttled(samples: Sequence[DeviceSample], shares: Mapping[str, float]) -> _Texts:
    """Judge all kinds of throttling together."""
    names = {event.name for event in EVENTS if event.bit & THROTTLES}
    seen = [name for name in shares if name in names]
    if not seen:
        return _NOTHING
    reasons = _reasons(samples)
    share = _share(reasons, THROTTLES)
    text = f"throttled ({' and '.join(seen)}, {_percent(share)} of the window)"
    often = sum(1 for each in reasons if each & THROTTLES) >= THROTTLED_SAMPLES
    return ([text], ()) if often and share >= THROTTLED_SHARE else ((), [text])


def _configured(readings: DeviceReadings, shares: Mapping[str, float]) -> _Texts:
    """Note clocks and limits that were set, and reasons that only a newer driver knows.

    A GPU at its default power limit is as it should be, however often that limit holds its clocks (H200, matrix
    products: always). Board limit and reliability bound a healthy GPU at its highest clocks.
    """
    quiet = {event.name for event in EVENTS if event.bit & (THROTTLES | POWER_CAP)}
    notes = [
        f"{name} ({_percent(share)} of the window)" for name, share in shares.items() if name not in quiet
    ]
    limit_w, default_w = readings.power_limit_w, readings.power_limit_default_w
    if limit_w and default_w and 0 < limit_w < default_w:
        reasons = _reasons(readings.samples)
        held = (
            f", held clocks down in {_percent(_share(reasons, POWER_CAP))} of the window" if reasons else ""
        )
        notes.insert(0, f"power limit {limit_w:.0f} W, default {default_w:.0f} W{held}")
    return (), notes


# --- other processes -----------------------------------------------------------------------------------------------


def _processes(foreign: Sequence[ForeignProcess]) -> _Texts:
    """Judge other processes by their share of the SMs, small ones together; an unknown share is a note."""
    busy = [(process, share) for process in foreign if (share := _busy_share(process))]
    loud = [(process, share) for process, share in busy if share >= BUSY_SHARE]
    together = sum(share for _, share in busy)
    invalid = [
        f"foreign load ({_who([process])}, {_percent(share)} of the SMs{_held([process])})"
        for process, share in loud
    ]
    if not loud and together >= BUSY_SHARE:
        crowd = [process for process, _ in busy]
        invalid = [f"foreign load ({_who(crowd)}, {_percent(together)} of the SMs{_held(crowd)})"]
        loud = busy
    named = [process for process, _ in loud]
    idle = [each for each in foreign if each not in named and _busy_share(each) is not None]
    unknown = [each for each in foreign if _busy_share(each) is None]
    notes = [f"on the device beside us, hardly busy: {_who(idle)}{_held(idle)}"] if idle else []
    notes += [f"on the device beside us, load not known: {_who(unknown)}{_held(unknown)}"] if unknown else []
    return invalid, notes


def _busy_share(process: ForeignProcess) -> float | None:
    share = process.busy_share
    return share if share is not None and 0 <= share <= 1 else None


def _who(processes: Sequence[ForeignProcess]) -> str:
    pids = ", ".join(str(process.pid) for process in processes[:SHOWN_PIDS])
    return f"pid {pids}{', …' if len(processes) > SHOWN_PIDS else ''}"


def _held(processes: Sequence[ForeignProcess]) -> str:
    held = sum(process.memory_bytes for process in processes if process.memory_bytes is not None)
    return f", {gibibytes(held)}" if held > 0 else ""


def _hidden(readings: DeviceReadings) -> _Texts:
    """Judge hidden processes (a container hides their pids) by memory that is not ours.

    Their load cannot be separated from ours; their memory can. An idle process does not allocate. Ours is known up to a
    constant (torch's reserved memory, not its context), so its change decides; where ours is unknown, a warm step is
    assumed to keep what it has. A single outlier is two readings between which we allocated, and is ignored.
    """
    foreign_bytes = readings.foreign_memory_bytes
    if readings.foreign or foreign_bytes is None or foreign_bytes <= FOREIGN_BYTES:
        return _NOTHING
    moved_bytes = _moved_bytes(readings.samples)
    if moved_bytes > MOVED_BYTES:
        moved = f"memory that is not ours moved by {gibibytes(moved_bytes)} during the window"
        return [f"foreign load (processes are hidden here; {moved})"], ()
    whose = "processes are hidden here: others, or our own CUDA context"
    return (), [f"{gibibytes(foreign_bytes)} in use that are not our tensors ({whose})"]


def _moved_bytes(samples: Sequence[DeviceSample]) -> int:
    used = [sample for sample in samples if sample.memory_used_bytes is not None]
    known = [sample for sample in used if sample.own_memory_bytes is not None]
    foreign_bytes = [
        (sample.memory_used_bytes or 0) - (sample.own_memory_bytes or 0) for sample in known or used
    ]
    smooth = [median(foreign_bytes[place : place + 3]) for place in range(len(foreign_bytes) - 2)]
    return int(max(smooth) - min(smooth)) if smooth else 0


# --- the device itself ------------------------------------------------------------------------------------


def _memory_errors(readings: DeviceReadings) -> _Texts:
    before, after = readings.ecc_uncorrected_before, readings.ecc_uncorrected_after
    if before is None or after is None or after == before:
        return _NOTHING
    if after < before:
        return (), [
            f"the count of uncorrected memory errors fell from {before} to {after}: the GPU was reset"
        ]
    return [f"uncorrected memory errors during the window (+{after - before})"], ()


def _link(readings: DeviceReadings) -> _Texts:
    """Note a slow link. An idle link lowers its generation to save power, never its width."""
    idle = next(reversed(_reasons(readings.samples)), 0) & IDLE
    notes = []
    if not idle and _falls_short(readings.pcie_generation, readings.pcie_generation_max):
        notes.append(f"PCIe generation {readings.pcie_generation}, at most {readings.pcie_generation_max}")
    if _falls_short(readings.pcie_width, readings.pcie_width_max):
        notes.append(f"PCIe x{readings.pcie_width}, at most x{readings.pcie_width_max}")
    return (), notes


def _falls_short(now: int | None, most: int | None) -> bool:
    return bool(now and most and 0 < now < most)


def _percent(share: float) -> str:
    """Return `34 %`; a small share is never shown as 0 %."""
    return percent(share, 0) if share == 0 or share >= 0.01 else "under 1 %"
