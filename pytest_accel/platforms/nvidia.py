"""NVIDIA GPUs that this process may use, through NVML: no CUDA context, no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_accel.platforms import visible
from pytest_accel.platforms.machine import Device
from pytest_accel.platforms.nvml import Nvml, Refused, decoded, opened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as NVML lists it; in MIG mode its slices are the devices and it is none itself."""

    device: Device
    mig_mode: bool = False
    slices: tuple[Device, ...] = ()


def find(environ: Mapping[str, str] = os.environ) -> tuple[list[Device], list[str]]:
    """The visible devices in CUDA's order, and the problems."""
    with opened() as nvml:
        try:
            gpus, problems = _list(nvml)
        except Refused as refused:
            return [], [f"NVML: {refused}"]
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


def _list(nvml: Nvml) -> tuple[list[Gpu], list[str]]:
    gpus: list[Gpu] = []
    problems: list[str] = []
    for index in range(nvml.demand("nvmlDeviceGetCount")):
        try:
            gpus.append(_gpu(nvml, nvml.demand("nvmlDeviceGetHandleByIndex", index), index))
        except Refused as refused:  # one lost GPU must not hide the others
            problems.append(f"NVML: GPU {index}: {refused}")
    return gpus, problems


def _gpu(nvml: Nvml, handle: object, index: int) -> Gpu:
    device = Device(
        index=index,
        name=decoded(nvml.demand("nvmlDeviceGetName", handle)),
        uuid=decoded(nvml.demand("nvmlDeviceGetUUID", handle)),
        memory_bytes=_memory_bytes(nvml, handle),
    )
    mode = nvml.ask("nvmlDeviceGetMigMode", handle)  # without MIG: "not supported"
    if mode is None or mode[0] != nvml.constant("NVML_DEVICE_MIG_ENABLE"):
        return Gpu(device=device)
    most = nvml.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0
    found = [nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, number) for number in range(most)]
    # The numbers may have gaps.
    slices = tuple(_slice(nvml, mig, device) for mig in found if mig is not None)
    return Gpu(device=device, mig_mode=True, slices=slices)


def _slice(nvml: Nvml, handle: object, parent: Device) -> Device:
    name = decoded(nvml.demand("nvmlDeviceGetName", handle))
    profile = name.partition(" MIG ")[2] or _profile(nvml, handle)
    return Device(
        index=parent.index,
        name=name if " MIG " in name else f"{parent.name} MIG {profile}",
        uuid=decoded(nvml.demand("nvmlDeviceGetUUID", handle)),
        memory_bytes=_memory_bytes(nvml, handle),
        mig=profile,
    )


def _profile(nvml: Nvml, handle: object) -> str:
    """The profile's name from its attributes, for drivers that name a slice like its GPU."""
    attributes = nvml.ask("nvmlDeviceGetAttributes", handle)
    if attributes is None:
        return "unknown"
    return f"{attributes.gpuInstanceSliceCount}g.{round(attributes.memorySizeMB / 1024)}gb"


def _memory_bytes(nvml: Nvml, handle: object) -> int | None:
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    return None if memory is None else int(memory.total)


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
