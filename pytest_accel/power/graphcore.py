"""Graphcore IPUs: their power, where gcipuinfo is installed (it comes with the Poplar SDK, not from PyPI).

It tells all attributes as text, power as `62.1W`, or `N/A`. There is no counter: energy is the integral of what was
sampled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_accel.power.source import PowerDevice, Reasons, plausible_w
from pytest_accel.stats.energy import Rail

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOT_INSTALLED = "gcipuinfo is not installed; it comes with the Poplar SDK"
_ATTRIBUTE = "ipu power"  # gcipuinfo.IpuPower


class GraphcoreSource:
    """The IPUs named as `platforms/graphcore.py` names them: the board's serial number and the place on it."""

    name = "gcipuinfo"

    def __init__(self, devices: Sequence[PowerDevice]) -> None:
        self._reasons = Reasons()
        self._places: dict[str, int] = {}  # rail to the place in gcipuinfo's lists
        self._silent: list[str] = []
        self._info: Any = None
        try:
            import gcipuinfo  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            self._reasons.say("", "", NOT_INSTALLED)
            return
        self._attribute = getattr(gcipuinfo, "IpuPower", _ATTRIBUTE)
        try:
            self._info = gcipuinfo.gcipuinfo()
            self._info.setUpdateMode(True)  # else every reading is the first one
            listed = [_uuid(ipu, place) for place, ipu in enumerate(self._info.getDevices())]
        except Exception as error:  # noqa: BLE001 -- a bound C++ library; it must not end a measurement
            self._reasons.say("", "", f"the IPUs cannot be listed ({error})")
            return
        for device in devices:
            rail = f"ipu{device.index}"
            if device.uuid in listed:
                self._places[rail] = listed.index(device.uuid)
            else:
                self._silent.append(rail)
                self._reasons.say(rail, "", f"{rail}: gcipuinfo does not know this device ({device.uuid})")

    @property
    def problem(self) -> str:
        return str(self._reasons)

    @property
    def rails(self) -> tuple[Rail, ...]:
        told = list(self._places)
        return tuple(Rail(name=name, scope="device", kind="ipu") for name in (told and told + self._silent))

    def joules(self) -> Mapping[str, float]:
        return {}

    def watts(self) -> Mapping[str, float]:
        if not self._places:
            return {}
        try:
            told = list(self._info.getNamedAttributeForAll(self._attribute))
        except Exception as error:  # noqa: BLE001 -- as above
            self._reasons.say("", "power", f"power is not told ({error})")
            return {}
        readings: dict[str, float] = {}
        for rail, place in self._places.items():
            text = str(told[place]) if place < len(told) else "nothing"
            power_w = _watts(text)
            if power_w is None:
                self._reasons.say(rail, "power", f"{rail}: says {text[:20]!r}, which is no power")
            else:
                readings[rail] = power_w
        return readings

    def close(self) -> None:
        self._places = {}
        self._info = None


def _uuid(ipu: Mapping[str, str], place: int) -> str:
    return f"{ipu.get('board serial number', '')}/{ipu.get('board ipu index', place)}"


def _watts(text: str) -> float | None:
    number, unit = text.strip()[:-1], text.strip()[-1:]
    try:
        power_w = float(number)
    except ValueError:
        return None
    return power_w if unit == "W" and plausible_w(power_w) else None
