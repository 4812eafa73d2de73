"""This machine: its processor and accelerators, the platforms that it satisfies, and the CPUs nearest to each device."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec

from pytest_accel.platforms import host, nvidia
from pytest_accel.platforms.catalogue import (
    Catalogue,
    DetectedDevice,
    PlatformName,
    folder_part,
    load_catalogue,
    select_visible,
)
from pytest_accel.platforms.host import HOST, HostFiles
from pytest_accel.stats.quantities import counted

# Arm processors report numbers, not names: implementer and part (Arm's MIDR_EL1, as in util-linux's lscpu).
_ARM_PARTS = {
    ("0x41", "0xd0c"): "Arm Neoverse-N1",
    ("0x41", "0xd40"): "Arm Neoverse-V1",
    ("0x41", "0xd49"): "Arm Neoverse-N2",
    ("0x41", "0xd4f"): "Arm Neoverse-V2",
    ("0x41", "0xd84"): "Arm Neoverse-V3",
    ("0x41", "0xd8e"): "Arm Neoverse-N3",
    ("0x46", "0x001"): "Fujitsu A64FX",
    ("0x48", "0xd01"): "HiSilicon Kunpeng-920",
    ("0xc0", "0xac3"): "Ampere-1",
    ("0xc0", "0xac4"): "Ampere-1a",
}
# Grace has the cores of Graviton4 and Axion; the chip's manufacturer id differs (DCGM reads it too).
_SOC_NAMES = {"jep106:036b:0241": "NVIDIA Grace"}
_MOST_NEEDS = 4  # platforms that the reason of a skip names


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    name: str
    model: str  # distinguishes models of one name: family-model on x86, implementer-part on Arm
    slug: str  # for a directory's name
    cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Detected hardware; `problems` explain devices that may be missing."""

    cpu: Cpu
    devices: tuple[DetectedDevice, ...] = ()
    nodes: int = 1
    problems: tuple[str, ...] = ()

    def devices_for(self, platform: PlatformName) -> tuple[DetectedDevice, ...]:
        fitting = [device for device in self.devices if device.key == platform.device]
        return tuple(fitting[: platform.per_node])

    def satisfies(self, platform: PlatformName) -> bool:
        return self.nodes >= platform.nodes and self._available(platform.device) >= platform.per_node

    def satisfied(self, catalogue: Catalogue) -> list[str]:
        return [name for name in catalogue.names() if self.satisfies(catalogue.parse(name))]

    def missing(self, platforms: Sequence[PlatformName], catalogue: Catalogue) -> str:
        """Return why none of these platforms is satisfied, as the reason of a skip."""
        needs = list(dict.fromkeys(_need(platform, catalogue) for platform in platforms))
        if len(needs) > _MOST_NEEDS:
            needs[_MOST_NEEDS - 1 :] = [f"{len(needs) - _MOST_NEEDS + 1} other platforms"]
        # Nodes are missing only if the devices of one node are present.
        if any(self._available(each.device) >= each.per_node for each in platforms):
            seen = f"{counted(self.nodes, 'node')} with {self.summary()}"
            has = f"this process sees {seen}: start it with torchrun or srun"
        elif all(platform.device == "cpu" for platform in platforms):
            has = f"this process may use {counted(self.cpu.cores, 'core')} of {self.cpu.name}"
        else:
            has = f"this machine has {self.summary()}"
        vendors = {catalogue.devices[each.device].vendor for each in platforms}
        if "graphcore" in vendors and (why := missing_poplar()):  # without it no IPU is found
            has += f"; {why}"
        return f"needs {' or '.join(needs)}; {has}"

    def summary(self) -> str:
        if self.devices:
            counts = Counter(device.name for device in self.devices)
            return ", ".join(f"{count} x {name}" for name, count in counts.items())
        why = f" ({'; '.join(self.problems)})" if self.problems else ""
        return f"no accelerator{why}, only CPU {self.cpu.name}"

    def disk_name(self, platform: PlatformName) -> str:
        """Return the directory of the platform's baselines: its name and the variant of the hardware."""
        if platform.device == "cpu":
            return f"{platform}-{self.cpu.slug}"
        keys = {device.variant.key for device in self.devices_for(platform) if device.variant is not None}
        # A node with several variants has its own baselines.
        return "-".join([str(platform), *filter(None, sorted(keys))])

    def _available(self, device: str) -> int:
        if device == "cpu":
            return self.cpu.cores
        return sum(1 for each in self.devices if each.key == device)


