"""The process group of a rank: opened by the first item that measures in it, kept for the following ones."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import pytest

from pytest_accel.distributed.launch import WorkerError
from pytest_accel.measure.ranks import Alone, Ranks
from pytest_accel.session.fitting import fail_plainly
from pytest_accel.session.placement import PLACEMENT, RANK_END, is_xdist_worker, open_device

if TYPE_CHECKING:
    import torch

    from pytest_accel.distributed.process_group import ProcessGroup
    from pytest_accel.measure.device import Device
    from pytest_accel.options import Settings

PROCESS_GROUP = pytest.StashKey["ProcessGroup"]()
STRAGGLERS = pytest.StashKey[dict[str, Any]]()  # of this gang, found before its first timing


def in_gang(config: pytest.Config) -> bool:
    """Whether this process is a rank among ranks, and not one that a session started for itself alone."""
    end = config.stash.get(RANK_END, None)
    return end is not None and end.place.process_group


def ranks_of(item: pytest.Item, settings: Settings) -> Ranks:
    """Those that measure an item together with this process; it fails where they cannot come together."""
    config = item.config
    if not in_gang(config):
        _refuse_to_be_alone(item)
        return Alone()
    group = config.stash.get(PROCESS_GROUP, None)
    # Decided alike on all ranks: their settings are the same.
    if group is not None and group.timeout_s >= settings.timeout_s:
        return group
    if group is None:
        config.add_cleanup(lambda: close_group(config))
    close_group(config)
    config.stash[PROCESS_GROUP] = group = _open(item, settings)
    return group


def _refuse_to_be_alone(item: pytest.Item) -> None:
    """An item of several devices that runs in this process is one for which no gang was started."""
    platform = item.config.stash[PLACEMENT].place(item).platform
    if platform is None or platform.devices == 1:
        return
    if is_xdist_worker(item.config):
        pytest.fail(
            f"{platform} runs in a gang, and none is started under xdist: run it with -n 0.", pytrace=False
        )
    pytest.fail(
        f"{platform} runs in a gang, which is started for tests that take process_group as an argument: "
        "getfixturevalue comes too late.",
        pytrace=False,
    )


def close_group(config: pytest.Config) -> None:
    if PROCESS_GROUP in config.stash:
        config.stash[PROCESS_GROUP].close()
        del config.stash[PROCESS_GROUP]


def _open(item: pytest.Item, settings: Settings) -> ProcessGroup:
    import torch

    from pytest_accel.distributed.process_group import open_process_group

    _, device, hardware = open_device(item, settings)
    place = item.config.stash[RANK_END].place
    where = torch.device(device.name)
    try:
        group = open_process_group(where, rendezvous_s=place.rendezvous_s, timeout_s=settings.timeout_s)
    except WorkerError as error:
        fail_plainly(str(error))
    if group.size > 1 and STRAGGLERS not in item.config.stash:
        label = f"{hardware.name}, {hardware.uuid}" if hardware else "CPU"
        item.config.stash[STRAGGLERS] = _looked_over(group, device, where, label)
    return group


def _looked_over(group: ProcessGroup, device: Device, where: torch.device, label: str) -> dict[str, Any]:
    """What every device can do by itself, and all of them together, before the first of them is timed."""
    from pytest_accel.distributed.device_check import check

    device.prepare()
    try:
        return check(group, where, label=label, host=platform.node()).plain()
    finally:
        device.restore()
