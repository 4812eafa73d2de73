"""Scaling efficiency of a benchmark: against the baseline of the same benchmark on fewer devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from pytest_accel.platforms.machine import Machine
from pytest_accel.platforms.names import PlatformName
from pytest_accel.session.case import Case
from pytest_accel.stats.environment import Environment
from pytest_accel.stats.gate import interval
from pytest_accel.stats.measurement import Measurement
from pytest_accel.stats.results import ScalingPoint, scaling_figure
from pytest_accel.stats.run import baseline_key
from pytest_accel.storage.baselines import BaselineError, BaselineStore


def with_scaling(case: Case, found: Measurement, store: BaselineStore, machine: Machine) -> Measurement:
    """Return the measurement with `scaling_efficiency` added, where fewer devices have a baseline."""
    few = _fewest(case, found, store, machine)
    if few is None:
        return found
    platform, point = few
    many = ScalingPoint(
        devices=case.platform.devices,
        work_per_step=found.work_per_step,
        step=interval([found.run], case.policy),
    )
    case.scaling = scaling_figure(str(platform), point, many)
    metrics = {**found.run.metrics, "scaling_efficiency": case.scaling.efficiency}
    return replace(found, run=replace(found.run, metrics=metrics))


def _fewest(
    case: Case, found: Measurement, store: BaselineStore, machine: Machine
) -> tuple[PlatformName, ScalingPoint] | None:
    """Return the smallest platform of this device with a baseline of the same configuration."""
    for platform in _smaller(case.platform):
        file = None
        with suppress(BaselineError):  # not selected here: a session that selects it reports the error
            file = store.read(machine.disk_name(platform), case.suite)
        entry = file.benchmarks.get(baseline_key(case.node_id, found.configuration)) if file else None
        if file is None or entry is None or dict(entry.configuration) != dict(found.configuration):
            continue
        runs = [run for run in entry.runs if _alike(file.environments[run.environment], found.environment)]
        if runs:
            step = interval(runs, case.policy)
            return platform, ScalingPoint(
                devices=platform.devices, work_per_step=entry.work_per_step, step=step
            )
    return None


def _smaller(platform: PlatformName) -> Iterator[PlatformName]:
    sizes = [
        PlatformName(platform.device, per_node, nodes)
        for nodes in range(1, platform.nodes + 1)
        for per_node in range(1, platform.per_node + 1)
    ]
    yield from sorted(
        (size for size in sizes if size.devices < platform.devices),
        key=lambda size: (size.devices, size.nodes),
    )


def _alike(then: Environment, now: Environment) -> bool:
    """Whether two environments differ only in the number of devices."""
    fields = then.identity.keys() | now.identity.keys()
    return all(then.identity.get(name) == now.identity.get(name) for name in fields - {"device_count"})
