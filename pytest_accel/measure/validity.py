"""Validity of a measurement, from the state of the device during it.

A run is invalid because of causes that a repeat may not meet: heat, a power brake, foreign load, memory errors. What was
set on purpose or is permanent (clocks, limits) is a note, and the run counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from operator import or_
from statistics import fmean

from pytest_accel.platforms import nvidia
from pytest_accel.stats.quantities import gibibytes, percent, seconds

# Beyond: 0xffffffff and the like.
MOST_MHZ = 10_000
MOST_C = 200
THROTTLES = nvidia.HW_SLOWDOWN | nvidia.SW_THERMAL | nvidia.HW_THERMAL | nvidia.POWER_BRAKE
# Drivers set HW slowdown together with its cause, and for a moment with any change of clocks (nvml.h).
_CAUSES = nvidia.HW_THERMAL | nvidia.POWER_BRAKE
# Of the samples. HW slowdown halves the clocks: in 5 % of the window it costs 2.5 % and more, half the default
# tolerance. A single sample of it is never a reason to measure again.
THROTTLED_SHARE = 0.05
THROTTLED_SAMPLES = 2
LOCKED_SAMPLES = 5
# Of the SMs: 5 % is the default tolerance. A monitoring agent takes less.
BUSY_SHARE = 0.05
# With longer gaps between samples, their shares are not those of the window.
MAX_GAP_SHARE = 0.5
MAX_GAP_S = 1.0
SHOWN_PIDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One sample of the device; None where it gives no answer."""

    at_s: float
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    event_reasons: int | None = None  # NVML's bit set, see platforms/nvidia.py


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignProcess:
    pid: int
    memory_bytes: int | None = None
    busy_share: float | None = None  # of the SMs, over the window; None unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReadings:
    begin_s: float
    end_s: float
    samples: tuple[DeviceSample, ...] = ()
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    ecc_uncorrected_before: int | None = None
    ecc_uncorrected_after: int | None = None
    sm_mhz_max: int | None = None
    foreign: tuple[ForeignProcess, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """Any text in `invalid`: the run is not judged. Notes are printed below it."""

    invalid: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)  # metrics, by name
    no_energy: str = ""  # why its energy is unknown


Finding = tuple[bool, str]  # whether it invalidates the run; otherwise it is noted


def assess(readings: DeviceReadings) -> Validity:
    """Judge all readings; a missing one is noted, and never invalidates."""
    reasons = _reasons(readings.samples)
    found = [
        *_gaps(readings, reasons),
        *_clocks(readings, reasons),
        *_processes(readings.foreign),
        *_memory(readings),
    ]
    return Validity(
        invalid=tuple(text for invalid, text in found if invalid),
        notes=tuple(text for invalid, text in found if not invalid),
        figures=_figures(readings, reasons),
    )


def _figures(readings: DeviceReadings, reasons: Sequence[int]) -> dict[str, float]:
    samples = readings.samples
    sm_mhz = _plausible((sample.sm_mhz for sample in samples), MOST_MHZ)
    memory_mhz = _plausible((sample.memory_mhz for sample in samples), MOST_MHZ)
    temperatures_c = _plausible((sample.temperature_c for sample in samples), MOST_C)
    found = {"sm_clock_mhz": fmean(sm_mhz)} if sm_mhz else {}
    found |= {"memory_clock_mhz": fmean(memory_mhz)} if memory_mhz else {}
    found |= {"temperature_c": float(max(temperatures_c))} if temperatures_c else {}
    if reasons:
        found["power_capped_share"] = _share(reasons, nvidia.POWER_CAP)
        found["throttled_share"] = _share(reasons, THROTTLES)
        # That the samples never left though nothing held it down; NVML does not report a lock itself.
        if len(sm_mhz) >= LOCKED_SAMPLES and nvidia.is_held(sm_mhz, reasons, readings.sm_mhz_max):
            found["locked_clock_mhz"] = fmean(sm_mhz)
    return found


def _plausible(readings: Iterable[int | None], most: int) -> list[int]:
    return [reading for reading in readings if reading is not None and 0 <= reading <= most]


def _gaps(readings: DeviceReadings, reasons: Sequence[int]) -> Iterator[Finding]:
    """Note gaps, in which shares of the samples are not those of the window."""
    problems = list(dict.fromkeys(readings.problems))  # each once
    if not readings.samples:
        yield False, f"the device was not sampled: {'; '.join(problems) or 'no sample fell into the window'}"
        return
    window_s = readings.end_s - readings.begin_s
    marks_s = [readings.begin_s, *sorted(sample.at_s for sample in readings.samples), readings.end_s]
    gap_s = max(right_s - left_s for left_s, right_s in pairwise(marks_s))
    if gap_s > MAX_GAP_SHARE * window_s and gap_s > MAX_GAP_S:
        problems.insert(0, f"for {seconds(gap_s)} of {seconds(window_s)} nothing was sampled")
    if not reasons:
        problems.append("clock events are not available")
    if problems:
        yield False, f"the device was sampled in part: {'; '.join(problems)}"


