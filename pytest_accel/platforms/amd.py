"""AMD GPUs that this process may use, from the kernel's topology."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_accel.platforms.devices import DetectedDevice, select_visible
from pytest_accel.platforms.host import SYS, kfd_nodes, kfd_properties, read_file

# PCI device ids (amdgpu.ids of libdrm), for cards without a product name.
NAMES_BY_ID = {
    0x7408: "AMD Instinct MI250X",
    0x740C: "AMD Instinct MI250X / MI250",
    0x740F: "AMD Instinct MI210",
    0x74A0: "AMD Instinct MI300A",
    0x74A1: "AMD Instinct MI300X",
    0x74A5: "AMD Instinct MI325X",
    0x74A9: "AMD Instinct MI300X HF",
    0x74B5: "AMD Instinct MI300X VF",
}
# Heaps of a memory bank that belong to the device: frame buffer, visible to the host or not (kfd_sysfs.h).
_FRAME_BUFFER_HEAPS = (1, 2)
# MI250 and MI250X share an id and, by the version of ROCm, a name; their GCDs' compute units differ (AMD's data sheets).
_MI250_BY_UNITS = {110: "AMD Instinct MI250X", 104: "AMD Instinct MI250"}


def find(
    environ: Mapping[str, str] = os.environ, *, sys: Path = SYS
) -> tuple[list[DetectedDevice], list[str]]:
    """Return the visible devices in HIP's order and problems; nothing without AMD GPUs."""
    gpus = list_gpus(sys)
    devices = visible_devices(gpus, environ)
    if gpus and not devices:
        named = f"{len(gpus)} x {gpus[0].name}"
        return [], [f"ROCR_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES leaves none of {named}"]
    return devices, []


def visible_devices(gpus: Sequence[DetectedDevice], environ: Mapping[str, str]) -> list[DetectedDevice]:
    """Apply ROCR_VISIBLE_DEVICES, then HIP_VISIBLE_DEVICES (CUDA_VISIBLE_DEVICES if unset) to the rest."""
    devices = list(gpus)
    hip = environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES"))
    for spec in (environ.get("ROCR_VISIBLE_DEVICES"), hip):
        devices = [devices[index] for index in select_visible(spec, [each.uuid for each in devices])]
    return [replace(device, index=index) for index, device in enumerate(devices)]


def list_gpus(sys: Path) -> list[DetectedDevice]:
    """Return all GPUs in the order of their nodes, which is the runtime's; a GCD where a card has two."""
    gpus: list[DetectedDevice] = []
    for node, properties in kfd_nodes(sys):
        if not properties.get("simd_count"):  # a CPU
            continue
        product = sys / f"class/drm/renderD{properties.get('drm_render_minor', 0)}/device/product_name"
        device_id = properties.get("device_id", 0)
        name = read_file(product)[0] or NAMES_BY_ID.get(device_id, f"AMD device {device_id:#06x}")
        if "MI250" in name.upper():
            units = properties["simd_count"] // (properties.get("simd_per_cu") or 4)
            name = _MI250_BY_UNITS.get(units, name)
        banks = [kfd_properties(path) for path in node.glob("mem_banks/*/properties")]
        sizes = [
            bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _FRAME_BUFFER_HEAPS
        ]
        gpus.append(
            DetectedDevice(
                index=len(gpus),
                name=name,
                vendor="amd",
                uuid=f"GPU-{properties.get('unique_id', 0):016x}",
                memory_bytes=sum(sizes) or None,
            )
        )
    return gpus