def detect(catalogue: Catalogue | None = None) -> Machine:
    machine = probe()
    catalogue = catalogue or load_catalogue()
    return replace(machine, devices=tuple(identified(device, catalogue) for device in machine.devices))


def identified(device: DetectedDevice, catalogue: Catalogue) -> DetectedDevice:
    key, variant = catalogue.identify(device.name, device.memory_bytes) or (None, None)
    return replace(device, key=key, variant=variant)


@cache
def probe() -> Machine:
    """Query the drivers, once a process; `probe.cache_clear()` forgets their answers."""
    devices: list[DetectedDevice] = []
    problems: list[str] = []
    for found, trouble in (nvidia.find(), find_amd(), find_ipus()):
        devices += found
        problems += trouble
    return Machine(cpu=find_cpu(), devices=tuple(devices), problems=tuple(problems))


def find_cpu(files: HostFiles = HOST) -> Cpu:
    cores, soc_id = len(host.allowed_cpus()), files.text("sys/devices/soc0/soc_id")
    return describe_cpu(files.text("proc/cpuinfo"), cores, soc_id)


def describe_cpu(cpuinfo: str, cores: int, soc_id: str = "") -> Cpu:
    """Return the processor that the text of /proc/cpuinfo describes, on x86 and on Arm."""
    pairs = (line.partition(":") for line in cpuinfo.split("\n\n", 1)[0].splitlines())
    fields = {key.strip(): value.strip() for key, colon, value in pairs if colon}
    if "CPU part" in fields:
        implementer, part = fields.get("CPU implementer", "?"), fields["CPU part"]
        name = _SOC_NAMES.get(soc_id.strip()) or _ARM_PARTS.get((implementer, part))
        name = name or f"Arm {implementer} {part}"
        model = f"{implementer.removeprefix('0x')}-{part.removeprefix('0x')}"
    elif "cpu family" in fields:
        name = _plain_model(fields.get("model name", fields.get("vendor_id", "")))
        model = f"{fields['cpu family']}-{fields.get('model', '?')}"
    else:  # neither x86 nor Arm, or no /proc
        import platform

        name, model = _plain_model(fields.get("cpu") or platform.processor() or platform.machine()), ""
    # Without the stepping, which does not change the speed.
    return Cpu(name=name, model=model, slug=folder_part(f"{name} {model}"), cores=cores)


def _plain_model(model_name: str) -> str:
    """Return a model's name without trademarks, clock and core count, which virtual machines invent."""
    name = re.sub(r"\((R|TM|C)\)", "", model_name, flags=re.IGNORECASE)
    name = re.sub(r"\s@.*|\b\d+-Core\b|\bCPU\b", "", name)
    return re.sub(r"\s+", " ", name).strip()


def _need(platform: PlatformName, catalogue: Catalogue) -> str:
    each = f"{platform.per_node} x {catalogue.devices[platform.device].title}"
    if platform.device == "cpu":
        each = counted(platform.per_node, "CPU core")
    return each if platform.nodes == 1 else f"{platform.nodes} nodes of {each}"


