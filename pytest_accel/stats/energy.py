"""Energy of a window from counters and power samples; absent with a reason where it cannot be right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Literal

from pytest_accel.stats.quantities import seconds

Scope = Literal["device", "node"]

J_PER_WH = 3600.0
# More than any device or node draws: a sensor that answers 0xffffffff mW, or a counter that jumps, is not believed.
MOST_W = 100_000.0
# How long a rail may go unseen before its samples' integral is a guess: this share of the window, or, so that one
# lost reading does not cost a short window its figure, this many times the usual time between its samples.
UNSEEN_SHARE = 0.1
UNSEEN_SAMPLES = 3
# One sample in a window: shorter than the period of sampling (some times a second), or else starved of samples.
LONE_SAMPLE_S = 0.25
# How far a counter may be from its samples. Counters tick, every 100 ms the slowest, so that each end of the window
# may lack a tick or have one too many; power that is averaged makes tens of percent in a window of a second. A reset
# that is taken for a wrap, or a counter of another unit, makes anything.
TICK_S = 0.1
DOUBT_FACTOR = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rail:
    """One place where power is measured."""

    name: str
    scope: Scope
    kind: str = ""  # gpu, cpu, module, grace, sysio, dram, ipu
    within: str = ""  # name of the rail that contains it: never added to it
    wraps_j: float | None = None  # where its counter begins again at 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSample:
    """Power at one moment, by rail; one that did not answer then is missing."""

    at_s: float
    power_w: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyWindow:
    """All that was read of the rails in one window: counters at its ends, samples between them."""

    begin_s: float
    end_s: float
    before_j: Mapping[str, float] = field(default_factory=dict)  # counters, by rail
    after_j: Mapping[str, float] = field(default_factory=dict)
    samples: tuple[PowerSample, ...] = ()
    rails: tuple[Rail, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """By rail; a rail without a trustworthy figure is missing, and `problems` says why."""

    energy_j: Mapping[str, float] = field(default_factory=dict)  # by its counter, else by its samples
    sampled_j: Mapping[str, float] = field(default_factory=dict)  # the samples' integral, as a cross-check
    mean_w: Mapping[str, float] = field(default_factory=dict)
    peak_w: Mapping[str, float] = field(default_factory=dict)  # of the samples
    problems: tuple[str, ...] = ()


def counted_j(before_j: float, after_j: float, wraps_j: float | None = None) -> float | None:
    """Return the counter's difference, never negative; None where it went backwards without a known wrap.

    A counter that began again twice in a window looks as if it had done so once, and one that was reset as if it had
    begun again: `energy_of` holds both against the samples, and without samples they cannot be told apart.
    """
    most_j = math.inf if wraps_j is None else wraps_j
    if not all(math.isfinite(count_j) and 0 <= count_j <= most_j for count_j in (before_j, after_j)):
        return None
    if after_j >= before_j:
        return after_j - before_j
    return (wraps_j - before_j) + after_j if wraps_j is not None and wraps_j < math.inf else None


def sampled_j(
    times_s: Sequence[float], powers_w: Sequence[float], begin_s: float, end_s: float
) -> float | None:
    """Return the integral of power that runs straight from sample to sample, held before the first and after the last.

    Samples outside the window count where their lines reach into it. So the integrals of two adjacent windows add up
    to that of their union, over the same samples or where each has the one at the boundary.
    None with no sample, for garbage, and for times out of order.
    """
    if not times_s or len(times_s) != len(powers_w) or not all(map(_is_power, powers_w)):
        return None
    if not (_in_order(times_s) and _in_order([begin_s, end_s])):
        return None
    samples = list(zip(times_s, powers_w, strict=True))
    lines = [
        ((-math.inf, powers_w[0]), samples[0]),
        *pairwise(samples),
        (samples[-1], (math.inf, powers_w[-1])),
    ]
    return math.fsum(_line_j(left, right, begin_s, end_s) for left, right in lines)


def _line_j(left: tuple[float, float], right: tuple[float, float], begin_s: float, end_s: float) -> float:
    """Return the energy under one straight line, inside the window."""
    (left_s, left_w), (right_s, right_w) = left, right
    from_s, to_s = max(left_s, begin_s), min(right_s, end_s)
    if to_s <= from_s:
        return 0.0
    if left_w == right_w:  # the held ends too, which have no length to divide by
        return left_w * (to_s - from_s)
    middle = min(1.0, ((from_s - left_s) + (to_s - left_s)) / 2 / (right_s - left_s))
    return (left_w * (1 - middle) + right_w * middle) * (to_s - from_s)


def energy_of(window: EnergyWindow) -> Energy:
    """Return the energy of each rail from its counter where that is plausible, else from its samples; a reason where neither is."""
    problems = list(dict.fromkeys(window.problems))  # rails of one source tell the same
    window_s = window.end_s - window.begin_s
    if not 0 < window_s < math.inf:
        problems.append(
            f"no energy: the window from {window.begin_s!r} s to {window.end_s!r} s has no length"
        )
        return Energy(problems=tuple(problems))
    energies_j: dict[str, float] = {}
    integrals_j: dict[str, float] = {}
    peaks_w: dict[str, float] = {}
    for rail in {rail.name: rail for rail in window.rails}.values():
        series = [
            (sample.at_s, sample.power_w[rail.name])
            for sample in window.samples
            if rail.name in sample.power_w
        ]
        integral_j, no_integral = _integrated(series, window)
        count_j, no_count = _counted(rail, window, integral_j)
        if count_j and integral_j == 0:
            integral_j, no_integral = None, "its samples say 0 W though its counter moved"
        if integral_j is not None:
            integrals_j[rail.name] = integral_j
            inside_w = [power_w for at_s, power_w in series if window.begin_s <= at_s <= window.end_s]
            peaks_w |= {rail.name: max(inside_w)} if inside_w else {}
            no_count += "; its energy is that of its samples" if no_count else ""
        best_j = integral_j if count_j is None else count_j
        if best_j is not None:
            energies_j[rail.name] = best_j
        elif not (no_count or no_integral):
            no_count = "neither a counter nor samples of its power"
        problems += [f"{rail.name}: {problem}" for problem in (no_count, no_integral) if problem]
    return Energy(
        energy_j=energies_j,
        sampled_j=integrals_j,
        mean_w={name: energy_j / window_s for name, energy_j in energies_j.items()},
        peak_w=peaks_w,
        problems=tuple(problems),
    )


def _counted(rail: Rail, window: EnergyWindow, integral_j: float | None) -> tuple[float | None, str]:
    """Return the energy by a rail's counter, or why not; neither for a rail without one."""
    before_j, after_j = window.before_j.get(rail.name), window.after_j.get(rail.name)
    if before_j is None and after_j is None:
        return None, ""
    if before_j is None or after_j is None:
        end = "beginning" if before_j is None else "end"
        return None, f"its counter did not answer at the {end} of the window"
    energy_j, window_s = counted_j(before_j, after_j, rail.wraps_j), window.end_s - window.begin_s
    doubt = ""
    if energy_j is None:
        wrap = "" if rail.wraps_j is None else f", and begins again at {rail.wraps_j:.12g} J"
        doubt = f"{wrap}: it was reset, or is broken"
    elif energy_j > MOST_W * window_s:
        doubt = ": no device draws that much"
    elif integral_j is not None and energy_j == 0 < integral_j:
        doubt = f": it stood still, and its samples make {integral_j:.4g} J"
    elif integral_j is not None and not _alike(energy_j, integral_j, rail, window_s):
        why = "counts something else than joules" if rail.wraps_j is None else "began again more than once"
        doubt = f", and its samples make {integral_j:.4g} J: it was reset, or {why}"
    if doubt:
        return (
            None,
            f"its counter went from {before_j:.12g} J to {after_j:.12g} J in {seconds(window_s)}{doubt}",
        )
    return energy_j, ""


