"""Power of Graphcore IPUs through gcipuinfo, which comes with the Poplar SDK and is not on PyPI.

Attributes are text, power is `62.1W` or `N/A`. There is no energy counter: energy is integrated from samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_accel.platforms.catalogue import DetectedDevice
from pytest_accel.platforms.machine import ipu_uuid
from pytest_accel.power.source import DeviceSource, PowerNode, checked_w, words

VENDOR = "graphcore"
NOT_INSTALLED = "gcipuinfo is not installed; it comes with the Poplar SDK"


def open_source(node: PowerNode) -> GraphcoreSource:
    return GraphcoreSource([device for device in node.devices if device.vendor == VENDOR])


class GraphcoreSource(DeviceSource):
    """The IPUs with these UUIDs: the board's serial number and the place on it."""

    kind = "ipu"

    def __init__(self, devices: Sequence[DetectedDevice]) -> None:
        super().__init__("gcipuinfo")
        self._info: Any = None
        try:
            import gcipuinfo  # type: ignore[import-not-found, unused-ignore]

            self._info = gcipuinfo.gcipuinfo()
            self._info.setUpdateMode(True)  # else every reading is the first one
            listed = [ipu_uuid(ipu, place) for place, ipu in enumerate(self._info.getDevices())]
        except ImportError:
            self.add_problem("", "", NOT_INSTALLED)
            return
        except Exception as error:  # noqa: BLE001 -- a bound C++ library must not end a measurement
            self.add_problem("", "", f"the IPUs cannot be listed ({words(error)})")
            return

        def find(device: DetectedDevice) -> int:
            if device.uuid not in listed:
                raise LookupError(f"gcipuinfo does not know this device ({device.uuid})")
            return listed.index(device.uuid)

        self.open_devices(devices, find)

    def joules(self) -> Mapping[str, float]:
        return {}

    def watts(self) -> Mapping[str, float]:
        if not self.handles:
            return {}
        try:
            answers = list(self._info.getNamedAttributeForAll("ipu power"))  # gcipuinfo.IpuPower
        except Exception as error:  # noqa: BLE001 -- as above
            self.add_problem("", "power", f"power cannot be read ({words(error)})")
            return {}
        return self.readings("power cannot be read", lambda place: _watts(answers[place]))

    def close(self) -> None:
        self.handles, self._info = {}, None


def _watts(text: str) -> float:
    try:
        return checked_w(float(text.removesuffix("W")) if text.endswith("W") else float("nan"))
    except ValueError:
        raise ValueError(f"it says {text[:20]!r}") from None