# PCI device ids (amdgpu.ids of libdrm), for cards without a product name.
_AMD_NAMES = {
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


def find_amd(
    environ: Mapping[str, str] = os.environ, files: HostFiles = HOST
) -> tuple[list[DetectedDevice], list[str]]:
    gpus = _list_amd(files)
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


def _list_amd(files: HostFiles) -> list[DetectedDevice]:
    """Return all GPUs in the order of their nodes, which is the runtime's; a GCD where a card has two."""
    gpus: list[DetectedDevice] = []
    for node, properties in host.kfd_nodes(files):
        if not properties.get("simd_count"):  # a CPU
            continue
        card = f"sys/class/drm/renderD{properties.get('drm_render_minor', 0)}"
        device_id = properties.get("device_id", 0)
        name = files.text(f"{card}/device/product_name") or _AMD_NAMES.get(
            device_id, f"AMD device {device_id:#06x}"
        )
        if "MI250" in name.upper():
            units = properties["simd_count"] // (properties.get("simd_per_cu") or 4)
            name = _MI250_BY_UNITS.get(units, name)
        names = files.names(f"{node}/mem_banks")
        banks = [host.number_fields(files.text(f"{node}/mem_banks/{each}/properties")) for each in names]
        own = (each for each in banks if each.get("heap_type") in _FRAME_BUFFER_HEAPS)
        memory = sum(each.get("size_in_bytes", 0) for each in own) or None
        uuid = f"GPU-{properties.get('unique_id', 0):016x}"
        gpus.append(DetectedDevice(index=len(gpus), name=name, vendor="amd", uuid=uuid, memory_bytes=memory))
    return gpus


# "ipu architecture"; Bow is the same design with a higher clock.
_IPUS = {"ipu2": "GC200", "ipu21": "Bow"}


def missing_poplar() -> str:
    """Return what to install where this Python has no access to IPUs; empty where it has."""
    missing = [name for name in ("gcipuinfo", "poptorch") if find_spec(name) is None]
    remedy = (
        "They come with Graphcore's Poplar SDK and not from PyPI: enable the SDK, and install its poptorch wheel, which "
        "says the version of Python and torch that it needs"
    )
    return f"not installed here: {' and '.join(missing)}. {remedy}" if missing else ""


def find_ipus() -> tuple[list[DetectedDevice], list[str]]:
    """Return the Graphcore IPUs of the active partition, and problems; nothing without the Poplar SDK, which is not on PyPI."""
    try:
        import gcipuinfo  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return [], []
    try:
        listed: list[Mapping[str, str]] = list(gcipuinfo.gcipuinfo().getDevices())
    except Exception as error:  # noqa: BLE001 -- a bound C++ library must not end a session on other hardware
        return [], [f"gcipuinfo: {error}"]
    devices = []
    for index, ipu in enumerate(listed):
        name = f"Graphcore {_IPUS.get(ipu.get('ipu architecture', ''), ipu.get('board type', 'IPU'))}"
        uuid = ipu_uuid(ipu, index)
        devices.append(DetectedDevice(index=index, name=name, vendor="graphcore", uuid=uuid))
    return devices, []


def ipu_uuid(ipu: Mapping[str, str], index: int) -> str:
    """Return the serial number of the board and the place on it."""
    return f"{ipu.get('board serial number', '')}/{ipu.get('board ipu index', index)}"


def device_affinities(
    uuids: Sequence[str | None], files: HostFiles = HOST
) -> list[host.DeviceAffinity | None]:
    """Return the affinity of each device; None for None, which is a rank without a device."""
    if all(uuid is None for uuid in uuids):
        return [None] * len(uuids)
    with nvidia.opened() as nvml:
        return [None if uuid is None else _affinity(nvml, uuid, files) for uuid in uuids]


def _affinity(nvml: nvidia.Nvml, uuid: str, files: HostFiles) -> host.DeviceAffinity:
    handle = nvml.handle(uuid)
    if handle is None:
        unknown = host.DeviceAffinity(problem=f"no driver knows {uuid or 'a device without UUID'}")
        return host.kfd_affinity(uuid, files) or unknown
    info, problem = nvml.attempt("nvmlDeviceGetPciInfo", handle)
    if info is None:
        return host.DeviceAffinity(problem=f"NVML does not report the bus of {uuid}: {problem}")
    return host.pci_affinity(str(info.busId), files)
