"""The device of an item: opening it, binding the process to its CPUs, its environment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_accel.distributed.affinity import Bound, bind_rank
from pytest_accel.measure.device import CpuDevice, CudaDevice, Device, torch_index, widen_device_queues
from pytest_accel.options import Settings
from pytest_accel.platforms.environment import read_environment
from pytest_accel.platforms.machine import DetectedDevice, Machine
from pytest_accel.platforms.names import PlatformName
from pytest_accel.session.selection import SELECTION, PlatformSelection
from pytest_accel.stats.environment import Environment

if TYPE_CHECKING:
    from pytest_accel.distributed.worker import RankConnection  # noqa: F401 - in the string below

RANK_END = pytest.StashKey["RankConnection"]()  # set in a worker process only
BINDING = pytest.StashKey[str]()  # in words, for the environment of a measurement
STEP_FACTS = pytest.StashKey[dict[str, str]]()  # of the built step: what an upgrade may change


def open_device(item: pytest.Item, settings: Settings) -> tuple[PlatformName, Device, DetectedDevice | None]:
    """Return the platform of an item, its device for measuring and, beyond the host, the driver's view of it.

    Each rank of a process group has its own device, by its number on its node.
    """
    selection = item.config.stash[SELECTION]
    platform = selection.platform_of(item)
    if platform.device == "cpu":
        return platform, CpuDevice(threads=settings.threads), None
    rank = item.config.stash.get(RANK_END, None)
    hardware = hardware_of(selection.machine, platform, rank.place.local_rank if rank else 0)
    if hardware is None:
        pytest.fail(f"{platform}: this rank sees {selection.machine.summary()}", pytrace=False)
    if hardware.vendor not in {"nvidia", "amd"}:
        pytest.fail(f"{platform}: this version measures CPUs and CUDA or ROCm devices", pytrace=False)
    widen_device_queues()
    return platform, CudaDevice(index=torch_index(hardware.uuid, hardware.index)), hardware


def hardware_of(machine: Machine, platform: PlatformName, local_rank: int) -> DetectedDevice | None:
    """Return the device of a rank: by its number among those of the node, or the only visible one."""
    fitting = machine.devices_for(platform)
    if not fitting:
        return None
    return fitting[local_rank] if local_rank < len(fitting) else fitting[0] if len(fitting) == 1 else None


@contextmanager
def bound_to(item: pytest.Item, settings: Settings) -> Iterator[None]:
    """Bind this process to the CPUs near an item's device while the item runs."""
    selection = item.config.stash[SELECTION]
    bound = _bind(selection, selection.platform_of(item), settings.bind, local_rank=0, local_size=1)
    item.config.stash[BINDING] = bound.describe()
    try:
        yield
    finally:
        bound.restore()


def bind_worker(config: pytest.Config, platform: PlatformName) -> None:
    """Bind a worker process for its lifetime."""
    place = config.stash[RANK_END].place
    bound = _bind(
        config.stash[SELECTION],
        platform,
        place.bind,
        local_rank=place.local_rank,
        local_size=place.local_size,
    )
    config.stash[BINDING] = bound.describe()


def _bind(
    selection: PlatformSelection, platform: PlatformName, mode: str, *, local_rank: int, local_size: int
) -> Bound:
    devices = [hardware_of(selection.machine, platform, rank) for rank in range(local_size)]
    uuids = [device.uuid if device else None for device in devices]
    return bind_rank(mode=mode, device_uuids=uuids, local_rank=local_rank)


def environment_of(
    item: pytest.Item,
    settings: Settings,
    platform: PlatformName,
    device: Device,
    hardware: DetectedDevice | None,
) -> Environment:
    """Return the environment that this process sees, with facts of the step that was built in it."""
    cpu = item.config.stash[SELECTION].machine.cpu
    binding = item.config.stash.get(BINDING, "")
    read = read_environment(
        device=device.name,
        device_index=hardware.index if hardware else 0,
        threads=settings.threads,
        device_count=platform.devices,
        uuid=(hardware.uuid or None) if hardware else None,
        cpu_model=f"{cpu.name} ({cpu.model})",
    )
    facts = item.stash.get(STEP_FACTS, {})
    if platform.devices > 1 or not binding.startswith("none"):
        facts = {"binding": binding, **facts}
    return replace(read, context={**read.context, **facts})
