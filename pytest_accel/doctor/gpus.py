"""Checks of NVIDIA GPUs: NVML's answers, read without a CUDA context, and what they mean for a measurement."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_accel.doctor.findings import Finding, Sheet
from pytest_accel.platforms import nvidia
from pytest_accel.platforms.host import HostFiles, whole_number
from pytest_accel.platforms.numa import DeviceAffinity, device_affinities, format_list, topology
from pytest_accel.platforms.nvidia import (
    EVENTS,
    IDLE,
    KNOWN,
    NO_PACKAGE,
    Nvml,
    Refused,
    decoded,
    opened,
    short_uuid,
)
from pytest_accel.stats.quantities import counted, gibibytes

GROUP = "devices"

# An idle driver or a display server holds less. A CUDA context alone takes hundreds of MiB.
FOREIGN_BYTES = 128 << 20
BUSY_PERCENT = 5  # a monitoring agent that queries NVML every second causes less
NOT_SUPPORTED = "this GPU or its driver does not support it"
_VENDOR, _DISPLAY_CLASS = "0x10de", "0x03"  # PCI ids: NVIDIA; VGA and 3D controllers


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """NVML's answers on one GPU; None where it has none."""

    index: int
    name: str
    uuid: str
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilization_percent: int | None = None
    pids: tuple[int, ...] | None = None
    sm_mhz: int | None = None
    sm_max_mhz: int | None = None
    sm_application_mhz: int | None = None
    sm_default_mhz: int | None = None
    power_mw: int | None = None
    power_limit_mw: int | None = None
    power_limit_default_mw: int | None = None
    temperature_c: int | None = None
    event_reasons: int | None = None
    persistence: bool | None = None
    ecc: bool | None = None
    ecc_pending: bool | None = None
    uncorrected_now: int | None = None  # since the driver was loaded
    uncorrected_ever: int | None = None
    remapping_pending: bool | None = None
    remapping_failed: bool | None = None
    mig: bool | None = None
    slices: tuple[str, ...] = ()  # their profiles
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None

    @property
    def idle(self) -> bool:
        if self.event_reasons is not None:
            return bool(self.event_reasons & IDLE)
        return self.utilization_percent == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaState:
    """Findings, and what other checks need: the number of GPUs and the newest CUDA of the driver."""

    findings: tuple[Finding, ...] = ()
    gpus: int = 0
    cuda: tuple[int, int] | None = None


def examine(files: HostFiles, environ: Mapping[str, str], cpus: frozenset[int]) -> NvidiaState:
    """Check all GPUs that NVML lists, visible to CUDA or not."""
    with opened() as nvml:
        count, why = nvml.attempt("nvmlDeviceGetCount")
        if count is None:
            return NvidiaState(findings=tuple(_closed(files, why)), gpus=int(_is_loaded(files)))
        cuda = nvml.cuda_version()
        version = nvml.text("nvmlSystemGetDriverVersion") or "version unknown"
        words = f"{version}, CUDA {f'{cuda[0]}.{cuda[1]}' if cuda else 'unknown'}"
        findings = [Sheet(group=GROUP).ok("driver", words)]
        states: list[GpuState] = []
        for index in range(count):
            try:
                states.append(read_state(nvml, index))
            except Refused as refused:
                findings.append(_lost(index, str(refused)))
            else:
                findings += judge_gpu(states[-1], own_pid=os.getpid(), in_use=_has_context())
        sysfs = files.root / "sys"
        near = device_affinities([state.uuid for state in states], topology(sysfs), sys=sysfs)
        findings += [_near(state, each, cpus) for state, each in zip(states, near, strict=True)]
        findings += [_visible(environ, count)] if count else []
        return NvidiaState(findings=tuple(findings), gpus=count, cuda=cuda)


# --- reading ----------------------------------------------------------------------------------------


