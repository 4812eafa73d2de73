"""Detection of this machine, once a process: the only place that asks drivers what there is."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from pytest_accel.platforms.catalogue import Catalogue, load_catalogue
from pytest_accel.platforms.machine import Device, Machine


def detect(catalogue: Catalogue | None = None) -> Machine:
    """What this process can use, named by the catalogue (the built-in one by default).

    Drivers are asked once a process; `probe.cache_clear()` forgets their answer.
    """
    machine = probe()
    catalogue = catalogue or load_catalogue()
    return replace(machine, devices=tuple(identified(device, catalogue) for device in machine.devices))


def identified(device: Device, catalogue: Catalogue) -> Device:
    """The device with its key and variant; a MIG slice is never the device that it is a slice of."""
    found = catalogue.identify(device.name, device.memory_bytes)
    if found is not None:
        return replace(device, key=found[0], variant=found[1])
    return replace(device, key=f"mig-{device.mig}" if device.mig is not None else None, variant=None)


@cache
def probe() -> Machine:
    """The drivers' own words, nothing looked up yet."""
    from pytest_accel.platforms import amd, cpu, graphcore, nvidia

    devices: list[Device] = []
    problems: list[str] = []
    for found, said in (nvidia.find(), amd.find(), graphcore.find()):
        devices += found
        problems += said
    return Machine(cpu=cpu.find(), devices=tuple(devices), problems=tuple(problems))
