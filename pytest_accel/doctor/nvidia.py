"""NVIDIA's GPUs as a doctor sees them: asked through NVML, with no CUDA context of our own on them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_accel.doctor.findings import Sheet
from pytest_accel.doctor.gpus import GROUP, GpuProcess, GpuState, judge
from pytest_accel.platforms import nvidia
from pytest_accel.platforms.host import Files, whole_number
from pytest_accel.platforms.numa import DeviceAffinity, device_affinities, format_list, topology
from pytest_accel.platforms.nvidia import NO_PACKAGE, Nvml, Refused, decoded, opened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_accel.doctor.finding import Finding

_VENDOR, _DISPLAY_CLASS = "0x10de", "0x03"  # of the PCI ids: NVIDIA; VGA and 3D controllers


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The findings, and what other checks need to know: how many GPUs, and what the driver can run."""

    findings: tuple[Finding, ...] = ()
    gpus: int = 0
    cuda: tuple[int, int] | None = None  # the newest CUDA of the driver


def examine(files: Files, environ: Mapping[str, str], cpus: frozenset[int]) -> Devices:
    """All GPUs that NVML lists, visible to CUDA or not."""
    with opened() as nvml:
        count, why = nvml.attempt("nvmlDeviceGetCount")
        if count is None:
            # Without a driver it is not known whether a GPU on the bus is meant for us.
            return Devices(findings=tuple(_closed(files, why)), gpus=int(_loaded(files)))
        findings = [_driver(nvml)]
        states: list[GpuState] = []
        for index in range(count):
            try:
                states.append(read(nvml, index))
                findings += judge(states[-1], own_pid=os.getpid(), in_use=_has_context())
            except Refused as refused:
                findings.append(_lost(index, str(refused)))
        near = device_affinities(
            [state.uuid for state in states], topology(files.root / "sys"), sys=files.root / "sys"
        )
        findings += [_near(state, place, cpus) for state, place in zip(states, near, strict=True)]
        if count:
            findings += _visible(environ, count)
        return Devices(findings=tuple(findings), gpus=count, cuda=_cuda(nvml))


def on_the_bus(files: Files) -> list[str]:
    """Addresses of NVIDIA's GPUs by the kernel alone, with or without a driver."""
    root = "sys/bus/pci/devices"
    return [
        name
        for name in files.names(root)
        if files.text(f"{root}/{name}/vendor") == _VENDOR
        and files.text(f"{root}/{name}/class").startswith(_DISPLAY_CLASS)
    ]


def read(nvml: Nvml, index: int) -> GpuState:
    """Every answer on one GPU; `Refused` where it has not even a name, as a lost one."""
    handle = nvml.demand("nvmlDeviceGetHandleByIndex", index)
    ask = nvml.ask
    sm, volatile, ever = (
        nvml.constant(name) for name in ("NVML_CLOCK_SM", "NVML_VOLATILE_ECC", "NVML_AGGREGATE_ECC")
    )
    uncorrected = nvml.constant("NVML_MEMORY_ERROR_TYPE_UNCORRECTED")
    limits = [ask(f"nvmlDeviceGet{name}", handle) for name in ("PowerManagementLimit", "EnforcedPowerLimit")]
    ecc = ask("nvmlDeviceGetEccMode", handle) or (None, None)
    mig = (ask("nvmlDeviceGetMigMode", handle) or (None,))[0]
    remapped = ask("nvmlDeviceGetRemappedRows", handle) or (None,) * 4
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if reasons is None:  # drivers before 535 have the older name only
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    total, used = _memory(nvml, handle)
    return GpuState(
        index=index,
        name=decoded(nvml.demand("nvmlDeviceGetName", handle)),
        uuid=decoded(nvml.demand("nvmlDeviceGetUUID", handle)),
        memory_bytes=total,
        memory_used_bytes=used,
        utilisation_percent=getattr(ask("nvmlDeviceGetUtilizationRates", handle), "gpu", None),
        processes=_processes(nvml, handle),
        sm_mhz=ask("nvmlDeviceGetClockInfo", handle, sm),
        sm_max_mhz=ask("nvmlDeviceGetMaxClockInfo", handle, sm),
        sm_application_mhz=ask("nvmlDeviceGetApplicationsClock", handle, sm),
        sm_default_mhz=ask("nvmlDeviceGetDefaultApplicationsClock", handle, sm),
        power_mw=ask("nvmlDeviceGetPowerUsage", handle),
        # The lower one counts: a node or a Grace Hopper module may enforce less than was set.
        power_limit_mw=min((limit for limit in limits if limit), default=None),
        power_limit_default_mw=ask("nvmlDeviceGetPowerManagementDefaultLimit", handle),
        temperature_c=ask("nvmlDeviceGetTemperature", handle, nvml.constant("NVML_TEMPERATURE_GPU")),
        event_reasons=reasons,
        persistence=_flag(ask("nvmlDeviceGetPersistenceMode", handle)),
        ecc=_flag(ecc[0]),
        ecc_pending=_flag(ecc[1]),
        uncorrected_now=ask("nvmlDeviceGetTotalEccErrors", handle, uncorrected, volatile),
        uncorrected_ever=ask("nvmlDeviceGetTotalEccErrors", handle, uncorrected, ever),
        remapping_pending=_flag(remapped[2]),
        remapping_failed=_flag(remapped[3]),
        mig=_flag(mig),
        slices=_slices(nvml, handle) if mig else (),
        pcie_generation=ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        pcie_generation_max=ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        pcie_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
    )