def read_state(nvml: Nvml, index: int) -> GpuState:
    """Return every answer on one GPU; raise `Refused` for a GPU without a name, such as a lost one."""
    handle = nvml.demand("nvmlDeviceGetHandleByIndex", index)
    sm = nvml.constant("NVML_CLOCK_SM")
    uncorrected = nvml.constant("NVML_MEMORY_ERROR_TYPE_UNCORRECTED")

    def get(name: str, *arguments: object) -> Any:  # noqa: ANN401 -- each function has its own type
        return nvml.ask(f"nvmlDeviceGet{name}", handle, *arguments)

    # The second version excludes what the driver reserves, hundreds of MiB; drivers before 510 lack it.
    memory = get("MemoryInfo", nvml.constant("nvmlMemory_v2")) or get("MemoryInfo")
    processes = get("ComputeRunningProcesses")
    limits = [get("PowerManagementLimit"), get("EnforcedPowerLimit")]
    ecc = get("EccMode") or (None, None)
    mig = (get("MigMode") or (None,))[0]
    remapped = get("RemappedRows") or (None,) * 4
    reasons = get("CurrentClocksEventReasons")
    if reasons is None:  # the name before driver 535
        reasons = get("CurrentClocksThrottleReasons")
    slices = [nvml.text("nvmlDeviceGetName", each) for each in nvml.slices(handle)] if mig else []
    return GpuState(
        index=index,
        name=decoded(nvml.demand("nvmlDeviceGetName", handle)),
        uuid=decoded(nvml.demand("nvmlDeviceGetUUID", handle)),
        memory_bytes=None if memory is None else int(memory.total),
        memory_used_bytes=None if memory is None else int(memory.used),
        utilization_percent=getattr(get("UtilizationRates"), "gpu", None),
        pids=None if processes is None else tuple(each.pid for each in processes),
        sm_mhz=get("ClockInfo", sm),
        sm_max_mhz=get("MaxClockInfo", sm),
        sm_application_mhz=get("ApplicationsClock", sm),
        sm_default_mhz=get("DefaultApplicationsClock", sm),
        power_mw=get("PowerUsage"),
        # The lower one counts: a node or a Grace Hopper module may enforce less than was set.
        power_limit_mw=min((limit for limit in limits if limit), default=None),
        power_limit_default_mw=get("PowerManagementDefaultLimit"),
        temperature_c=get("Temperature", nvml.constant("NVML_TEMPERATURE_GPU")),
        event_reasons=reasons,
        persistence=_flag(get("PersistenceMode")),
        ecc=_flag(ecc[0]),
        ecc_pending=_flag(ecc[1]),
        uncorrected_now=get("TotalEccErrors", uncorrected, nvml.constant("NVML_VOLATILE_ECC")),
        uncorrected_ever=get("TotalEccErrors", uncorrected, nvml.constant("NVML_AGGREGATE_ECC")),
        remapping_pending=_flag(remapped[2]),
        remapping_failed=_flag(remapped[3]),
        mig=_flag(mig),
        slices=tuple(name.partition(" MIG ")[2] or "unnamed" for name in slices),
        pcie_generation=get("CurrPcieLinkGeneration"),
        pcie_generation_max=get("MaxPcieLinkGeneration"),
        pcie_width=get("CurrPcieLinkWidth"),
        pcie_width_max=get("MaxPcieLinkWidth"),
    )


