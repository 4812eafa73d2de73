"""Whether one window was a fair measurement: what was seen of the device, judged.

What invalidates is what a run cannot be blamed for and a repetition may not meet: heat, a brake, somebody else's load,
broken memory. What was set on purpose or stands for good (clocks, limits, links) is noted, and the run counts.
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
# Drivers set HW slowdown beside what caused it, and for a moment with any change of clocks (nvml.h).
_CAUSES = HW_THERMAL | POWER_BRAKE
# Of the samples. HW slowdown halves the clocks: in 5 % of the window it costs 2.5 % and more, half the default
# tolerance. One sample of a change of clocks is no reason to measure again, in a short window where it is a large
# share of few neither.
THROTTLED_SHARE = 0.05
THROTTLED_SAMPLES = 2
# Of the SMs. What others take is missing here: 5 % is the default tolerance. A monitoring agent takes less.
BUSY_SHARE = 0.05
# Below: the CUDA context of our own process, hundreds of MiB that are not known apart; a driver, a display server.
FOREIGN_BYTES = 1 << 30
# An idle process does not allocate, and the context of one that begins takes hundreds of MiB.
MOVED_BYTES = 64 << 20
# Unwatched for more of the window, and longer than any period of sampling, shares of the samples are not the window's.
UNWATCHED_SHARE = 0.5
UNWATCHED_S = 1.0
# Beyond: 0xffffffff and the like.
MOST_MHZ = 10_000
MOST_C = 200
SHOWN_PIDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One look at the device; None where it does not say."""

    at_s: float
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    utilisation_percent: int | None = None
    event_reasons: int | None = None  # NVML's bit set, see core/clock_events.py
    memory_used_bytes: int | None = None  # by everybody
    own_memory_bytes: int | None = None  # of that, ours, right up to a constant


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignProcess:
    """Somebody else on the device during the window."""

    pid: int
    memory_bytes: int | None = None
    busy_share: float | None = None  # of the SMs, over the window; None unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReadings:
    """All that was seen of one device in one window."""

    device: str
    begin_s: float
    end_s: float
    samples: tuple[DeviceSample, ...] = ()
    sm_max_mhz: int | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    ecc_uncorrected_before: int | None = None
    ecc_uncorrected_after: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    foreign: tuple[ForeignProcess, ...] = ()
    foreign_memory_bytes: int | None = None  # where pids are hidden: the most that was not known as ours
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """What that means: any `invalid` and the run is not judged; notes are shown beside it."""

    invalid: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)  # of the samples, by reason word
    figures: Mapping[str, float] = field(default_factory=dict)  # metrics, by name


def assess(watch: DeviceReadings) -> Fairness:
    """Everything that was seen, weighed; what was not seen is said, and never invalidates."""
    shares = _shares(watch.samples)
    verdicts = [
        _watched(watch),
        _throttled(watch.samples, shares),
        _asked_for(watch, shares),
        _processes(watch.foreign),
        _hidden(watch),
        _memory_errors(watch),
        _link(watch),
    ]
    return Fairness(
        invalid=tuple(text for invalid, _ in verdicts for text in invalid),
        notes=tuple(text for _, notes in verdicts for text in notes),
        shares=shares,
        figures=_figures(watch.samples),
    )


_Texts = tuple[Sequence[str], Sequence[str]]  # what invalidates; what is noted
_NOTHING: _Texts = ((), ())


# --- what was seen at all ---------------------------------------------------------------------------------


def _watched(watch: DeviceReadings) -> _Texts:
    """Gaps are told, or shares of the samples would pass for shares of the window."""
    problems = list(dict.fromkeys(watch.problems))
    if not watch.samples:
        return (), [f"health was not watched: {'; '.join(problems) or 'no sample fell into the window'}"]
    window_s = watch.end_s - watch.begin_s
    marks_s = [watch.begin_s, *sorted(sample.at_s for sample in watch.samples), watch.end_s]
    unwatched_s = max(right_s - left_s for left_s, right_s in pairwise(marks_s))
    if unwatched_s > UNWATCHED_SHARE * window_s and unwatched_s > UNWATCHED_S:
        problems.insert(0, f"for {seconds(unwatched_s)} of {seconds(window_s)} nothing was sampled")
    if not _reasons(watch.samples):
        problems.append("clock events are not told here")
    return (), [f"health was watched in part: {'; '.join(problems)}"] if problems else []


def _figures(samples: Sequence[DeviceSample]) -> dict[str, float]:
    """The metrics; one that no sample has is left out."""
    reasons = _reasons(samples)
    found: dict[str, float] = {}
    if sm_mhz := _told((sample.sm_mhz for sample in samples), MOST_MHZ):
        found["sm_clock_mhz"] = fmean(sm_mhz)
    if memory_mhz := _told((sample.memory_mhz for sample in samples), MOST_MHZ):
        found["memory_clock_mhz"] = fmean(memory_mhz)
    if temperatures_c := _told((sample.temperature_c for sample in samples), MOST_C):
        found["temperature_c"] = float(max(temperatures_c))
    if reasons:
        found["power_capped_share"] = _share(reasons, POWER_CAP)
        found["throttled_share"] = _share(reasons, THROTTLES)
    return found


def _told(readings: Iterable[int | None], most: int) -> list[int]:
    return [reading for reading in readings if reading is not None and 0 <= reading <= most]


