"""AMD GPUs that this process may use: through amdsmi where it works, else from the kernel's topology."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_accel.platforms import visible
from pytest_accel.platforms.machine import Device

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
DRM = Path("/sys/class/drm")

# PCI device ids of the parts in the catalogue (amdgpu.ids of libdrm), for cards that carry no name.
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
# Heaps of a memory bank that are the device's own: frame buffer, visible to the host or not (kfd_sysfs.h).
_FRAME_BUFFER_HEAPS = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What amdsmi or the kernel says of one GPU; of a GCD where a card has two."""

    name: str
    serial: str  # hexadecimal; the runtime's UUID is GPU-<serial>
    memory_bytes: int | None
    compute_units: int | None


def find(
    environ: Mapping[str, str] = os.environ, *, topology: Path = TOPOLOGY, drm: Path = DRM
) -> tuple[list[Device], list[str]]:
    """The visible devices in HIP's order, and the problems; a machine without AMD GPUs has neither."""
    if not topology.is_dir():  # no amdgpu driver: do not even import amdsmi, which takes long to fail
        return [], []
    gpus = _from_amdsmi()
    if not gpus:
        gpus = from_topology(topology, drm)
    devices = visible_devices(gpus, environ)
    if gpus and not devices:
        return [], [
            f"ROCR_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES leaves none of {len(gpus)} x {gpus[0].name}"
        ]
    return devices, []


def visible_devices(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> list[Device]:
    """ROCR_VISIBLE_DEVICES first; HIP_VISIBLE_DEVICES (or CUDA_…, where it is unset) counts what is left."""
    devices = [
        Device(
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
        devices = [devices[index] for index in visible.select(spec, [each.uuid for each in devices])]
    return [replace(device, index=index) for index, device in enumerate(devices)]


def full_name(name: str, compute_units: int | None) -> str:
    """MI250 and MI250X share an id, and a name that depends on ROCm's version; their compute units differ.

    110 for each GCD of an MI250X, 104 of an MI250 (AMD's data sheets).
    """
    if "MI250" not in name.upper() or compute_units not in (104, 110):
        return name
    return "AMD Instinct MI250X" if compute_units == 110 else "AMD Instinct MI250"


def from_topology(topology: Path, drm: Path) -> list[Gpu]:
    """GPUs from sysfs, in the order of their nodes, which is the order of the runtime."""
    gpus = []
    for node in sorted(_nodes(topology), key=lambda path: int(path.name)):
        properties = _properties(node / "properties")
        if not properties.get("simd_count"):  # a CPU
            continue
        product = drm / f"renderD{properties.get('drm_render_minor', 0)}" / "device" / "product_name"
        device_id = properties.get("device_id", 0)
        gpus.append(
            Gpu(
                name=_read(product) or NAMES_BY_ID.get(device_id, f"AMD device {device_id:#06x}"),
                serial=f"{properties.get('unique_id', 0):016x}",
                memory_bytes=_memory_bytes(node),
                compute_units=properties["simd_count"] // (properties.get("simd_per_cu") or 4),
            )
        )
    return gpus


def _from_amdsmi() -> list[Gpu]:
    try:
        import amdsmi  # type: ignore[import-not-found, unused-ignore]

        amdsmi.amdsmi_init()
    except Exception:  # noqa: BLE001 -- KeyError, OSError, its own types: without ROCm it fails in many ways
        return []
    try:
        return [_asked(handle) for handle in amdsmi.amdsmi_get_processor_handles()]
    except Exception:  # noqa: BLE001 -- as above; the kernel's topology answers instead
        return []
    finally:
        amdsmi.amdsmi_shut_down()


def _asked(handle: object) -> Gpu:
    import amdsmi  # type: ignore[import-not-found, unused-ignore]

    asic = amdsmi.amdsmi_get_gpu_asic_info(handle)
    units = asic.get("num_compute_units")
    return Gpu(
        name=str(asic["market_name"]),
        serial=str(asic["asic_serial"]).removeprefix("0x").lower(),
        memory_bytes=int(amdsmi.amdsmi_get_gpu_memory_total(handle, amdsmi.AmdSmiMemoryType.VRAM)),
        compute_units=units if isinstance(units, int) else None,  # "N/A" where unknown
    )


def _nodes(topology: Path) -> list[Path]:
    return [path for path in topology.iterdir() if path.name.isdigit()]


def _memory_bytes(node: Path) -> int | None:
    banks = [_properties(path) for path in node.glob("mem_banks/*/properties")]
    total = sum(
        bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _FRAME_BUFFER_HEAPS
    )
    return total or None


def _properties(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in _read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:  # a container may hide parts of sysfs
        return ""