def _has_context() -> bool:
    """Whether this process has a CUDA context; torch is queried only if it is imported."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return bool(cuda is not None and cuda.is_initialized())


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


# --- judging ----------------------------------------------------------------------------------------


def judge_gpu(gpu: GpuState, *, own_pid: int = 0, in_use: bool = False) -> list[Finding]:
    """Return every finding on one GPU; `in_use`: this process has a CUDA context, so that load may be its own."""
    sheet = Sheet(group=GROUP, of=f"GPU {gpu.index}")
    memory = "memory unknown" if gpu.memory_bytes is None else gibibytes(gpu.memory_bytes)
    findings = [
        sheet.ok("device", f"{gpu.name}, {memory}, {short_uuid(gpu.uuid)}"),
        _now(gpu, sheet),
        _users(gpu, sheet, own_pid, in_use=in_use),
        _clocks(gpu, sheet),
        _throttling(gpu, sheet),
        _power(gpu, sheet),
        _persistence(gpu, sheet),
        _ecc(gpu, sheet),
        _memory_errors(gpu, sheet),
        _mig(gpu, sheet),
        _pcie(gpu, sheet),
    ]
    return [finding for finding in findings if finding is not None]


def _now(gpu: GpuState, sheet: Sheet) -> Finding:
    """Report the present state; low clocks of an idle GPU are normal."""
    readings = [] if gpu.sm_mhz is None else [f"{gpu.sm_mhz} MHz"]
    readings += [] if gpu.power_mw is None else [f"{gpu.power_mw / 1000:.0f} W"]
    readings += [] if gpu.temperature_c is None else [f"{gpu.temperature_c} °C"]
    if not readings:
        return sheet.unknown("now", NOT_SUPPORTED)
    return sheet.ok("now", ", ".join(readings) + (" (idle: low clocks are normal)" if gpu.idle else ""))


def _users(gpu: GpuState, sheet: Sheet, own_pid: int, *, in_use: bool) -> Finding:
    """Detect other users by processes, memory and load: a container hides processes only."""
    used, busy = gpu.memory_used_bytes, gpu.utilization_percent
    busy = None if busy is not None and busy > 100 else busy  # a failed sensor answers 2^32 - 1
    if used is None and busy is None and gpu.pids is None:
        return sheet.unknown("other users", NOT_SUPPORTED)
    others = [pid for pid in gpu.pids or () if pid != own_pid]
    words = "no process visible"
    if others:
        pids = ", ".join(map(str, others[:4])) + (", …" if len(others) > 4 else "")
        words = f"{len(others)} process{'' if len(others) == 1 else 'es'} (pid {pids})"
    words += "" if used is None else f", {gibibytes(used)} in use"
    words += "" if busy is None else f", {busy} % busy"
    words += " (this process measures here)" if in_use else ""
    if busy is not None and busy >= BUSY_PERCENT and (others or not in_use):
        return sheet.problem(
            "other users",
            words,
            "Another process works on it now: wait, or use another GPU. `nvidia-smi` on the host shows which; "
            "a container hides it.",
        )
    if others or (used is not None and used > FOREIGN_BYTES and not in_use):
        kernel = " On Grace Hopper the kernel's own pages count too." if "GH200" in gpu.name else ""
        return sheet.warning(
            "other users",
            words,
            f"An idle process holds it: end it, or ask its owner (`nvidia-smi` on the host).{kernel}",
        )
    return sheet.ok("other users", words)


def _clocks(gpu: GpuState, sheet: Sheet) -> Finding:
    """Compare with the default, not the maximum: an A100's default application clock is below its maximum."""
    most, wanted = gpu.sm_max_mhz, gpu.sm_application_mhz
    if not most:
        return sheet.unknown("clocks", NOT_SUPPORTED)
    if not wanted:
        return sheet.ok("clocks", f"up to {most} MHz; application clocks unknown")
    text = f"application {wanted} MHz, at most {most}"
    usual = gpu.sm_default_mhz or most
    if wanted < usual:
        return sheet.warning(
            "clocks",
            f"{text}, default {usual}: lowered",
            "`nvidia-smi -i N -rac` (application clocks) and `-rgc` (locked clocks), as root; or measure "
            "always at this clock.",
        )
    return sheet.ok("clocks", text)


def _throttling(gpu: GpuState, sheet: Sheet) -> Finding:
    if gpu.event_reasons is None:
        return sheet.unknown("throttling", NOT_SUPPORTED)
    reasons = gpu.event_reasons & ~IDLE
    active = [event for event in EVENTS if reasons & event.bit]
    words = [event.words for event in sorted(active, key=lambda event: not event.distress)]
    words += [f"unknown reason {reasons & ~KNOWN:#x}"] if reasons & ~KNOWN else []
    text = f"clocks are reduced now: {', '.join(words)}"
    if any(event.distress for event in active):
        return sheet.problem(
            "throttling",
            text,
            "Check cooling and power supply (`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`); measure when it "
            "has ended.",
        )
    if words:
        remedy = "A setting or a load: see clocks, power limit and other users here."
        return sheet.warning("throttling", text, remedy)
    return sheet.ok("throttling", "none")


