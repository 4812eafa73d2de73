"""Binding the process that measures to the CPUs and the memory nearest to its device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_accel.distributed.affinity import Bound, bind_rank
from pytest_accel.options import Settings
from pytest_accel.platforms.names import PlatformName
from pytest_accel.session.placement import PLACEMENT, RANK_END, Placement, hardware_of

BINDING = pytest.StashKey[str]()  # in words, for the environment of what is measured


@contextmanager
def bound_to(item: pytest.Item, settings: Settings) -> Iterator[None]:
    """Bind this process for as long as an item runs in it."""
    placement = item.config.stash[PLACEMENT]
    platform = placement.place(item).platform
    assert platform is not None  # it is a case
    bound = _bind(placement, platform, settings.bind, local_rank=0, local_size=1)
    item.config.stash[BINDING] = bound.describe()
    try:
        yield
    finally:
        bound.restore()


def bind_this_rank(config: pytest.Config, platform: PlatformName) -> None:
    """Bind a rank for as long as it lives."""
    place = config.stash[RANK_END].place
    bound = _bind(
        config.stash[PLACEMENT],
        platform,
        place.bind,
        local_rank=place.local_rank,
        local_size=place.local_size,
    )
    config.stash[BINDING] = bound.describe()


def _bind(
    placement: Placement, platform: PlatformName, mode: str, *, local_rank: int, local_size: int
) -> Bound:
    machine = placement.machine
    uuids = [
        hardware.uuid if (hardware := hardware_of(machine, platform, rank)) else None
        for rank in range(local_size)
    ]
    return bind_rank(mode=mode, device_uuids=uuids, local_rank=local_rank)