def _alike(count_j: float, integral_j: float, rail: Rail, window_s: float) -> bool:
    """Return whether the samples bear the counter out, and how often one that wraps seems to have begun again.

    Samples of 0 W bear nothing out: a device that counts is on.
    """
    if integral_j == 0:
        return True
    ticks_j = integral_j / window_s * 2 * TICK_S
    if not integral_j / DOUBT_FACTOR - ticks_j <= count_j <= integral_j * DOUBT_FACTOR + ticks_j:
        return False
    return rail.wraps_j is None or abs(count_j - integral_j) <= rail.wraps_j / 2


def _integrated(series: Sequence[tuple[float, float]], window: EnergyWindow) -> tuple[float | None, str]:
    """Return the energy by a rail's samples, or why not; neither where there are none."""
    if not series:
        return None, ""
    times_s, powers_w = [at_s for at_s, _ in series], [power_w for _, power_w in series]
    for power_w in powers_w:
        if not _is_power(power_w):
            return None, f"a sample of its power says {power_w!r} W"
    if not _in_order(times_s):
        return None, "the samples of its power are out of order"
    window_s = window.end_s - window.begin_s
    usual_s = LONE_SAMPLE_S / UNSEEN_SAMPLES
    if len(times_s) > 1:
        usual_s = median(right_s - left_s for left_s, right_s in pairwise(times_s))
    inside_s = [min(max(at_s, window.begin_s), window.end_s) for at_s in times_s]
    unseen_s = max(
        right_s - left_s for left_s, right_s in pairwise([window.begin_s, *inside_s, window.end_s])
    )
    if unseen_s > max(UNSEEN_SHARE * window_s, UNSEEN_SAMPLES * usual_s):
        return None, f"its power was not seen for {seconds(unseen_s)} of {seconds(window_s)}"
    return sampled_j(times_s, powers_w, window.begin_s, window.end_s), ""


