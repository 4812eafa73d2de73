"""AMD GPUs: the energy counter and the power of a socket, through amdsmi.

An MI250 is two dies on one board, and each die is a device. The driver tells power and energy on the first die only,
for both of them, and 0 on the second (amdgpu's aldebaran_ppt.c; ml-energy/zeus#203 saw 89, 0, 93, 0 W). So a die that
says 0 J and 0 W is counted with the one before it, once. Partitions of an MI300 have one serial number and one
counter: counted once too.

Some GPUs' counters stand still (ROCm/amdsmi#38, an MI100): the samples of power beside it show that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_accel.power.source import PowerDevice, Reasons, plausible_w
from pytest_accel.stats.energy import Rail

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOT_INSTALLED = "the package amdsmi is not installed; it comes with ROCm (/opt/rocm/share/amd_smi)"
# MI300 and later tell the one, those before it the other; "N/A", 65535 or 4294967295 stand for none.
_POWERS = ("current_socket_power", "average_socket_power")
_NONE_W = (0xFFFF, 0xFFFF_FFFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpu:
    handle: object
    rail: str


class AmdSource:
    """The GPUs named by UUID, which holds their serial number; each counter once."""

    name = "amdsmi"

    def __init__(self, devices: Sequence[PowerDevice]) -> None:
        self._reasons = Reasons()
        self._gpus: list[_Gpu] = []
        self._silent: list[str] = []
        self._smi, problem = _opened()
        if problem:
            self._reasons.say("", "", problem)
            return
        try:
            handles = list(self._smi.amdsmi_get_processor_handles())
            self._gpus = self._matched(devices, handles)
        except Exception as error:  # noqa: BLE001 -- its own types, which cannot be named without it
            self._reasons.say("", "", f"the GPUs cannot be listed ({_words(error)})")

    @property
    def problem(self) -> str:
        return str(self._reasons)

    @property
    def rails(self) -> tuple[Rail, ...]:
        told = [gpu.rail for gpu in self._gpus]
        return tuple(Rail(name=name, scope="device", kind="gpu") for name in (told and told + self._silent))

    def joules(self) -> Mapping[str, float]:
        return {gpu.rail: energy_j for gpu in self._gpus if (energy_j := self._energy_j(gpu)) is not None}

    def watts(self) -> Mapping[str, float]:
        return {gpu.rail: power_w for gpu in self._gpus if (power_w := self._power_w(gpu)) is not None}

    def close(self) -> None:
        self._gpus = []
        smi, self._smi = self._smi, None
        if smi is not None:
            try:
                smi.amdsmi_shut_down()
            except Exception as error:  # noqa: BLE001 -- a driver that is gone is no error at the end
                self._reasons.say("", "close", f"did not close ({_words(error)})")

    def _matched(self, devices: Sequence[PowerDevice], handles: list[object]) -> list[_Gpu]:
        places: dict[int, int] = {}  # a serial number's first handle
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
        """Whether the device tells of itself; the dies of a board that are measured in part are said."""
        if self._second_die(handles, place):
            if place - 1 not in wanted:
                self._leave_out(
                    rail,
                    f"{rail}: the second die of a board, whose energy only the first one tells: measure both",
                )
            return False
        if self._second_die(handles, place + 1) and place + 1 not in wanted:
            both = f"{rail}: its energy is that of the whole board, the other die included"
            self._reasons.say(rail, "board", both)
        return True

    def _leave_out(self, rail: str, why: str) -> None:
        self._silent.append(rail)
        self._reasons.say(rail, "handle", why)

    def _second_die(self, handles: list[object], place: int) -> bool:
        if not 0 < place < len(handles):
            return False
        gpu = _Gpu(handle=handles[place], rail="")
        return _quietly(self._read_j, gpu) == 0 and _quietly(self._read_w, gpu) == 0

    def _energy_j(self, gpu: _Gpu) -> float | None:
        try:
            return self._read_j(gpu)
        except Exception as error:  # noqa: BLE001 -- its own types; a sensor never ends a measurement
            self._reasons.say(gpu.rail, "energy", f"{gpu.rail}: no energy counter ({_words(error)})")
            return None

    def _power_w(self, gpu: _Gpu) -> float | None:
        try:
            return self._read_w(gpu)
        except Exception as error:  # noqa: BLE001 -- as above
            self._reasons.say(gpu.rail, "power", f"{gpu.rail}: power is not told ({_words(error)})")
            return None

    def _read_j(self, gpu: _Gpu) -> float:
        told = self._smi.amdsmi_get_energy_count(gpu.handle)
        # It was called power before ROCm 6.2.1.
        ticks = told["energy_accumulator"] if "energy_accumulator" in told else told["power"]
        energy_j = float(ticks) * float(told["counter_resolution"]) / 1e6
        if not 0 <= energy_j < float("inf"):
            raise ValueError(f"it says {energy_j} J")
        return energy_j

    def _read_w(self, gpu: _Gpu) -> float:
        told = self._smi.amdsmi_get_power_info(gpu.handle)
        for key in _POWERS:
            power_w = told.get(key)
            if isinstance(power_w, int | float) and power_w not in _NONE_W and plausible_w(power_w):
                return float(power_w)
        raise ValueError(", ".join(f"{key} {told.get(key)!r}" for key in _POWERS))


def _opened() -> tuple[Any, str]:
    """amdsmi, and why there is none."""
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


def _quietly(read: Any, gpu: _Gpu) -> float | None:  # noqa: ANN401 -- a bound method
    try:
        return float(read(gpu))
    except Exception:  # noqa: BLE001 -- asked again, and said, when it is measured
        return None


def _number(serial: object) -> int | None:
    """`0x1234` and `0000000000001234` are the same; None for 0 and `N/A`, which name nobody."""
    try:
        return int(str(serial), 16) or None
    except ValueError:
        return None


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
