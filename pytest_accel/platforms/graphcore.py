"""Graphcore IPUs, where their gcipuinfo is installed (it comes with the Poplar SDK, not from PyPI)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_accel.platforms.machine import Device

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_ARCHITECTURES = {
    "ipu2": "GC200",
    "ipu21": "Bow",
}  # "ipu architecture"; Bow is the same design, clocked higher


def find() -> tuple[list[Device], list[str]]:
    """The IPUs of the active partition; nothing where the SDK is not there."""
    try:
        import gcipuinfo  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return [], []
    try:
        return devices(gcipuinfo.gcipuinfo().getDevices()), []
    except Exception as error:  # noqa: BLE001 -- a bound C++ library; it must not end a session on other hardware
        return [], [f"gcipuinfo: {error}"]


def devices(listed: Iterable[Mapping[str, str]]) -> list[Device]:
    """Devices from gcipuinfo's attributes, which are all strings."""
    return [
        Device(
            index=index,
            name=f"Graphcore {_ARCHITECTURES.get(ipu.get('ipu architecture', ''), ipu.get('board type', 'IPU'))}",
            vendor="graphcore",
            uuid=f"{ipu.get('board serial number', '')}/{ipu.get('board ipu index', index)}",
        )
        for index, ipu in enumerate(listed)
    ]