def _is_power(power_w: float) -> bool:
    return 0 <= power_w <= MOST_W  # NaN is neither


def _in_order(times_s: Sequence[float]) -> bool:
    """Return whether times do not decrease: two samples may share a tick of the clock."""
    return all(map(math.isfinite, times_s)) and all(
        left_s <= right_s for left_s, right_s in pairwise(times_s)
    )


def total_j(energy: Energy, rails: Sequence[Rail], *, scope: Scope) -> float | None:
    """Return the sum over the rails of a scope; a rail inside another one is left out.

    None where a rail that belongs to the sum has no energy: a node whose third GPU went silent did not use less.
    """
    parts_j = [energy.energy_j.get(name) for name in _outermost(rails, scope)]
    known_j = [part_j for part_j in parts_j if part_j is not None]
    return math.fsum(known_j) if known_j and len(known_j) == len(parts_j) else None


def peak_total_w(window: EnergyWindow, *, scope: Scope) -> float | None:
    """Return the most that the rails of that scope drew in one moment, each watt once; None where no sample has them all.

    Their peaks added up would be more than was ever drawn, and the peak of one of them less.
    """
    names = _outermost(window.rails, scope)
    if not names:
        return None
    together_w = [
        [sample.power_w[name] for name in names]
        for sample in window.samples
        if window.begin_s <= sample.at_s <= window.end_s and all(name in sample.power_w for name in names)
    ]
    return max((math.fsum(each) for each in together_w if all(map(_is_power, each))), default=None)


def _outermost(rails: Sequence[Rail], scope: Scope) -> list[str]:
    """Return those of that scope that lie in no other of it."""
    known = {rail.name: rail for rail in rails}
    return [rail.name for rail in known.values() if rail.scope == scope and not _is_contained(rail, known)]


def _is_contained(rail: Rail, known: Mapping[str, Rail]) -> bool:
    """In another rail of its scope, at whatever remove. Of rails in a circle none is outside, and nothing is added."""
    seen: set[str] = set()
    outer = known.get(rail.within)
    while outer is not None and outer.name not in seen:
        if outer.scope == rail.scope:
            return True
        seen.add(outer.name)
        outer = known.get(outer.within)
    return False


def joules_per_unit(step_j: float, work_per_step: float) -> float:
    return step_j / work_per_step


def units_per_wh(step_j: float, work_per_step: float) -> float:
    """Return the units of work that a watt-hour buys."""
    return work_per_step * J_PER_WH / step_j


def wh_per_epoch(step_j: float, epoch_size: float, work_per_step: float) -> float:
    return step_j * epoch_size / work_per_step / J_PER_WH


def tdp_share(mean_w: float, tdp_w: float | None) -> float | None:
    """Return the share of the thermal design power; None where that is unknown."""
    return mean_w / tdp_w if tdp_w else None
