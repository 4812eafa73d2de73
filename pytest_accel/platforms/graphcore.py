"""Graphcore IPUs through gcipuinfo, which comes with the Poplar SDK and is not on PyPI."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pytest_accel.platforms.machine import DetectedDevice

# "ipu architecture"; Bow is the same design with a higher clock.
_ARCHITECTURES = {"ipu2": "GC200", "ipu21": "Bow"}


def find() -> tuple[list[DetectedDevice], list[str]]:
    """Return the IPUs of the active partition and problems; nothing without the SDK."""
    try:
        import gcipuinfo  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return [], []
    try:
        return devices(gcipuinfo.gcipuinfo().getDevices()), []
    except Exception as error:  # noqa: BLE001 -- a bound C++ library must not end a session on other hardware
        return [], [f"gcipuinfo: {error}"]


def devices(listed: Iterable[Mapping[str, str]]) -> list[DetectedDevice]:
    """Return devices from gcipuinfo's attributes, which are all strings."""
    return [
        DetectedDevice(
            index=index,
            name=f"Graphcore {_ARCHITECTURES.get(ipu.get('ipu architecture', ''), ipu.get('board type', 'IPU'))}",
            vendor="graphcore",
            uuid=device_uuid(ipu, index),
        )
        for index, ipu in enumerate(listed)
    ]


def device_uuid(ipu: Mapping[str, str], index: int) -> str:
    """Return the serial number of the board and the place on it."""
    return f"{ipu.get('board serial number', '')}/{ipu.get('board ipu index', index)}"