# --- clocks -----------------------------------------------------------------------------------------------


def _reasons(samples: Sequence[DeviceSample]) -> list[int]:
    """The bit sets that were told, each with the cause of a slowdown and not the slowdown besides."""
    told = [sample.event_reasons for sample in samples if sample.event_reasons is not None]
    # All bits at once, idle among them, is what a broken sensor says.
    sane = [each for each in told if each >= 0 and each & KNOWN != KNOWN]
    return [each & ~HW_SLOWDOWN if each & _CAUSES else each for each in sane]


def _share(reasons: Sequence[int], bits: int) -> float:
    return sum(1 for each in reasons if each & bits) / len(reasons)


def _shares(samples: Sequence[DeviceSample]) -> dict[str, float]:
    """By the name of each reason that was seen, the largest first. Idle is none."""
    reasons = _reasons(samples)
    if not reasons:
        return {}
    shares = {event.name: _share(reasons, event.bit) for event in EVENTS}
    if unknown := reduce(or_, reasons) & ~KNOWN:  # of a newer driver
        shares[f"unknown reason {unknown:#x}"] = _share(reasons, unknown)
    return {name: share for name, share in sorted(shares.items(), key=lambda item: -item[1]) if share}


def _throttled(samples: Sequence[DeviceSample], shares: Mapping[str, float]) -> _Texts:
    """All throttling together decides: heat that shows now as software's and now as hardware's is one heat."""
    names = {event.name for event in EVENTS if event.bit & THROTTLES}
    seen = [name for name in shares if name in names]
    if not seen:
        return _NOTHING
    reasons = _reasons(samples)
    share = _share(reasons, THROTTLES)
    text = f"throttled ({' and '.join(seen)}, {_percent(share)} of the window)"
    often = sum(1 for each in reasons if each & THROTTLES) >= THROTTLED_SAMPLES
    return ([text], ()) if often and share >= THROTTLED_SHARE else ((), [text])


def _asked_for(watch: DeviceReadings, shares: Mapping[str, float]) -> _Texts:
    """Clocks and limits that somebody set, and what a newer driver calls by bits of its own.

    A GPU at its default power limit is as it should be, however often that limit holds its clocks (H200, matrix
    products: always). Board limit and reliability bound a healthy GPU at its highest clocks.
    """
    quiet = {event.name for event in EVENTS if event.bit & (THROTTLES | POWER_CAP)}
    notes = [
        f"{name} ({_percent(share)} of the window)" for name, share in shares.items() if name not in quiet
    ]
    limit_w, default_w = watch.power_limit_w, watch.power_limit_default_w
    if limit_w and default_w and 0 < limit_w < default_w:
        reasons = _reasons(watch.samples)
        held = (
            f", held clocks down in {_percent(_share(reasons, POWER_CAP))} of the window" if reasons else ""
        )
        notes.insert(0, f"power limit {limit_w:.0f} W, default {default_w:.0f} W{held}")
    return (), notes


# --- others -----------------------------------------------------------------------------------------------


def _processes(foreign: Sequence[ForeignProcess]) -> _Texts:
    """By their share of the SMs; small ones add up. A process whose share nobody knows is noted, not accused."""
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
    accused = [process for process, _ in loud]
    idle = [each for each in foreign if each not in accused and _busy_share(each) is not None]
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


def _hidden(watch: DeviceReadings) -> _Texts:
    """Others that show in memory alone, because a container hides their pids.

    Their load cannot be told from ours. Their memory can: what is in use less what is ours, and an idle process does
    not allocate. Ours is known up to a constant (torch's reserved memory, not its context), so that it is the
    movement that decides; where ours is not known, a settled step is taken to keep what it has. One sample that
    stands out is two readings between which we allocated ourselves, and is passed over.
    """
    foreign_bytes = watch.foreign_memory_bytes
    if watch.foreign or foreign_bytes is None or foreign_bytes <= FOREIGN_BYTES:
        return _NOTHING
    moved_bytes = _moved_bytes(watch.samples)
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


def _memory_errors(watch: DeviceReadings) -> _Texts:
    before, after = watch.ecc_uncorrected_before, watch.ecc_uncorrected_after
    if before is None or after is None or after == before:
        return _NOTHING
    if after < before:
        return (), [
            f"the count of uncorrected memory errors fell from {before} to {after}: the GPU was reset"
        ]
    return [f"uncorrected memory errors during the window (+{after - before})"], ()


def _link(watch: DeviceReadings) -> _Texts:
    """A link that has nothing to carry saves power by its generation, never by its width."""
    idle = next(reversed(_reasons(watch.samples)), 0) & IDLE
    notes = []
    if not idle and _falls_short(watch.pcie_generation, watch.pcie_generation_max):
        notes.append(f"PCIe generation {watch.pcie_generation}, at most {watch.pcie_generation_max}")
    if _falls_short(watch.pcie_width, watch.pcie_width_max):
        notes.append(f"PCIe x{watch.pcie_width}, at most x{watch.pcie_width_max}")
    return (), notes


def _falls_short(now: int | None, most: int | None) -> bool:
    return bool(now and most and 0 < now < most)


def _percent(share: float) -> str:
    """`34 %`; what was seen at all is not shown as nothing."""
    return percent(share, 0) if share == 0 or share >= 0.01 else "under 1 %"
