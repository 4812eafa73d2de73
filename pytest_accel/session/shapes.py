"""What must be equal for the processes of one item to serve another."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_accel.options import Settings
from pytest_accel.platforms.names import PlatformName


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of a gang: where it runs, and how its ranks are."""

    platform: PlatformName
    process_group: bool
    bind: str


def shape_of(platform: PlatformName, settings: Settings) -> Shape:
    """Return the shape that an item asks for."""
    return Shape(platform=platform, process_group=needs_gang(platform, settings), bind=settings.bind)


def needs_gang(platform: PlatformName, settings: Settings) -> bool:
    """Whether an item runs in a process group; on one device only where it was asked for."""
    return platform.devices > 1 or settings.process_group
