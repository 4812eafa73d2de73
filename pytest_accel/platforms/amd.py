"""AMD GPUs that this process may use: through amdsmi where it works, else from the kernel's topology."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_accel.platforms.host import folder_names, number_fields, read_file
from pytest_accel.platforms.machine import DetectedDevice, select_visible

TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
DRM = Path("/sys/class/drm")

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdGpu:
    """One GPU as amdsmi or the kernel describes it; one GCD where a card has two."""

    name: str
    serial: str  # hexadecimal; the runtime's UUID is GPU-<serial>
    memory_bytes: int | None
    compute_units: int | None


def find(
    environ: Mapping[str, str] = os.environ, *, topology: Path = TOPOLOGY, drm: Path = DRM
) -> tuple[list[DetectedDevice], list[str]]:
    """Return the visible devices in HIP's order and problems; nothing without AMD GPUs."""
    if not topology.is_dir():  # no amdgpu driver; importing amdsmi would take long to fail
        return [], []
    gpus = _from_amdsmi() or from_topology(topology, drm)
    devices = visible_devices(gpus, environ)
    if gpus and not devices:
        return [], [
            f"ROCR_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES leaves none of {len(gpus)} x {gpus[0].name}"
        ]
    return devices, []


def visible_devices(gpus: Sequence[AmdGpu], environ: Mapping[str, str]) -> list[DetectedDevice]:
    """Apply ROCR_VISIBLE_DEVICES, then HIP_VISIBLE_DEVICES (CUDA_VISIBLE_DEVICES if unset) to the rest."""
    devices = [
        DetectedDevice(
            index=index,
            name=full_name(gpu.name, gpu.compute_units),
            vendor="amd",
            uuid=f"GPU-{gpu.serial}",
            memory_bytes=gpu.memory_bytes,
        )
        for index, gpu in enumerate(gpus)
    ]
    hip = environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES"))
    for spec in (environ.get("ROCR_VISIBLE_DEVICES"), hip):
        devices = [devices[index] for index in select_visible(spec, [each.uuid for each in devices])]
    return [replace(device, index=index) for index, device in enumerate(devices)]


def full_name(name: str, compute_units: int | None) -> str:
    """Tell MI250 and MI250X apart, which share an id and, depending on ROCm's version, a name.

    A GCD of an MI250X has 110 compute units, one of an MI250 104 (AMD's data sheets).
    """
    if "MI250" not in name.upper() or compute_units not in (104, 110):
        return name
    return "AMD Instinct MI250X" if compute_units == 110 else "AMD Instinct MI250"


def from_topology(topology: Path, drm: Path) -> list[AmdGpu]:
    """Return the GPUs of sysfs in the order of their nodes, which is the runtime's order."""
    gpus = []
    for node, properties in topology_nodes(topology):
        if not properties.get("simd_count"):  # a CPU
            continue
        product = drm / f"renderD{properties.get('drm_render_minor', 0)}" / "device" / "product_name"
        device_id = properties.get("device_id", 0)
        gpus.append(
            AmdGpu(
                name=read_file(product)[0] or NAMES_BY_ID.get(device_id, f"AMD device {device_id:#06x}"),
                serial=f"{properties.get('unique_id', 0):016x}",
                memory_bytes=_memory_bytes(node),
                compute_units=properties["simd_count"] // (properties.get("simd_per_cu") or 4),
            )
        )
    return gpus


def topology_nodes(topology: Path) -> Iterator[tuple[Path, dict[str, int]]]:
    """Yield the nodes of the kernel's topology in their order, with their properties."""
    for number in sorted(int(name) for name in folder_names(topology) if name.isdigit()):
        node = topology / str(number)
        yield node, _properties(node / "properties")


def _from_amdsmi() -> list[AmdGpu]:
    try:
        import amdsmi  # type: ignore[import-not-found, unused-ignore]

        amdsmi.amdsmi_init()
    except Exception:  # noqa: BLE001 -- KeyError, OSError, its own types: without ROCm it fails in many ways
        return []
    try:
        return [_described(amdsmi, handle) for handle in amdsmi.amdsmi_get_processor_handles()]
    except Exception:  # noqa: BLE001 -- as above; the kernel's topology is used instead
        return []
    finally:
        amdsmi.amdsmi_shut_down()


def _described(amdsmi: Any, handle: object) -> AmdGpu:  # noqa: ANN401 -- the package has no types
    asic = amdsmi.amdsmi_get_gpu_asic_info(handle)
    units = asic.get("num_compute_units")
    return AmdGpu(
        name=str(asic["market_name"]),
        serial=str(asic["asic_serial"]).removeprefix("0x").lower(),
        memory_bytes=int(amdsmi.amdsmi_get_gpu_memory_total(handle, amdsmi.AmdSmiMemoryType.VRAM)),
        compute_units=units if isinstance(units, int) else None,  # "N/A" where unknown
    )


def _memory_bytes(node: Path) -> int | None:
    banks = [_properties(path) for path in node.glob("mem_banks/*/properties")]
    sizes = [bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _FRAME_BUFFER_HEAPS]
    return sum(sizes) or None


def _properties(path: Path) -> dict[str, int]:
    return number_fields(read_file(path)[0].splitlines())
