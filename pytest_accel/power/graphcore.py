"""Power of Graphcore IPUs through gcipuinfo, which comes with the Poplar SDK and is not on PyPI.

Attributes are text, power is `62.1W` or `N/A`. There is no energy counter: energy is integrated from samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pytest_accel.platforms.catalogue import DetectedDevice
from pytest_accel.platforms.machine import ipu_uuid
from pytest_accel.power.source import DeviceSource, checked_w

NOT_INSTALLED = "gcipuinfo is not installed; it comes with the Poplar SDK"


class GraphcoreSource(DeviceSource):
    """The IPUs with these UUIDs: the board's serial number and the place on it."""

    kind = "ipu"

    def __init__(self, devices: Sequence[DetectedDevice]) -> None:
        super().__init__("gcipuinfo")
        self._info: Any = None
        try:
            import gcipuinfo  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            self.add_problem("", "", NOT_INSTALLED)
            return
        self._info = gcipuinfo.gcipuinfo()
        self._info.setUpdateMode(True)  # else every reading is the first one
        listed = [ipu_uuid(ipu, place) for place, ipu in enumerate(self._info.getDevices())]

        def find(device: DetectedDevice) -> int:
            if device.uuid not in listed:
                raise LookupError(f"gcipuinfo does not know this device ({device.uuid})")
            return listed.index(device.uuid)

        self.open_devices(devices, find)

    def joules(self) -> Mapping[str, float]:
        return {}

    def watts(self) -> Mapping[str, float]:
        # One question for all; gcipuinfo.IpuPower.
        powers = cache(lambda: list(self._info.getNamedAttributeForAll("ipu power")))
        return self.readings("power cannot be read", lambda place: _watts(powers()[place]))

    def close(self) -> None:
        self.handles, self._info = {}, None


def _watts(text: str) -> float:
    try:
        return checked_w(float(text.removesuffix("W")) if text.endswith("W") else float("nan"))
    except ValueError:
        raise ValueError(f"it says {text[:20]!r}") from None


VENDOR, SOURCE = "graphcore", GraphcoreSource
