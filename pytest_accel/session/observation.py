"""Readings beside the timed rounds: energy and power, clocks and temperature, other processes on the device."""

from __future__ import annotations

import os
import platform as host
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

import pytest

from pytest_accel.distributed.processes import ancestry, descendants
from pytest_accel.measure.monitor import MONITORS, AmdMonitor, NvmlMonitor, SamplingThread
from pytest_accel.measure.rounds import Ranks
from pytest_accel.measure.validity import Validity, assess
from pytest_accel.platforms.catalogue import DetectedDevice
from pytest_accel.power.find import from_hook, open_sources, problems
from pytest_accel.power.source import PowerSource
from pytest_accel.stats import energy
from pytest_accel.stats.energy import EnergyWindow, PowerSample, Scope


class Observation:
    """Opens all sensors, reads them where the timed rounds begin and end, and ten times a second between.

    The lowest rank of a node reads the energy of all its devices, so that nothing is counted twice; every rank samples
    the state of its own device.
    """

    def __init__(self, config: pytest.Config, hardware: DetectedDevice | None, ranks: Ranks) -> None:
        found = ranks.gather((host.node(), ancestry(), hardware))
        here = [each for each in found if each[0] == host.node()]
        leads = ranks.rank == found.index(here[0])
        self._hardware = hardware  # None on the host
        devices = {each.uuid: each for _, _, each in here if each}  # ranks may share one
        # Whose energy is read here; None: another rank reads it.
        self._powered = list(devices.values()) if leads else None
        self._more, problem = _sources_of_others(config) if leads else ((), "")
        self._problems = (problem,) if problem else ()  # of finding sources
        self._own_pids = frozenset(pid for _, pids, _ in here for pid in pids)
        self._sources: tuple[PowerSource, ...] = ()
        self._watcher: NvmlMonitor | AmdMonitor | None = None
        self._watch = SamplingThread([])
        self._samples: list[PowerSample] = []
        self._before_j: dict[str, float] = {}
        self._after_j: dict[str, float] = {}
        self._begin_s = self._end_s = 0.0
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        hardware = self._hardware
        with ExitStack() as opened:  # closes what is open where the next one fails
            if self._powered is not None:
                self._sources = open_sources(self._powered, more=self._more)
            for source in self._sources:
                opened.callback(source.close)
            samplers = [self._sample_power] if self._sources else []
            if hardware is not None and (monitor := MONITORS.get(hardware.vendor)):
                self._watcher = watcher = monitor(hardware.uuid, self._ours)
                opened.enter_context(watcher)
                samplers.append(watcher.sample)
            self._watch = opened.enter_context(SamplingThread(samplers))
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _ours(self) -> frozenset[int]:
        """Return the processes of the measurement: the ranks, their parents and their children."""
        return self._own_pids | descendants(os.getpid())

    # --- the window: both are called outside timed rounds --------------------------------------------

    def begin(self) -> None:
        self._samples.clear()
        if self._watcher is not None:
            self._watcher.begin()
        self._before_j = self._counters()  # while the thread rests: a source takes one call at a time
        self._begin_s = time.perf_counter()
        self._watch.begin()

    def end(self) -> None:
        self._watch.end()
        self._end_s = time.perf_counter()
        self._after_j = self._counters()

    def observed(self, steps: int) -> Validity:
        """Return the validity of a window of so many steps, with all metrics of this rank; takes milliseconds."""
        metrics, doubts = self._energy(steps)
        counted = "energy_j" in metrics
        no_energy = "" if counted or self._powered is None else "; ".join(doubts) or "nothing here counts it"
        notes = tuple(f"energy: {doubt}" for doubt in doubts) if counted else self._problems
        found = assess(self._watcher.end()) if self._watcher is not None else Validity()
        figures, notes = {**metrics, **found.figures}, (*found.notes, *notes)
        return replace(found, figures=figures, notes=notes, no_energy=no_energy)

    def _counters(self) -> dict[str, float]:
        return {name: joules for source in self._sources for name, joules in source.joules().items()}

    def _sample_power(self) -> None:
        at_s = time.perf_counter()
        power_w = {name: watts for source in self._sources for name, watts in source.watts().items()}
        self._samples.append(PowerSample(at_s=at_s, power_w=power_w))

    def _energy(self, steps: int) -> tuple[dict[str, float], tuple[str, ...]]:
        if self._powered is None:
            return {}, ()
        rails = tuple(rail for source in self._sources for rail in source.rails)
        window = EnergyWindow(
            begin_s=self._begin_s,
            end_s=self._end_s,
            before_j=self._before_j,
            after_j=self._after_j,
            samples=tuple(self._samples),
            rails=rails,
        )
        measured = energy.energy_of(window)
        tdp_w = self._hardware.variant.tdp_w if self._hardware and self._hardware.variant else None
        found = energy_metrics(measured, window, steps=steps, devices=len(self._powered), tdp_w=tdp_w)
        unread = problems(self._sources) if "energy_j" not in found else ()
        doubts = (*self._problems, *unread, *measured.problems, *self._watch.problems)
        return found, tuple(dict.fromkeys(doubts))


def energy_metrics(
    measured: energy.Energy, window: EnergyWindow, *, steps: int, devices: int, tdp_w: float | None
) -> dict[str, float]:
    """Return the energy metrics of the devices, or of the node without devices, and of the node's other sensors."""
    rails = window.rails
    scope: Scope = "device" if devices else "node"
    found: dict[str, float] = {}
    if (total := energy.total_j(measured.energy_j, rails, scope=scope)) is not None:
        mean_w = total / window.length_s / max(1, devices)
        found |= {"energy_j": total, "energy_per_step_j": total / steps, "power_mean_w": mean_w}
        found |= {"tdp_share": mean_w / tdp_w} if tdp_w else {}
    if (integral_j := energy.total_j(measured.sampled_j, rails, scope=scope)) is not None:
        found["energy_sampled_per_step_j"] = integral_j / steps
    of_devices = (rail.name for rail in rails if rail.scope == "device")
    if peaks_w := [measured.peak_w[name] for name in of_devices if name in measured.peak_w]:
        found["power_peak_w"] = max(peaks_w)
    for kind in ("cpu", "module") if devices else ():
        of_kind = [rail for rail in rails if rail.scope == "node" and rail.kind == kind]
        node_j = energy.total_j(measured.energy_j, of_kind, scope="node")
        found |= {} if node_j is None else {f"node_{kind}_energy_per_step_j": node_j / steps}
    return found


def _sources_of_others(config: pytest.Config) -> tuple[tuple[PowerSource, ...], str]:
    """Return the power sources of plugins and conftest files; an error there costs their readings only."""
    try:
        return from_hook(config.hook.pytest_accel_power_sources(config=config)), ""
    except Exception as error:  # noqa: BLE001 -- somebody else's code
        return (), f"pytest_accel_power_sources raised {type(error).__name__}: {error}"
