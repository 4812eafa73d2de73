"""Checks of NVIDIA GPUs: NVML's answers, read without a CUDA context, and what they mean for a measurement."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from pytest_accel.doctor.findings import DEVICES, Finding, Sheet
from pytest_accel.platforms import nvidia
from pytest_accel.platforms.host import HostFiles, format_list
from pytest_accel.platforms.machine import device_affinities
from pytest_accel.stats.quantities import counted, gibibytes

# An idle driver or a display server holds less. A CUDA context alone takes hundreds of MiB.
FOREIGN_BYTES = 128 << 20
IDLE_BELOW = 0.5  # of the highest clock
BUSY_PERCENT = 5  # a monitoring agent that queries NVML every second causes less
NOT_SUPPORTED = "this GPU or its driver does not support it"


class Gpu(nvidia.ListedGpu):
    def __init__(self, nvml: nvidia.Nvml, index: int) -> None:
        super().__init__(nvml, index)
        self.sheet = Sheet(DEVICES.group, of=f"GPU {index}")

    def memory(self) -> Any:  # noqa: ANN401 -- a structure of pynvml's
        # The second version excludes what the driver reserves, hundreds of MiB; drivers before 510 lack it.
        return self.get("MemoryInfo", "nvmlMemory_v2") or self.get("MemoryInfo")

    def reasons(self) -> int | None:
        names = ("CurrentClocksEventReasons", "CurrentClocksThrottleReasons")  # the second before driver 535
        return next((int(found) for name in names if (found := self.get(name)) is not None), None)

    def is_idle(self) -> bool:
        return bool((self.reasons() or 0) & nvidia.IDLE)


def examine(
    files: HostFiles, environ: Mapping[str, str], cpus: frozenset[int]
) -> tuple[list[Finding], int, tuple[int, int] | None]:
    """Check all GPUs that NVML lists, visible to CUDA or not; return their number and the driver's newest CUDA, too."""
    with nvidia.opened() as nvml:
        count, why = nvml.attempt("nvmlDeviceGetCount")
        if count is None:
            if not (files.exists("proc/driver/nvidia/version") or files.exists("dev/nvidia0")):
                return [], 0, None
            finding = DEVICES("driver").problem(
                f"NVIDIA's driver is loaded, and NVML says: {why}",
                "Check with `nvidia-smi`, and restart the node after an upgrade of the driver; in a container, pass the "
                "driver's libraries (--gpus all, --nv).",
            )
            return [finding], 1, None
        cuda = nvml.cuda_version()
        version = nvml.ask("nvmlSystemGetDriverVersion") or "version unknown"
        findings = [DEVICES("driver").ok(f"{version}, CUDA {f'{cuda[0]}.{cuda[1]}' if cuda else 'unknown'}")]
        for index in range(count):
            findings += examine_gpu(nvml, index, files, cpus)
        findings += [_visible(environ, count)] if count else []
        return findings, count, cuda


def examine_gpu(nvml: nvidia.Nvml, index: int, files: HostFiles, cpus: frozenset[int]) -> list[Finding]:
    try:
        gpu = Gpu(nvml, index)
    except nvidia.Refused as refused:
        remedy = "`dmesg | grep Xid` says what happened; restart the node, and take it out of service if it comes back."
        sheet = Sheet(DEVICES.group, "device", f"GPU {index}")
        return [sheet.problem(f"does not answer: {refused}", remedy)]
    found = [
        check(gpu, gpu.sheet(subject)) or gpu.sheet(subject).unknown(NOT_SUPPORTED)
        for subject, check in CHECKS.items()
    ]
    return [*found, _near(gpu, gpu.sheet("NUMA"), files, cpus)]


def _device(gpu: Gpu, sheet: Sheet) -> Finding:
    memory = gpu.memory()
    size = "memory unknown" if memory is None else gibibytes(int(memory.total))
    return sheet.ok(f"{gpu.name}, {size}, {nvidia.short_uuid(gpu.uuid)}")


