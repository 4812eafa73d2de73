"""Power and energy of NVIDIA GPUs through NVML.

The energy counter ticks about every 100 ms and a call takes milliseconds (H200: 3.2 ms, at most 15), so it is
read at the ends of a window of seconds: over 5 s a tick is 2 %. A power reading takes microseconds (H200: 3.1 by
the field of instantaneous power, 1.2 by `nvmlDeviceGetPowerUsage`, an average over a second on most GPUs). Over 6 s
of matrix products the counter gave 688.16 W, instantaneous power at 50 Hz 688.09 W, the average 692.25 W.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_accel.platforms.nvidia import Nvml, close, open_nvml
from pytest_accel.power import grace
from pytest_accel.power.source import PowerDevice, PowerNode, Reasons, device_rails, plausible_w
from pytest_accel.stats.energy import Rail

VENDOR = "nvidia"
# Fields and scopes of nvml.h, for versions of nvidia-ml-py that do not name them.
POWER_INSTANT, SCOPE_GPU, SCOPE_MODULE = 186, 0, 1
# nvmlValueType_t: the member of the union that holds the number.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
# One GPU per module. Other superchips have two, which would both report the same module.
_ONE_GPU_PER_MODULE = "GH200"


def open_source(node: PowerNode) -> NvmlSource:
    devices = [device for device in node.devices if device.vendor == VENDOR]
    # NVML does not report the socket of a GPU, so that two sources of one module could not be matched.
    return NvmlSource(devices, modules=not node.metered and not grace.has_module_rails(node.root))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpu:
    handle: object
    rail: str
    by_field: bool  # it reports instantaneous power
    module: str  # name of the module's rail; empty if it reports none


class NvmlSource:
    """The GPUs with these UUIDs, each once: NVML's indices ignore CUDA_VISIBLE_DEVICES."""

    name = "NVML"

    def __init__(self, devices: Sequence[PowerDevice], *, modules: bool = True) -> None:
        """`modules=False` where other sensors report the power of Grace Hopper modules."""
        self._reasons = Reasons()
        self._nvml = open_nvml()
        self._closed = False
        self._gpus: list[_Gpu] = []
        self._silent: list[str] = []
        if self._nvml.problem:
            self._reasons.add("", "", self._nvml.problem)
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
        rails = list(device_rails("gpu", self._silent, []))
        for gpu in self._gpus:
            rails.append(Rail(name=gpu.rail, scope="device", kind="gpu", within=gpu.module))
            if gpu.module:
                rails.append(Rail(name=gpu.module, scope="node", kind="module"))
        return tuple(rails)

    def joules(self) -> Mapping[str, float]:
        readings: dict[str, float] = {}
        for gpu in () if self._closed else self._gpus:
            millijoules, why = self._nvml.attempt("nvmlDeviceGetTotalEnergyConsumption", gpu.handle)
            if millijoules is None:  # older than Volta, or a lost GPU
                self._reasons.add(gpu.rail, "energy", f"{gpu.rail}: no energy counter ({why})")
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
            self._leave_out(rail, f"MIG slice {profile}: NVML reports energy of whole GPUs only")
            return
        handle = self._nvml.handle(device.uuid)
        if handle is None:
            self._leave_out(rail, f"{rail}: NVML does not know this device ({device.uuid or 'no UUID'})")
            return
        alone = modules and _ONE_GPU_PER_MODULE in self._nvml.text("nvmlDeviceGetName", handle)
        gpu_w, module_w = _field_watts(self._nvml, handle, module=alone)[0]
        self._gpus.append(
            _Gpu(
                handle=handle,
                rail=rail,
                by_field=bool(gpu_w),  # 0 is no reading: every GPU draws power
                module=f"module{device.index}" if module_w else "",
            )
        )

    def _leave_out(self, rail: str, why: str) -> None:
        self._silent.append(rail)
        self._reasons.add(rail, "handle", why)

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
            self._reasons.add(rail, "power", f"{rail}: power cannot be read ({why or 'not supported'})")
        elif not plausible_w(power_w):
            self._reasons.add(rail, "power", f"{rail}: NVML says {power_w:g} W, which is impossible")
        else:
            readings[rail] = power_w


def _field_watts(
    nvml: Nvml, handle: object, *, module: bool
) -> tuple[tuple[float | None, float | None], str]:
    """Return instantaneous power of the GPU and of its module, and why there is none."""
    scopes = (SCOPE_GPU, SCOPE_MODULE) if module else (SCOPE_GPU,)
    wanted = [(POWER_INSTANT, scope) for scope in scopes]
    values, why = nvml.attempt("nvmlDeviceGetFieldValues", handle, wanted)
    if values is None:
        return (None, None), why
    powers_w = [_watts(value) for value in values]
    return (powers_w[0], powers_w[1] if module else None), ""


def _watts(value: Any) -> float | None:  # noqa: ANN401 -- a structure of pynvml's, which has no types
    if value.nvmlReturn or not 0 <= value.valueType < len(_MEMBERS):
        return None
    return float(getattr(value.value, _MEMBERS[value.valueType])) / 1000
