"""Energy of a window from counters and power samples; absent with a reason where it cannot be right."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Literal, TypeAlias

from pytest_accel.stats.quantities import seconds

Scope = Literal["device", "node"]
Series: TypeAlias = Sequence[tuple[float, float]]  # times in seconds, powers in watts

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
# may lack a tick or have one too many; power that is averaged makes tens of percent in a window of a second. A
# counter that was reset or has another unit makes anything.
TICK_S = 0.1
DOUBT_FACTOR = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rail:
    name: str
    scope: Scope
    kind: str = ""  # gpu, cpu, module, grace, sysio, dram, ipu
    within: str = ""  # name of the rail that contains it: never added to it


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSample:
    """Power at one moment, by rail; one that did not answer then is missing."""

    at_s: float
    power_w: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyWindow:
    """All that was read of the rails in one window: counters at its ends, samples between them, in their order."""

    begin_s: float
    end_s: float
    before_j: Mapping[str, float] = field(default_factory=dict)  # counters, by rail
    after_j: Mapping[str, float] = field(default_factory=dict)
    samples: tuple[PowerSample, ...] = ()
    rails: tuple[Rail, ...] = ()

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """By rail; a rail without a trustworthy figure is missing, and `problems` says why."""

    energy_j: Mapping[str, float] = field(default_factory=dict)  # by its counter, else by its samples
    sampled_j: Mapping[str, float] = field(default_factory=dict)  # the samples' integral, as a cross-check
    peak_w: Mapping[str, float] = field(default_factory=dict)  # of the samples
    problems: tuple[str, ...] = ()


def energy_of(window: EnergyWindow) -> Energy:
    """Return the energy of each rail from its counter where that is plausible, else from its samples."""
    energies_j: dict[str, float] = {}
    integrals_j: dict[str, float] = {}
    peaks_w: dict[str, float] = {}
    problems: list[str] = []
    for name in dict.fromkeys(rail.name for rail in window.rails):
        series = [(sample.at_s, sample.power_w[name]) for sample in window.samples if name in sample.power_w]
        integral_j, no_integral = _integrated(series, window)
        count_j, no_count = _counted(name, window, integral_j)
        if count_j and integral_j == 0:
            integral_j, no_integral = None, "its samples say 0 W though its counter moved"
        if integral_j is not None:
            integrals_j[name] = integral_j
            inside_w = [power_w for at_s, power_w in series if window.begin_s <= at_s <= window.end_s]
            peaks_w |= {name: max(inside_w)} if inside_w else {}
        best_j = integral_j if count_j is None else count_j
        if best_j is not None:
            energies_j[name] = best_j
        elif not (no_count or no_integral):
            no_count = "neither a counter nor samples of its power"
        problems += [f"{name}: {problem}" for problem in (no_count, no_integral) if problem]
    return Energy(energy_j=energies_j, sampled_j=integrals_j, peak_w=peaks_w, problems=tuple(problems))


def _counted(rail: str, window: EnergyWindow, integral_j: float | None) -> tuple[float | None, str]:
    """Return the energy by a rail's counter, or why not; neither for a rail without one."""
    before_j, after_j = window.before_j.get(rail), window.after_j.get(rail)
    if before_j is None and after_j is None:
        return None, ""
    if before_j is None or after_j is None:
        return None, "its counter did not answer at both ends of the window"
    energy_j = after_j - before_j
    is_plausible = before_j >= 0 and 0 <= energy_j <= MOST_W * window.length_s
    if integral_j:
        ticks_j = integral_j / window.length_s * 2 * TICK_S
        least_j, most_j = integral_j / DOUBT_FACTOR - ticks_j, integral_j * DOUBT_FACTOR + ticks_j
        is_plausible = is_plausible and energy_j > 0 and least_j <= energy_j <= most_j
    if is_plausible:
        return energy_j, ""
    return None, (
        f"its counter went from {before_j:.12g} J to {after_j:.12g} J in {seconds(window.length_s)}, which is not plausible: it was "
        "reset, is broken, or counts something else"
    )


def _integrated(series: Series, window: EnergyWindow) -> tuple[float | None, str]:
    """Return the energy by a rail's samples, or why not; neither where there are none."""
    if not series:
        return None, ""
    times_s = [at_s for at_s, _ in series]
    gaps_s = [right_s - left_s for left_s, right_s in pairwise(times_s)]
    usual_s = median(gaps_s) if gaps_s else LONE_SAMPLE_S / UNSEEN_SAMPLES
    inside_s = [min(max(at_s, window.begin_s), window.end_s) for at_s in times_s]
    moments_s = [window.begin_s, *inside_s, window.end_s]
    unseen_s = max(right_s - left_s for left_s, right_s in pairwise(moments_s))
    if unseen_s > max(UNSEEN_SHARE * window.length_s, UNSEEN_SAMPLES * usual_s):
        return None, f"its power was not seen for {seconds(unseen_s)} of {seconds(window.length_s)}"
    return sampled_j(series, window.begin_s, window.end_s), ""


def sampled_j(series: Series, begin_s: float, end_s: float) -> float:
    """Return the integral of power that runs straight from sample to sample, held before the first and after the last.

    Samples outside the window count where their lines reach into it, so that adjacent windows add up.
    """
    inside = [(at_s, power_w) for at_s, power_w in series if begin_s <= at_s <= end_s]
    points = [(begin_s, _power_at(series, begin_s)), *inside, (end_s, _power_at(series, end_s))]
    return math.fsum((right[0] - left[0]) * (left[1] + right[1]) / 2 for left, right in pairwise(points))


def _power_at(series: Series, at_s: float) -> float:
    place = bisect_right(series, at_s, key=lambda sample: sample[0])
    if place in (0, len(series)):
        return series[min(place, len(series) - 1)][1]
    (left_s, left_w), (right_s, right_w) = series[place - 1], series[place]
    share = (at_s - left_s) / (right_s - left_s)
    return left_w * (1 - share) + right_w * share


def total_j(energies_j: Mapping[str, float], rails: Sequence[Rail], *, scope: Scope) -> float | None:
    """Return the sum over the rails of a scope; a rail inside another one is left out.

    None where a rail that belongs to the sum has no energy: a node whose third GPU went silent did not use less.
    """
    of_scope = {rail.name: rail.within for rail in rails if rail.scope == scope}
    names = [name for name, within in of_scope.items() if within not in of_scope]
    if not names or any(name not in energies_j for name in names):
        return None
    return math.fsum(energies_j[name] for name in names)


def units_per_wh(step_j: float, work_per_step: float) -> float:
    return work_per_step * J_PER_WH / step_j


def wh_per_epoch(step_j: float, epoch_size: float, work_per_step: float) -> float:
    return step_j * epoch_size / work_per_step / J_PER_WH
