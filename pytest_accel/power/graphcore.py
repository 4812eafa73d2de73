"""Power of Graphcore IPUs through gcipuinfo, which comes with the Poplar SDK and is not on PyPI.

Attributes are text, power is `62.1W` or `N/A`. There is no energy counter: energy is integrated from samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_accel.platforms.graphcore import device_uuid
from pytest_accel.power.source import PowerDevice, PowerNode, Reasons, device_rails, plausible_w
from pytest_accel.stats.energy import Rail

VENDOR = "graphcore"
NOT_INSTALLED = "gcipuinfo is not installed; it comes with the Poplar SDK"
_ATTRIBUTE = "ipu power"  # gcipuinfo.IpuPower


def open_source(node: PowerNode) -> GraphcoreSource:
    return GraphcoreSource([device for device in node.devices if device.vendor == VENDOR])


class GraphcoreSource:
    """The IPUs with these UUIDs: the board's serial number and the place on it."""

    name = "gcipuinfo"

    def __init__(self, devices: Sequence[PowerDevice]) -> None:
        self._reasons = Reasons()
        self._places: dict[str, int] = {}  # rail to the place in gcipuinfo's lists
        self._silent: list[str] = []
        self._info: Any = None
        try:
            import gcipuinfo  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            self._reasons.add("", "", NOT_INSTALLED)
            return
        self._attribute = getattr(gcipuinfo, "IpuPower", _ATTRIBUTE)
        try:
            self._info = gcipuinfo.gcipuinfo()
            self._info.setUpdateMode(True)  # else every reading is the first one
            listed = [device_uuid(ipu, place) for place, ipu in enumerate(self._info.getDevices())]
        except Exception as error:  # noqa: BLE001 -- a bound C++ library must not end a measurement
            self._reasons.add("", "", f"the IPUs cannot be listed ({error})")
            return
        for device in devices:
            rail = f"ipu{device.index}"
            if device.uuid in listed:
                self._places[rail] = listed.index(device.uuid)
            else:
                self._silent.append(rail)
                self._reasons.add(rail, "", f"{rail}: gcipuinfo does not know this device ({device.uuid})")

    @property
    def problem(self) -> str:
        return str(self._reasons)

    @property
    def rails(self) -> tuple[Rail, ...]:
        return device_rails("ipu", list(self._places), self._silent)

    def joules(self) -> Mapping[str, float]:
        return {}

    def watts(self) -> Mapping[str, float]:
        if not self._places:
            return {}
        try:
            answers = list(self._info.getNamedAttributeForAll(self._attribute))
        except Exception as error:  # noqa: BLE001 -- as above
            self._reasons.add("", "power", f"power cannot be read ({error})")
            return {}
        readings: dict[str, float] = {}
        for rail, place in self._places.items():
            text = str(answers[place]) if place < len(answers) else "nothing"
            power_w = _watts(text)
            if power_w is None:
                self._reasons.add(rail, "power", f"{rail}: says {text[:20]!r}, which is no power")
            else:
                readings[rail] = power_w
        return readings

    def close(self) -> None:
        self._places = {}
        self._info = None


def _watts(text: str) -> float | None:
    number, unit = text.strip()[:-1], text.strip()[-1:]
    try:
        power_w = float(number)
    except ValueError:
        return None
    return power_w if unit == "W" and plausible_w(power_w) else None