def _memory(nvml: Nvml, handle: object) -> tuple[int | None, int | None]:
    """Total and used. The second version leaves out what the driver keeps for itself, hundreds of MiB."""
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle, nvml.constant("nvmlMemory_v2"))
    if memory is None:  # a driver before 510
        memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    return (None, None) if memory is None else (int(memory.total), int(memory.used))


def _processes(nvml: Nvml, handle: object) -> tuple[GpuProcess, ...] | None:
    listed = nvml.ask("nvmlDeviceGetComputeRunningProcesses", handle)
    if listed is None:
        return None
    return tuple(GpuProcess(pid=each.pid, memory_bytes=each.usedGpuMemory) for each in listed)


def _slices(nvml: Nvml, handle: object) -> tuple[str, ...]:
    most = nvml.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0
    found = (nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, number) for number in range(most))
    names = [nvml.text("nvmlDeviceGetName", each) for each in found if each is not None]
    return tuple(name.partition(" MIG ")[2] or "unnamed" for name in names)


def _has_context() -> bool:
    """Whether this very process is on a GPU already; asked of torch only where somebody has imported it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return bool(cuda is not None and cuda.is_initialized())


def _flag(value: Any) -> bool | None:  # noqa: ANN401 -- NVML's 0 and 1
    return None if value is None else bool(value)


def _cuda(nvml: Nvml) -> tuple[int, int] | None:
    number = nvml.ask("nvmlSystemGetCudaDriverVersion_v2") or 0  # 12040 is 12.4
    return (number // 1000, number % 1000 // 10) if number else None


def _driver(nvml: Nvml) -> Finding:
    cuda = _cuda(nvml)
    version = nvml.text("nvmlSystemGetDriverVersion") or "version not told"
    return Sheet(group=GROUP).ok(
        "driver", f"{version}, CUDA {f'{cuda[0]}.{cuda[1]}' if cuda else 'not told'}"
    )


def _lost(index: int, why: str) -> Finding:
    return Sheet(group=GROUP, of=f"GPU {index}").problem(
        "device",
        f"does not answer: {why}",
        "`dmesg | grep Xid` says what happened; restart the node, and take it out of service if it comes back.",
    )


def _near(state: GpuState, place: DeviceAffinity | None, cpus: frozenset[int]) -> Finding:
    sheet = Sheet(group=GROUP, of=f"GPU {state.index}")
    if place is None or not place.cpus:
        return sheet.unknown("NUMA", place.problem if place else "no UUID")
    text = f"near CPUs {format_list(place.cpus)}"
    if cpus and not cpus & place.cpus:
        return sheet.warning(
            "NUMA",
            f"{text}; this process may only use {format_list(cpus)}, on another NUMA node",
            "Ask the scheduler for CPUs beside the GPU, or start under `numactl` or `taskset` with those.",
        )
    return sheet.ok("NUMA", text)


def _visible(environ: Mapping[str, str], count: int) -> list[Finding]:
    """What CUDA will see of them, and in which order."""
    sheet = Sheet(group=GROUP)
    devices, notes = nvidia.find(environ)
    notes = [note for note in notes if not note.startswith("NVML: ")]  # lost ones are told above
    if not devices:
        return [
            sheet.problem(
                "visible",
                notes[0] if notes else "CUDA would see no device",
                "Unset CUDA_VISIBLE_DEVICES or name GPUs that are there; make MIG slices where MIG is on.",
            )
        ]
    named = "CUDA_VISIBLE_DEVICES" in environ
    text = f"CUDA sees {len(devices)} of {count}{' (CUDA_VISIBLE_DEVICES)' if named else ''}"
    if notes:
        return [
            sheet.warning("visible", f"{text}; {notes[0].partition('. ')[0]}", notes[0].partition(". ")[2])
        ]
    return [sheet.ok("visible", text)]


def _closed(files: Files, why: str) -> list[Finding]:
    """NVML is not there: of no interest without a GPU, a problem beside a driver that is loaded."""
    sheet = Sheet(group=GROUP)
    if _loaded(files):
        remedy = {
            NO_PACKAGE: "pip install nvidia-ml-py: without it no GPU is found.",
            "driver and library versions differ; restart after the upgrade": "Restart the node or the container.",
        }.get(
            why, "Look with `nvidia-smi`; in a container, give it the driver's libraries (--gpus all, --nv)."
        )
        return [sheet.problem("driver", f"NVIDIA's driver is loaded, and NVML says: {why}", remedy)]
    if on_bus := on_the_bus(files):
        return [
            sheet.warning(
                "driver",
                f"{len(on_bus)} x NVIDIA on the PCI bus, and no driver here: {why}",
                "Install the driver, or give the container its GPU (--gpus all, --nv). Nothing to do if it is not "
                "meant for you.",
            )
        ]
    return []


def _loaded(files: Files) -> bool:
    """Whether the kernel has NVIDIA's driver; a container may hide the file and show the device."""
    return files.exists("proc/driver/nvidia/version") or any(
        name.startswith("nvidia") and whole_number(name.removeprefix("nvidia")) is not None
        for name in files.names("dev")
    )