def _power(gpu: GpuState, sheet: Sheet) -> Finding:
    limit, default = gpu.power_limit_mw, gpu.power_limit_default_mw
    if not limit or not default:
        return sheet.unknown("power limit", NOT_SUPPORTED)
    text = f"{limit / 1000:.0f} W, default {default / 1000:.0f} W"
    if limit < default:
        return sheet.warning(
            "power limit",
            f"{text}: capped",
            f"`nvidia-smi -i N -pl {default // 1000}` as root. A capped GPU is never compared with the "
            "baseline of an uncapped one.",
        )
    return sheet.ok("power limit", text)


def _persistence(gpu: GpuState, sheet: Sheet) -> Finding:
    if gpu.persistence is None:
        return sheet.unknown("persistence", NOT_SUPPORTED)
    if gpu.persistence:
        return sheet.ok("persistence", "on")
    text = "off: the driver resets the GPU between processes, and each start takes longer"
    return sheet.warning(
        "persistence", text, "Start nvidia-persistenced, or `nvidia-smi -i N -pm 1`, as root."
    )


def _ecc(gpu: GpuState, sheet: Sheet) -> Finding:
    if gpu.ecc is None:
        return sheet.unknown("ECC", NOT_SUPPORTED)
    if gpu.ecc_pending is not None and gpu.ecc_pending != gpu.ecc:
        now, then = ("on", "off") if gpu.ecc else ("off", "on")
        return sheet.warning(
            "ECC",
            f"{now}, and {then} after the next reset",
            f"Decide before you record a baseline: `nvidia-smi -i N -e {int(gpu.ecc)}` keeps it {now}; or "
            "reset the GPU (`nvidia-smi -i N -r`).",
        )
    if not gpu.ecc:
        return sheet.warning(
            "ECC",
            "off: memory errors go undetected, and some models have more bandwidth than with it",
            "`nvidia-smi -i N -e 1` as root and reset; or compare only with GPUs that have it off.",
        )
    return sheet.ok("ECC", "on")


def _memory_errors(gpu: GpuState, sheet: Sheet) -> Finding | None:
    now, ever = gpu.uncorrected_now, gpu.uncorrected_ever
    if gpu.remapping_failed:
        return sheet.problem(
            "memory errors",
            "a bad row of memory could not be replaced",
            "Have the GPU exchanged: `nvidia-smi -q -d ROW_REMAPPER` is what the vendor needs.",
        )
    if now:
        return sheet.problem(
            "memory errors",
            f"{counted(now, 'uncorrected error')} since the driver was loaded",
            "Reset it (`nvidia-smi -i N -r`) or restart the node; if they come back, have it "
            "exchanged (`dmesg | grep Xid`).",
        )
    if gpu.remapping_pending:
        return sheet.warning(
            "memory errors",
            "a bad row of memory is replaced at the next reset",
            "`nvidia-smi -i N -r` as root, or restart the node.",
        )
    if now is None and ever is None:
        return None
    past = f" now, {counted(ever, 'uncorrected error')} in its life" if ever else ""
    return sheet.ok("memory errors", f"none{past}")


def _mig(gpu: GpuState, sheet: Sheet) -> Finding:
    if not gpu.mig:
        return sheet.ok("MIG", "this GPU has none" if gpu.mig is None else "off")
    if not gpu.slices:
        return sheet.problem(
            "MIG",
            "on, and no slice: CUDA finds nothing on this GPU",
            "`nvidia-smi -i N -mig 0`, or make slices (`nvidia-smi mig -cgi … -C`), as root.",
        )
    return sheet.warning(
        "MIG",
        f"on, {counted(len(gpu.slices), 'slice')}: {', '.join(gpu.slices)}",
        "Slices share clocks and power, and energy is that of the whole GPU: measure on a whole one if you can.",
    )