def _users(gpu: Gpu, sheet: Sheet) -> Finding | None:
    """Detect other users by processes, memory and load: a container hides processes only."""
    memory, processes = gpu.memory(), gpu.get("ComputeRunningProcesses")
    busy = getattr(gpu.get("UtilizationRates"), "gpu", None)
    busy = None if busy is not None and busy > 100 else busy  # a failed sensor answers 2^32 - 1
    if memory is None and busy is None and processes is None:
        return None
    pids = [str(each.pid) for each in processes or ()]
    words = f"processes: {', '.join(pids) or 'none visible'}"
    words += "" if memory is None else f", {gibibytes(int(memory.used))} in use"
    words += "" if busy is None else f", {busy} % busy"
    if (busy or 0) >= BUSY_PERCENT:
        return sheet.problem(
            words,
            "Another process works on it now: wait, or use another GPU. `nvidia-smi` on the host shows which; "
            "a container hides it.",
        )
    if pids or (memory is not None and memory.used > FOREIGN_BYTES):
        return sheet.warning(
            words,
            "An idle process holds it: end it, or ask its owner (`nvidia-smi` on the host). On Grace Hopper the kernel's "
            "own pages count too.",
        )
    return sheet.ok(words)


def _now(gpu: Gpu, sheet: Sheet) -> Finding | None:
    """Report the present state; low clocks of an idle GPU are normal."""
    sm_mhz, power_mw = gpu.get("ClockInfo", "NVML_CLOCK_SM"), gpu.get("PowerUsage")
    celsius = gpu.get("Temperature", "NVML_TEMPERATURE_GPU")
    known = [sm_mhz and f"{sm_mhz} MHz", power_mw and f"{power_mw / 1000:.0f} W", celsius and f"{celsius} °C"]
    text = ", ".join(filter(None, known))
    return sheet.ok(text + " (idle)" * gpu.is_idle()) if text else None


def _clocks(gpu: Gpu, sheet: Sheet) -> Finding | None:
    """Compare with the default, not the maximum: an A100's default application clock is below its maximum."""
    most, wanted = gpu.get("MaxClockInfo", "NVML_CLOCK_SM"), gpu.get("ApplicationsClock", "NVML_CLOCK_SM")
    if not most:
        return None
    named = f"application {wanted} MHz" if wanted else "application clock unknown"
    text = f"{named}, at most {most}"
    if held := _held_mhz(gpu, most, wanted):
        text += f", and held at {held} without a reason of the driver's: locked or capped"
        remedy = "`nvidia-smi -i N -rgc` as root releases locked clocks; or measure always at this clock."
        return sheet.warning(text, remedy)
    usual = gpu.get("DefaultApplicationsClock", "NVML_CLOCK_SM") or most
    if wanted and wanted < usual:
        return sheet.warning(
            f"{text}, default {usual}: lowered",
            "`nvidia-smi -i N -rac` (application clocks) and `-rgc` (locked clocks), as root; or measure "
            "always at this clock.",
        )
    return sheet.ok(text)


def _held_mhz(gpu: Gpu, most: int, wanted: int | None) -> int | None:
    """Return the clock that stays in one place between those of idleness and of work; None where it does not."""
    clocks: list[int] = []
    for pause_s in (0.0, 0.1, 0.1, 0.1):
        time.sleep(pause_s)
        now = gpu.get("ClockInfo", "NVML_CLOCK_SM")
        # Idle GPUs fall to a fifth (H200: 345 of 1980 MHz); with a context, an A100 stays at its application clock.
        lowest = IDLE_BELOW * most if gpu.is_idle() else 0
        clocks.append(now or 0)
        if not now or now < lowest or now == wanted or not nvidia.is_held(clocks, [gpu.reasons() or 0], most):
            return None
    return clocks[-1]


def _throttling(gpu: Gpu, sheet: Sheet) -> Finding | None:
    found = gpu.reasons()
    if found is None:
        return None
    reasons = found & ~nvidia.IDLE
    active = [event for event in nvidia.EVENTS if reasons & event.bit]
    words = [event.words for event in active] or [f"unknown reason {reasons:#x}"]
    text = f"clocks are reduced now: {', '.join(words)}"
    if any(event.distress for event in active):
        return sheet.problem(
            text,
            "Check cooling and power supply (`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`); measure when it "
            "has ended.",
        )
    if reasons:
        return sheet.warning(text, "A setting or a load: see clocks, power limit and other users here.")
    return sheet.ok("none")


def _power(gpu: Gpu, sheet: Sheet) -> Finding | None:
    limit_mw, default_mw = gpu.power_limit_mw(), gpu.get("PowerManagementDefaultLimit")
    if not limit_mw or not default_mw:
        return None
    text = f"{limit_mw / 1000:.0f} W, default {default_mw / 1000:.0f} W"
    if limit_mw < default_mw:
        return sheet.warning(
            f"{text}: capped",
            f"`nvidia-smi -i N -pl {default_mw // 1000}` as root. A capped GPU is never compared with the "
            "baseline of an uncapped one.",
        )
    return sheet.ok(text)


