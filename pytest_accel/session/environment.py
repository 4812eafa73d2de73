"""The environment of one item: that of the device it runs on, as it is now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_accel.platforms.environment import read_environment
from pytest_accel.session.binding import BINDING
from pytest_accel.session.placement import PLACEMENT

if TYPE_CHECKING:
    from pytest_accel.measure.device import Device
    from pytest_accel.options import Settings
    from pytest_accel.platforms.machine import Device as Hardware
    from pytest_accel.platforms.names import PlatformName
    from pytest_accel.stats.environment import Environment

STEP_FACTS = pytest.StashKey[dict[str, str]]()  # of the step that was built: what an upgrade may change


def environment_of(
    item: pytest.Item, settings: Settings, platform: PlatformName, device: Device, hardware: Hardware | None
) -> Environment:
    """What this process sees, and the step in it; in a gang of devices that are alike, the identity of all of them."""
    cpu = item.config.stash[PLACEMENT].machine.cpu
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