def _reasons(samples: Sequence[DeviceSample]) -> list[int]:
    """Return the bit sets, each with the cause of a slowdown instead of the slowdown."""
    found = [sample.event_reasons for sample in samples if sample.event_reasons is not None]
    # A broken sensor sets all bits at once.
    sane = [each for each in found if each >= 0 and each & nvidia.KNOWN != nvidia.KNOWN]
    return [each & ~nvidia.HW_SLOWDOWN if each & _CAUSES else each for each in sane]


def _share(reasons: Sequence[int], bits: int) -> float:
    return sum(1 for each in reasons if each & bits) / len(reasons)


def _clocks(readings: DeviceReadings, reasons: Sequence[int]) -> Iterator[Finding]:
    """Judge all kinds of throttling together; note clocks and limits that were set, and reasons of a newer driver.

    A GPU at its default power limit is as it should be, however often that limit holds its clocks (H200, matrix
    products: always). Board limit and reliability bound a healthy GPU at its highest clocks.
    """
    events = nvidia.EVENTS if reasons else ()
    shares = {event.name: (_share(reasons, event.bit), event.bit) for event in events}
    if unknown := reduce(or_, reasons, 0) & ~nvidia.KNOWN:
        shares[f"unknown reason {unknown:#x}"] = _share(reasons, unknown), unknown
    seen = sorted(((name, *each) for name, each in shares.items() if each[0]), key=lambda each: -each[1])
    if throttles := [name for name, _, bit in seen if bit & THROTTLES]:
        share = _share(reasons, THROTTLES)
        often = (
            sum(1 for each in reasons if each & THROTTLES) >= THROTTLED_SAMPLES and share >= THROTTLED_SHARE
        )
        yield often, f"throttled ({' and '.join(throttles)}, {_percent(share)} of the window)"
    limit_w, default_w = readings.power_limit_w, readings.power_limit_default_w
    if limit_w and default_w and limit_w < default_w:
        capped = _percent(_share(reasons, nvidia.POWER_CAP)) if reasons else ""
        held = f", held clocks down in {capped} of the window" if capped else ""
        yield False, f"power limit {limit_w:.0f} W, default {default_w:.0f} W{held}"
    for name, share, bit in seen:
        if not bit & (THROTTLES | nvidia.POWER_CAP):
            yield False, f"{name} ({_percent(share)} of the window)"


def _processes(foreign: Sequence[ForeignProcess]) -> Iterator[Finding]:
    """Judge other processes by their share of the SMs together; an unknown share is a note."""
    shares = {each.pid: each.busy_share for each in foreign if each.busy_share is not None}
    busy = sorted((each for each in foreign if shares.get(each.pid)), key=lambda each: -shares[each.pid])
    load = sum(shares.values())
    if load >= BUSY_SHARE:
        yield True, f"foreign load ({_who(busy)}, {_percent(load)} of the SMs{_held(busy)})"
    idle = [each for each in foreign if each.pid in shares and (each not in busy or load < BUSY_SHARE)]
    unknown = [each for each in foreign if each.pid not in shares]
    for what, group in (("hardly busy", idle), ("load not known", unknown)):
        if group:
            yield False, f"on the device beside us, {what}: {_who(group)}{_held(group)}"


def _who(processes: Sequence[ForeignProcess]) -> str:
    pids = ", ".join(str(process.pid) for process in processes[:SHOWN_PIDS])
    return f"pid {pids}{', …' if len(processes) > SHOWN_PIDS else ''}"


def _held(processes: Sequence[ForeignProcess]) -> str:
    held = sum(process.memory_bytes or 0 for process in processes)
    return f", {gibibytes(held)}" if held > 0 else ""


def _memory(readings: DeviceReadings) -> Iterator[Finding]:
    before, after = readings.ecc_uncorrected_before, readings.ecc_uncorrected_after
    if before is not None and after is not None and after > before:
        yield True, f"uncorrected memory errors during the window (+{after - before})"


def _percent(share: float) -> str:
    """Return `34 %`; a small share is never shown as 0 %."""
    return percent(share, 0) if share == 0 or share >= 0.01 else "under 1 %"
