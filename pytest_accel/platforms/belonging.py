"""Whether runs belong where they are: the machine that they were measured on, against the platform of a folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_accel.platforms.cpu import slug

if TYPE_CHECKING:
    from pytest_accel.platforms.catalogue import Catalogue
    from pytest_accel.platforms.names import PlatformName

_GIB = 1 << 30


def misplaced(folder: str, identity: Mapping[str, str], catalogue: Catalogue) -> str:
    """The machine, where it is not of the platform whose folder this is; empty where it is, or nobody can tell."""
    name, _, variant = folder.partition("-")
    platform = catalogue.find(name)
    if platform is None:
        return ""
    device, cpu = identity.get("device_name", ""), identity.get("cpu_model", "")
    if platform.device == "cpu":
        is_other = bool(variant and cpu) and slug(cpu, "") != variant
        return device or (cpu if is_other else "")
    if not device:
        return cpu
    count = identity.get("device_count", "")
    if count and count != str(platform.devices):
        return f"{count} x {device}"
    return "" if _is_of(platform, variant, identity, catalogue) else device


def _is_of(platform: PlatformName, variant: str, identity: Mapping[str, str], catalogue: Catalogue) -> bool:
    found = catalogue.identify(identity["device_name"], _memory_bytes(identity))
    if found is None or "mig_profile" in identity:  # a slice has another name than its device
        return True
    kind, sort = found
    # A folder of devices of several variants has all their names.
    return kind == platform.device and (variant == sort.key or bool(sort.key and sort.key in variant))


def _memory_bytes(identity: Mapping[str, str]) -> int | None:
    try:
        return int(float(identity["device_memory_gb"]) * _GIB)
    except (KeyError, ValueError, OverflowError):
        return None