def _persistence(gpu: Gpu, sheet: Sheet) -> Finding | None:
    mode = gpu.get("PersistenceMode")
    if mode is None or mode:
        return None if mode is None else sheet.ok("on")
    text = "off: the driver resets the GPU between processes, and each start takes longer"
    remedy = "Start nvidia-persistenced, or `nvidia-smi -i N -pm 1`, as root."
    return sheet.warning(text, remedy)


def _ecc(gpu: Gpu, sheet: Sheet) -> Finding | None:
    modes = gpu.get("EccMode")  # current, pending
    if modes is None or modes[0]:
        return None if modes is None else sheet.ok("on")
    text = "off: memory errors go undetected, and some models have more bandwidth than with it"
    remedy = "`nvidia-smi -i N -e 1` as root and reset; or compare only with GPUs that have it off."
    return sheet.warning(text, remedy)


def _memory_errors(gpu: Gpu, sheet: Sheet) -> Finding | None:
    now = gpu.uncorrected_errors()
    _, _, pending, failed = gpu.get("RemappedRows") or (0,) * 4
    if failed or now:
        text = f"{counted(now or 0, 'uncorrected error')} since the driver was loaded"
        return sheet.problem(
            "a bad row of memory could not be replaced" if failed else text,
            "Reset the GPU (`nvidia-smi -i N -r`) or restart the node; if it comes back, have it exchanged "
            "(`nvidia-smi -q -d ROW_REMAPPER` is what the vendor needs).",
        )
    if pending:
        remedy = "`nvidia-smi -i N -r` as root, or restart the node."
        return sheet.warning("a bad row of memory is replaced at the next reset", remedy)
    return None if now is None else sheet.ok("none")


def _mig(gpu: Gpu, sheet: Sheet) -> Finding:
    mode = gpu.get("MigMode")
    if mode is None or not mode[0]:
        return sheet.ok("this GPU has none" if mode is None else "off")
    return sheet.problem("on: slices of a GPU are not measured", "`nvidia-smi -i N -mig 0`, as root.")


def _pcie(gpu: Gpu, sheet: Sheet) -> Finding | None:
    names = ("PcieLinkGeneration", "PcieLinkWidth")
    now, most = ([gpu.get(f"{which}{name}") for name in names] for which in ("Curr", "Max"))
    if not all((*now, *most)):
        return None
    text = f"generation {now[0]} x{now[1]}, at most {most[0]} x{most[1]}"
    if now[0] < most[0] and now[1] >= most[1] and gpu.is_idle():
        return sheet.ok(f"{text} (idle: it saves power)")
    if now[0] < most[0] or now[1] < most[1]:
        return sheet.warning(
            text,
            "Copies to and from the host are slower: reseat the card, check the riser and the slot "
            "(`lspci -vv`, LnkSta).",
        )
    return sheet.ok(text)


CHECKS: Mapping[str, Callable[[Gpu, Sheet], Finding | None]] = {
    "device": _device,
    "other users": _users,
    "now": _now,
    "clocks": _clocks,
    "throttling": _throttling,
    "power limit": _power,
    "persistence": _persistence,
    "ECC": _ecc,
    "memory errors": _memory_errors,
    "MIG": _mig,
    "PCIe": _pcie,
}


def _near(gpu: Gpu, sheet: Sheet, files: HostFiles, cpus: frozenset[int]) -> Finding:
    (affinity,) = device_affinities([gpu.uuid], files)
    if affinity is None or not affinity.cpus:
        return sheet.unknown(affinity.problem if affinity else "no UUID")
    text = f"near CPUs {format_list(affinity.cpus)}"
    if cpus and not cpus & affinity.cpus:
        text += f"; this process may only use {format_list(cpus)}, on another NUMA node"
        remedy = "Request CPUs near the GPU from the scheduler, or start under `taskset` with them."
        return sheet.warning(text, remedy)
    return sheet.ok(text)


def _visible(environ: Mapping[str, str], count: int) -> Finding:
    sheet = DEVICES("visible")
    devices, notes = nvidia.find(environ)
    notes = [note for note in notes if not note.startswith("NVML: ")]  # lost GPUs have their own finding
    if not devices:
        remedy = "Unset CUDA_VISIBLE_DEVICES or name GPUs that exist, without those in MIG mode."
        return sheet.problem(notes[0] if notes else "CUDA would see no device", remedy)
    text = f"CUDA sees {len(devices)} of {count}"
    if notes:
        note, _, remedy = notes[0].partition(". ")
        return sheet.warning(f"{text}; {note}", remedy)
    return sheet.ok(text)
