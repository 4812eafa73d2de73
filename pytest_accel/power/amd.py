"""Energy counter and power of AMD GPUs through amdsmi.

An MI250 has two dies on one board, and each die is a device. The driver reports power and energy of both on the
first die, and 0 on the second (amdgpu's aldebaran_ppt.c; ml-energy/zeus#203 saw 89, 0, 93, 0 W). A die that says
0 J and 0 W is therefore counted with the one before it. Partitions of an MI300 share one serial number and one
counter, which is read once.

The counters of some GPUs stand still (ROCm/amdsmi#38, an MI100): the power samples show that.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pytest_accel.platforms.catalogue import DetectedDevice
from pytest_accel.power.source import DeviceSource, checked_w, words

NOT_INSTALLED = "the package amdsmi is not installed; it comes with ROCm (/opt/rocm/share/amd_smi)"
NOT_STARTED = "amdsmi does not start; it needs ROCm ({})"
# MI300 and later have the first, older GPUs the second; "N/A", 65535 and 4294967295 mean none.
_POWERS = ("current_socket_power", "average_socket_power")
_NONE_W = (0xFFFF, 0xFFFF_FFFF)


def open_amdsmi() -> tuple[Any, list[object], str]:
    """Return amdsmi, started, and its GPUs, or why it cannot be used; `close_amdsmi` it. It counts its users."""
    try:
        import amdsmi  # type: ignore[import-not-found, unused-ignore]

        amdsmi.amdsmi_init()
        return amdsmi, list(amdsmi.amdsmi_get_processor_handles()), ""
    except ImportError:
        return None, [], NOT_INSTALLED
    except Exception as error:  # noqa: BLE001 -- its own types; without ROCm its import raises KeyError
        return None, [], NOT_STARTED.format(words(error))


def close_amdsmi(smi: Any) -> None:  # noqa: ANN401 -- the package has no types
    """Close amdsmi; one that never opened, or a driver that is gone, is no error at the end."""
    with suppress(Exception):
        smi.amdsmi_shut_down()


class AmdSource(DeviceSource):
    """The GPUs with these UUIDs, which hold their serial numbers; each counter once."""

    def __init__(self, devices: Sequence[DetectedDevice]) -> None:
        super().__init__("amdsmi")
        self._smi, listed, problem = open_amdsmi()
        if problem:
            self.add_problem("", "", problem)
        else:
            self._open(devices, listed)

    def close(self) -> None:
        self.handles = {}
        close_amdsmi(self._smi)

    def _open(self, devices: Sequence[DetectedDevice], listed: Sequence[object]) -> None:
        serials = [
            serial_number(self._smi.amdsmi_get_gpu_asic_info(each).get("asic_serial")) for each in listed
        ]
        wanted = {serial_number(device.uuid) for device in devices} - {None}
        seconds = {place for place in range(1, len(listed)) if self._is_second_die(listed[place])}
        # A second die whose first is measured too is counted with it.
        hidden = {serials[place] for place in seconds if serials[place - 1] in wanted}

        def find(device: DetectedDevice) -> object:
            serial = serial_number(device.uuid)
            if serial is None or serial not in serials:
                raise LookupError(f"amdsmi does not know this device ({device.uuid or 'no UUID'})")
            place = serials.index(serial)
            if place in seconds:
                raise LookupError(
                    "the second die of a board, whose energy only the first reports: measure both"
                )
            if place + 1 in seconds and serials[place + 1] not in wanted:
                rail = f"{self.kind}{device.index}"
                board = f"{rail}: its energy is that of the whole board, the other die included"
                self.add_problem(rail, "board", board)
            return listed[place]

        self.open_devices([device for device in devices if serial_number(device.uuid) not in hidden], find)

    def _is_second_die(self, handle: object) -> bool:
        try:
            return self.energy_j(handle) == 0 and self.power_w(handle) == 0
        except Exception:  # noqa: BLE001 -- reported when it is measured
            return False

    def energy_j(self, handle: object) -> float:
        answer = self._smi.amdsmi_get_energy_count(handle)
        # Named `power` before ROCm 6.2.1.
        ticks = answer.get("energy_accumulator", answer.get("power"))
        return float(ticks) * float(answer["counter_resolution"]) / 1e6

    def power_w(self, handle: object) -> float:
        answer = self._smi.amdsmi_get_power_info(handle)
        for key in _POWERS:
            power_w = answer.get(key)
            if isinstance(power_w, int | float) and power_w >= 0 and power_w not in _NONE_W:
                return checked_w(power_w)
        raise ValueError(", ".join(f"{key} {answer.get(key)!r}" for key in _POWERS))


def serial_number(serial: object) -> int | None:
    """Parse `0x1234` and `GPU-0000000000001234` alike; None for 0 and `N/A`."""
    try:
        return int(str(serial).removeprefix("GPU-"), 16) or None
    except ValueError:
        return None


VENDOR, SOURCE = "amd", AmdSource