def _pcie(gpu: GpuState, sheet: Sheet) -> Finding:
    generation, most_generation = gpu.pcie_generation, gpu.pcie_generation_max
    width, most_width = gpu.pcie_width, gpu.pcie_width_max
    if not generation or not width or most_generation is None or most_width is None:
        return sheet.unknown("PCIe", NOT_SUPPORTED)
    text = f"generation {generation} x{width}, at most {most_generation} x{most_width}"
    if generation < most_generation and gpu.idle and width >= most_width:
        return sheet.ok("PCIe", f"{text} (idle: it saves power)")
    if width < most_width or generation < most_generation:
        return sheet.warning(
            "PCIe",
            text,
            "Copies to and from the host are slower: reseat the card, check the riser and the slot "
            "(`lspci -vv`, LnkSta).",
        )
    return sheet.ok("PCIe", text)


def _lost(index: int, why: str) -> Finding:
    return Sheet(group=GROUP, of=f"GPU {index}").problem(
        "device",
        f"does not answer: {why}",
        "`dmesg | grep Xid` says what happened; restart the node, and take it out of service if it comes back.",
    )


def _near(state: GpuState, affinity: DeviceAffinity | None, cpus: frozenset[int]) -> Finding:
    sheet = Sheet(group=GROUP, of=f"GPU {state.index}")
    if affinity is None or not affinity.cpus:
        return sheet.unknown("NUMA", affinity.problem if affinity else "no UUID")
    text = f"near CPUs {format_list(affinity.cpus)}"
    if cpus and not cpus & affinity.cpus:
        return sheet.warning(
            "NUMA",
            f"{text}; this process may only use {format_list(cpus)}, on another NUMA node",
            "Request CPUs near the GPU from the scheduler, or start under `numactl` or `taskset` with them.",
        )
    return sheet.ok("NUMA", text)


def _visible(environ: Mapping[str, str], count: int) -> Finding:
    """Report the GPUs that CUDA sees, and whether their order is ambiguous."""
    sheet = Sheet(group=GROUP)
    devices, notes = nvidia.find(environ)
    notes = [note for note in notes if not note.startswith("NVML: ")]  # lost GPUs have their own finding
    if not devices:
        return sheet.problem(
            "visible",
            notes[0] if notes else "CUDA would see no device",
            "Unset CUDA_VISIBLE_DEVICES or name GPUs that exist; make MIG slices where MIG is on.",
        )
    named = "CUDA_VISIBLE_DEVICES" in environ
    text = f"CUDA sees {len(devices)} of {count}{' (CUDA_VISIBLE_DEVICES)' if named else ''}"
    if notes:
        note, _, remedy = notes[0].partition(". ")
        return sheet.warning("visible", f"{text}; {note}", remedy)
    return sheet.ok("visible", text)


# --- without NVML -----------------------------------------------------------------------------------


def _closed(files: HostFiles, why: str) -> list[Finding]:
    """Report a missing NVML: a problem beside a loaded driver, nothing without a GPU."""
    sheet = Sheet(group=GROUP)
    if _is_loaded(files):
        remedy = {
            NO_PACKAGE: "pip install nvidia-ml-py: without it no GPU is found.",
            "driver and library versions differ; restart after the upgrade": "Restart the node or the container.",
        }.get(why, "Check with `nvidia-smi`; in a container, pass the driver's libraries (--gpus all, --nv).")
        return [sheet.problem("driver", f"NVIDIA's driver is loaded, and NVML says: {why}", remedy)]
    bus = "sys/bus/pci/devices"
    cards = [
        name
        for name in files.names(bus)
        if files.text(f"{bus}/{name}/vendor") == _VENDOR
        and files.text(f"{bus}/{name}/class").startswith(_DISPLAY_CLASS)
    ]
    if not cards:
        return []
    return [
        sheet.warning(
            "driver",
            f"{len(cards)} x NVIDIA on the PCI bus, and no driver here: {why}",
            "Install the driver, or pass the GPU to the container (--gpus all, --nv). Nothing to do if you may "
            "not use it.",
        )
    ]


def _is_loaded(files: HostFiles) -> bool:
    """Whether the kernel has NVIDIA's driver; a container may hide the file and show the device."""
    return files.exists("proc/driver/nvidia/version") or any(
        name.startswith("nvidia") and whole_number(name.removeprefix("nvidia")) is not None
        for name in files.names("dev")
    )
