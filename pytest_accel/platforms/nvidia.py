"""NVIDIA GPUs that this process may use, through NVML: no CUDA context, no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_accel.platforms import visible
from pytest_accel.platforms.machine import Device

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as NVML lists it; in MIG mode its slices are the devices and it is none itself."""

    device: Device
    mig_mode: bool = False
    slices: tuple[Device, ...] = ()


def find(environ: Mapping[str, str] = os.environ) -> tuple[list[Device], list[str]]:
    """The visible devices in CUDA's order, and the problems."""
    try:
        import pynvml
    except ImportError:
        return [], ["NVML: the package nvidia-ml-py is not installed"]
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [], [f"NVML: {_reason(error)}"]
    try:
        gpus, problems = _list()
    except pynvml.NVMLError as error:
        return [], [f"NVML: {_reason(error)}"]
    finally:
        pynvml.nvmlShutdown()
    devices = visible_devices(gpus, environ.get("CUDA_VISIBLE_DEVICES"))
    return devices, problems + _notes(gpus, devices, environ)


def visible_devices(gpus: Sequence[Gpu], spec: str | None) -> list[Device]:
    """What CUDA enumerates of these GPUs, given CUDA_VISIBLE_DEVICES, numbered from 0.

    NVIDIA's MIG guide: a process enumerates one MIG slice, the first, and then no other device.
    """
    slices = [each for gpu in gpus for each in gpu.slices]
    uuids = [gpu.device.uuid for gpu in gpus] + [each.uuid for each in slices]
    chosen: list[Device] = []
    for index in visible.select(spec, uuids, numbered=len(gpus)):
        if index >= len(gpus):
            chosen.append(slices[index - len(gpus)])
        elif gpus[index].mig_mode:
            chosen.extend(gpus[index].slices[:1])
        else:
            chosen.append(gpus[index].device)
    first_slice = [device for device in chosen if device.mig is not None][:1]
    return [replace(device, index=index) for index, device in enumerate(first_slice or chosen)]


def _list() -> tuple[list[Gpu], list[str]]:
    import pynvml

    gpus: list[Gpu] = []
    problems: list[str] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            gpus.append(_gpu(pynvml.nvmlDeviceGetHandleByIndex(index), index))
        except pynvml.NVMLError as error:  # one lost GPU must not hide the others
            problems.append(f"NVML: GPU {index}: {_reason(error)}")
    return gpus, problems


def _gpu(handle: object, index: int) -> Gpu:
    import pynvml

    device = Device(
        index=index,
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        memory_bytes=_memory_bytes(handle),
    )
    mode = _answer(pynvml.nvmlDeviceGetMigMode, handle)  # without MIG: "not supported"
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return Gpu(device=device)
    most = _answer(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    found = [_answer(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number) for number in range(most)]
    # The numbers may have gaps.
    return Gpu(
        device=device, mig_mode=True, slices=tuple(_slice(mig, device) for mig in found if mig is not None)
    )


def _slice(handle: object, parent: Device) -> Device:
    import pynvml

    name = _text(pynvml.nvmlDeviceGetName(handle))
    profile = name.partition(" MIG ")[2] or _profile(handle)
    return Device(
        index=parent.index,
        name=name if " MIG " in name else f"{parent.name} MIG {profile}",
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        memory_bytes=_memory_bytes(handle),
        mig=profile,
    )


def _profile(handle: object) -> str:
    """The profile's name from its attributes, for drivers that name a slice like its GPU."""
    import pynvml

    attributes = _answer(pynvml.nvmlDeviceGetAttributes, handle)
    if attributes is None:
        return "unknown"
    return f"{attributes.gpuInstanceSliceCount}g.{round(attributes.memorySizeMB / 1024)}gb"


def _memory_bytes(handle: object) -> int | None:
    import pynvml

    memory = _answer(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return None if memory is None else int(memory.total)


def _answer(ask: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401 -- pynvml has no types
    import pynvml

    try:
        return ask(*args)
    except pynvml.NVMLError:
        return None


def _notes(gpus: Sequence[Gpu], devices: Sequence[Device], environ: Mapping[str, str]) -> list[str]:
    spec = environ.get("CUDA_VISIBLE_DEVICES")
    notes = []
    if gpus and not devices:
        named = f"CUDA_VISIBLE_DEVICES={spec!r} leaves none of" if spec is not None else "no MIG slice on"
        notes.append(f"{named} {len(gpus)} x {gpus[0].device.name}")
    mixed = len({gpu.device.name for gpu in gpus}) > 1
    if (
        mixed
        and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
        and (spec is None or visible.uses_ordinals(spec))
    ):
        notes.append(
            "GPUs of different models: CUDA counts the fastest first, NVML by bus, so that their numbers may differ."
            " Set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name them by UUID"
        )
    return notes


def _reason(error: Exception) -> str:
    import pynvml

    known = {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "driver library not found",
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "driver not loaded",
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver and library versions differ; restart after the upgrade",
        pynvml.NVML_ERROR_NO_PERMISSION: "no permission to talk to the driver",
    }
    return known.get(getattr(error, "value", None), str(error).lower())


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # bytes before nvidia-ml-py 11.510
