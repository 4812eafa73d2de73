"""Energy counter and power of AMD GPUs through amdsmi.

An MI250 has two dies on one board, and each die is a device. The driver reports power and energy of both on the
first die, and 0 on the second (amdgpu's aldebaran_ppt.c; ml-energy/zeus#203 saw 89, 0, 93, 0 W). A die that says
0 J and 0 W is therefore counted with the one before it. Partitions of an MI300 share one serial number and one
counter, which is read once.

The counters of some GPUs stand still (ROCm/amdsmi#38, an MI100): the power samples show that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_accel.power.source import PowerDevice, PowerNode, Reasons, device_rails, plausible_w
from pytest_accel.stats.energy import Rail

VENDOR = "amd"
NOT_INSTALLED = "the package amdsmi is not installed; it comes with ROCm (/opt/rocm/share/amd_smi)"
# MI300 and later have the first, older GPUs the second; "N/A", 65535 and 4294967295 mean none.
_POWERS = ("current_socket_power", "average_socket_power")
_NONE_W = (0xFFFF, 0xFFFF_FFFF)


def open_source(node: PowerNode) -> AmdSource:
    return AmdSource([device for device in node.devices if device.vendor == VENDOR])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpu:
    handle: object
    rail: str


class AmdSource:
    """The GPUs with these UUIDs, which hold their serial numbers; each counter once."""

    name = "amdsmi"

    def __init__(self, devices: Sequence[PowerDevice]) -> None:
        self._reasons = Reasons()
        self._gpus: list[_Gpu] = []
        self._silent: list[str] = []
        self._smi, problem = _opened()
        if problem:
            self._reasons.add("", "", problem)
            return
        try:
            handles = list(self._smi.amdsmi_get_processor_handles())
            self._gpus = self._matched(devices, handles)
        except Exception as error:  # noqa: BLE001 -- its own types, which cannot be named without it
            self._reasons.add("", "", f"the GPUs cannot be listed ({_words(error)})")

    @property
    def problem(self) -> str:
        return str(self._reasons)

    @property
    def rails(self) -> tuple[Rail, ...]:
        return device_rails("gpu", [gpu.rail for gpu in self._gpus], self._silent)

    def joules(self) -> Mapping[str, float]:
        return self._readings(self._read_j, "energy", "no energy counter")

    def watts(self) -> Mapping[str, float]:
        return self._readings(self._read_w, "power", "power cannot be read")

    def close(self) -> None:
        self._gpus = []
        smi, self._smi = self._smi, None
        if smi is not None:
            try:
                smi.amdsmi_shut_down()
            except Exception as error:  # noqa: BLE001 -- a driver that is gone is no error at the end
                self._reasons.add("", "close", f"did not close ({_words(error)})")

    def _matched(self, devices: Sequence[PowerDevice], handles: list[object]) -> list[_Gpu]:
        places: dict[int, int] = {}  # serial number to its first handle
        for place, handle in enumerate(handles):
            serial = _number(self._smi.amdsmi_get_gpu_asic_info(handle).get("asic_serial"))
            if serial:
                places.setdefault(serial, place)
        wanted: dict[int, str] = {}
        for device in devices:
            serial = _number(device.uuid.removeprefix("GPU-"))
            rail = f"gpu{device.index}"
            if serial is None or serial not in places:
                unknown = f"amdsmi does not know this device ({device.uuid or 'no UUID'})"
                self._leave_out(rail, f"{rail}: {unknown}")
            else:
                wanted.setdefault(places[serial], rail)
        return [
            _Gpu(handle=handles[place], rail=rail)
            for place, rail in wanted.items()
            if self._counts(place, rail, handles, wanted)
        ]

    def _counts(self, place: int, rail: str, handles: list[object], wanted: Mapping[int, str]) -> bool:
        """Whether the device has readings of its own; a board that is measured in part is reported."""
        if self._is_second_die(handles, place):
            if place - 1 not in wanted:
                self._leave_out(
                    rail,
                    f"{rail}: the second die of a board, whose energy only the first reports: measure both",
                )
            return False
        if self._is_second_die(handles, place + 1) and place + 1 not in wanted:
            both = f"{rail}: its energy is that of the whole board, the other die included"
            self._reasons.add(rail, "board", both)
        return True

    def _leave_out(self, rail: str, why: str) -> None:
        self._silent.append(rail)
        self._reasons.add(rail, "handle", why)

    def _is_second_die(self, handles: list[object], place: int) -> bool:
        if not 0 < place < len(handles):
            return False
        try:
            return self._read_j(handles[place]) == 0 and self._read_w(handles[place]) == 0
        except Exception:  # noqa: BLE001 -- reported when it is measured
            return False

    def _readings(self, read: Callable[[object], float], reading: str, fault: str) -> dict[str, float]:
        readings: dict[str, float] = {}
        for gpu in self._gpus:
            try:
                readings[gpu.rail] = read(gpu.handle)
            except Exception as error:  # noqa: BLE001 -- its own types; a sensor never ends a measurement
                self._reasons.add(gpu.rail, reading, f"{gpu.rail}: {fault} ({_words(error)})")
        return readings

    def _read_j(self, handle: object) -> float:
        answer = self._smi.amdsmi_get_energy_count(handle)
        # Named `power` before ROCm 6.2.1.
        ticks = answer["energy_accumulator"] if "energy_accumulator" in answer else answer["power"]
        energy_j = float(ticks) * float(answer["counter_resolution"]) / 1e6
        if not 0 <= energy_j < float("inf"):
            raise ValueError(f"it says {energy_j} J")
        return energy_j

    def _read_w(self, handle: object) -> float:
        answer = self._smi.amdsmi_get_power_info(handle)
        for key in _POWERS:
            power_w = answer.get(key)
            if isinstance(power_w, int | float) and power_w not in _NONE_W and plausible_w(power_w):
                return float(power_w)
        raise ValueError(", ".join(f"{key} {answer.get(key)!r}" for key in _POWERS))


def _opened() -> tuple[Any, str]:
    """Return amdsmi, or why there is none."""
    try:
        import amdsmi  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None, NOT_INSTALLED
    except Exception as error:  # noqa: BLE001 -- without ROCm its import raises KeyError
        return None, f"amdsmi cannot be used without ROCm ({_words(error)})"
    try:
        amdsmi.amdsmi_init()
    except Exception as error:  # noqa: BLE001 -- its own types
        return None, f"amdsmi does not start ({_words(error)})"
    return amdsmi, ""


def _number(serial: object) -> int | None:
    """Parse `0x1234` and `0000000000001234` alike; None for 0 and `N/A`."""
    try:
        return int(str(serial), 16) or None
    except ValueError:
        return None


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
