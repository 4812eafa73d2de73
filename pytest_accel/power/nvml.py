"""NVIDIA GPUs: the driver's own counter of energy, and the power of this moment, through NVML.

The counter ticks about every 100 ms and a call takes milliseconds (H200: 3.2 ms, at most 15), so it is read at the
two ends of a window of seconds, never inside it: over 5 s a tick is 2 %. Power takes microseconds (H200: 3.1 by the
field of instantaneous power, 1.2 by `nvmlDeviceGetPowerUsage`, which is an average over a second on most GPUs).
Over 6 s of matrix products the counter said 688.16 W, the integral of instantaneous power at 50 Hz 688.09 W, that of
the average 692.25 W.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_accel.platforms.nvidia import close, open_nvml
from pytest_accel.power.source import PowerDevice, Reasons, plausible_w
from pytest_accel.stats.energy import Rail

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_accel.platforms.nvidia import Nvml

# Fields and scopes of nvml.h, for packages of nvidia-ml-py that do not name them yet.
POWER_INSTANT, SCOPE_GPU, SCOPE_MODULE = 186, 0, 1
# nvmlValueType_t: which member of the union holds the number.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
# One GPU to a module there. Other superchips have two, which would both tell the power of the same module.
_ONE_GPU_TO_A_MODULE = "GH200"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpu:
    handle: object
    rail: str
    by_field: bool  # it tells instantaneous power
    module: str  # name of the module's rail; empty where it tells none


class NvmlSource:
    """The GPUs named by UUID, each once: NVML's indices ignore CUDA_VISIBLE_DEVICES."""

    name = "NVML"

    def __init__(self, devices: Sequence[PowerDevice], *, modules: bool = True) -> None:
        """`modules=False` where other sensors tell the power of Grace Hopper modules already."""
        self._reasons = Reasons()
        self._nvml = open_nvml()
        self._closed = False
        self._gpus: list[_Gpu] = []
        self._silent: list[str] = []
        if self._nvml.problem:
            self._reasons.say("", "", self._nvml.problem)
            return
        for device in {device.uuid: device for device in devices}.values():
            self._open(device, modules=modules)

    @property
    def problem(self) -> str:
        return str(self._reasons)

    @property
    def rails(self) -> tuple[Rail, ...]:
        if not self._gpus:
            return ()
        rails = [Rail(name=name, scope="device", kind="gpu") for name in self._silent]
        for gpu in self._gpus:
            rails.append(Rail(name=gpu.rail, scope="device", kind="gpu", within=gpu.module))
            if gpu.module:
                rails.append(Rail(name=gpu.module, scope="node", kind="module"))
        return tuple(rails)

    def joules(self) -> Mapping[str, float]:
        readings: dict[str, float] = {}
        for gpu in () if self._closed else self._gpus:
            millijoules, why = self._nvml.attempt("nvmlDeviceGetTotalEnergyConsumption", gpu.handle)
            if millijoules is None:  # none before Volta, or of a lost GPU
                self._reasons.say(gpu.rail, "energy", f"{gpu.rail}: no energy counter ({why})")
            else:
                readings[gpu.rail] = float(millijoules) / 1000
        return readings

    def watts(self) -> Mapping[str, float]:
        readings: dict[str, float] = {}
        for gpu in () if self._closed else self._gpus:
            self._add_watts(gpu, readings)
        return readings

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            close(self._nvml)

    def _open(self, device: PowerDevice, *, modules: bool) -> None:
        rail = f"gpu{device.index}"
        if device.mig or device.uuid.startswith("MIG-"):
            profile = f"{device.mig} of {rail}" if device.mig else device.uuid
            self._leave_out(
                rail, f"MIG slice {profile}: its energy cannot be told apart from the other slices'"
            )
            return
        handle = self._nvml.handle(device.uuid)
        if handle is None:
            self._leave_out(rail, f"{rail}: NVML does not know this device ({device.uuid or 'no UUID'})")
            return
        alone = modules and _ONE_GPU_TO_A_MODULE in self._nvml.text("nvmlDeviceGetName", handle)
        gpu_w, module_w = _field_watts(self._nvml, handle, module=alone)[0]
        self._gpus.append(
            _Gpu(
                handle=handle,
                rail=rail,
                by_field=bool(gpu_w),  # no GPU draws nothing: 0 is no answer
                module=f"module{device.index}" if module_w else "",
            )
        )

    def _leave_out(self, rail: str, why: str) -> None:
        self._silent.append(rail)
        self._reasons.say(rail, "handle", why)

    def _add_watts(self, gpu: _Gpu, readings: dict[str, float]) -> None:
        power_w: float | None
        if gpu.by_field or gpu.module:
            (power_w, module_w), why = _field_watts(self._nvml, gpu.handle, module=bool(gpu.module))
            if gpu.module:
                self._add(readings, gpu.module, module_w, why)
        if not gpu.by_field:
            milliwatts, why = self._nvml.attempt("nvmlDeviceGetPowerUsage", gpu.handle)
            power_w = None if milliwatts is None else float(milliwatts) / 1000
        self._add(readings, gpu.rail, power_w, why)

    def _add(self, readings: dict[str, float], rail: str, power_w: float | None, why: str) -> None:
        if power_w is None:
            self._reasons.say(rail, "power", f"{rail}: power is not told ({why or 'not supported'})")
        elif not plausible_w(power_w):
            self._reasons.say(rail, "power", f"{rail}: NVML says {power_w:g} W, which cannot be")
        else:
            readings[rail] = power_w


def _field_watts(
    nvml: Nvml, handle: object, *, module: bool
) -> tuple[tuple[float | None, float | None], str]:
    """Instantaneous power of the GPU and of its module, and why there is none."""
    scopes = (SCOPE_GPU, SCOPE_MODULE) if module else (SCOPE_GPU,)
    wanted = [(POWER_INSTANT, scope) for scope in scopes]
    values, why = nvml.attempt("nvmlDeviceGetFieldValues", handle, wanted)
    if values is None:
        return (None, None), why
    told = [_watts(value) for value in values]
    return (told[0], told[1] if module else None), ""


def _watts(value: Any) -> float | None:  # noqa: ANN401 -- a structure of pynvml's, which has no types
    if value.nvmlReturn or not 0 <= value.valueType < len(_MEMBERS):
        return None
    return float(getattr(value.value, _MEMBERS[value.valueType])) / 1000
