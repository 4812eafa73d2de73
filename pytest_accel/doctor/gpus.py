"""What NVML said of one GPU, judged: pure, so that every sick GPU can be tested without one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_accel.doctor.findings import Sheet
from pytest_accel.platforms.nvidia import EVENTS, IDLE, KNOWN, short_uuid
from pytest_accel.stats.quantities import counted, gibibytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_accel.doctor.finding import Finding

GROUP = "devices"

# Below: what an idle driver or a display server holds. A CUDA context alone takes hundreds of MiB.
FOREIGN_BYTES = 128 << 20
BUSY_PERCENT = 5  # a monitoring agent that asks NVML every second wakes a GPU for less
NOT_SUPPORTED = "this GPU or its driver does not say"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """Somebody on the GPU."""

    pid: int
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """NVML's answers on one GPU; None where it has none."""

    index: int
    name: str
    uuid: str
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilisation_percent: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
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
        return self.utilisation_percent == 0


def judge(gpu: GpuState, *, own_pid: int = 0, in_use: bool = False) -> list[Finding]:
    """Every check of one GPU, in the order of the screen.

    `in_use`: this process itself has a CUDA context, so that memory and load may be its own.
    """
    sheet = Sheet(group=GROUP, of=f"GPU {gpu.index}")
    memory = "memory not told" if gpu.memory_bytes is None else gibibytes(gpu.memory_bytes)
    return [
        sheet.ok("device", f"{gpu.name}, {memory}, {short_uuid(gpu.uuid)}"),
        _now(gpu, sheet),
        _users(gpu, sheet, own_pid, in_use=in_use),
        _clocks(gpu, sheet),
        _throttling(gpu, sheet),
        _power(gpu, sheet),
        _persistence(gpu, sheet),
        *_ecc(gpu, sheet),
        _mig(gpu, sheet),
        _pcie(gpu, sheet),
    ]


def _now(gpu: GpuState, sheet: Sheet) -> Finding:
    """What it does at this moment: low clocks are no finding, an idle GPU saves power."""
    readings = [
        text
        for text in (
            "" if gpu.sm_mhz is None else f"{gpu.sm_mhz} MHz",
            "" if gpu.power_mw is None else f"{gpu.power_mw / 1000:.0f} W",
            "" if gpu.temperature_c is None else f"{gpu.temperature_c} °C",
        )
        if text
    ]
    if not readings:
        return sheet.unknown("now", NOT_SUPPORTED)
    idle = " (idle: low clocks are normal)" if gpu.idle else ""
    return sheet.ok("now", ", ".join(readings) + idle)


def _users(gpu: GpuState, sheet: Sheet, own_pid: int, *, in_use: bool) -> Finding:
    """Others by their processes, their memory and their load: a container hides the first of these."""
    used, busy = gpu.memory_used_bytes, gpu.utilisation_percent
    if used is None and busy is None and gpu.processes is None:
        return sheet.unknown("other users", NOT_SUPPORTED)
    if busy is not None and busy > 100:
        return sheet.garbage("other users", "NVML's utilisation", f"{busy} %")
    others = [process for process in gpu.processes or () if process.pid != own_pid]
    told = [_process_words(others)]
    told += [] if used is None else [f"{gibibytes(used)} in use"]
    told += [] if busy is None else [f"{busy} % busy"]
    text = ", ".join(told) + (" (this process measures here)" if in_use else "")
    if busy is not None and busy >= BUSY_PERCENT and (others or not in_use):
        return sheet.problem(
            "other users",
            text,
            "Somebody works on it now: wait, or take another GPU. `nvidia-smi` on the host shows who; a container "
            "hides others.",
        )
    if others or (used is not None and used > FOREIGN_BYTES and not in_use):
        kernel = " On Grace Hopper the kernel's own pages count too." if "GH200" in gpu.name else ""
        return sheet.warning(
            "other users",
            text,
            f"It is held, though idle now: end it, or ask its owner (`nvidia-smi` on the host).{kernel}",
        )
    return sheet.ok("other users", text)


def _process_words(others: list[GpuProcess]) -> str:
    if not others:
        return "no process seen"
    pids = ", ".join(str(process.pid) for process in others[:4])
    more = ", …" if len(others) > 4 else ""
    return f"{len(others)} process{'' if len(others) == 1 else 'es'} (pid {pids}{more})"


def _clocks(gpu: GpuState, sheet: Sheet) -> Finding:
    """Against the default, not the maximum: an A100's default application clock is below its maximum, and it boosts."""
    most, wanted = gpu.sm_max_mhz, gpu.sm_application_mhz
    if not most:
        return sheet.unknown("clocks", NOT_SUPPORTED)
    if not wanted:
        return sheet.ok("clocks", f"up to {most} MHz; application clocks not told")
    text = f"application {wanted} MHz, at most {most}"
    usual = gpu.sm_default_mhz or most
    if wanted < usual:
        return sheet.warning(
            "clocks",
            f"{text}, default {usual}: somebody lowered it",
            "`nvidia-smi -i N -rac` (application clocks) and `-rgc` (locked clocks), as root; or measure "
            "always at this clock.",
        )
    return sheet.ok("clocks", text)


def _throttling(gpu: GpuState, sheet: Sheet) -> Finding:
    if gpu.event_reasons is None:
        return sheet.unknown("throttling", NOT_SUPPORTED)
    reasons = gpu.event_reasons & ~IDLE
    distress = [event.words for event in EVENTS if event.distress and reasons & event.bit]
    asked_for = [event.words for event in EVENTS if not event.distress and reasons & event.bit]
    if distress:
        return sheet.problem(
            "throttling",
            f"clocks are held down now: {', '.join(distress + asked_for)}",
            "Look at cooling and power supply (`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`); measure when it "
            "has gone.",
        )
    if asked_for or reasons & ~KNOWN:
        unknown = [f"unknown reason {reasons & ~KNOWN:#x}"] if reasons & ~KNOWN else []
        return sheet.warning(
            "throttling",
            f"clocks are held down now: {', '.join(asked_for + unknown)}",
            "Somebody set or loads this GPU: see its clocks, power limit and other users here.",
        )
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
    if not gpu.persistence:
        return sheet.warning(
            "persistence",
            "off: the driver forgets the GPU between processes, and each start takes longer",
            "Start nvidia-persistenced, or `nvidia-smi -i N -pm 1`, as root.",
        )
    return sheet.ok("persistence", "on")


def _ecc(gpu: GpuState, sheet: Sheet) -> Iterator[Finding]:
    if gpu.ecc is None:
        yield sheet.unknown("ECC", NOT_SUPPORTED)
    elif gpu.ecc_pending is not None and gpu.ecc_pending != gpu.ecc:
        now, then = ("on", "off") if gpu.ecc else ("off", "on")
        yield sheet.warning(
            "ECC",
            f"{now}, and {then} after the next reset",
            f"Decide before you record a baseline: `nvidia-smi -i N -e {int(gpu.ecc)}` keeps it {now}; or "
            "reset the GPU (`nvidia-smi -i N -r`).",
        )
    elif not gpu.ecc:
        yield sheet.warning(
            "ECC",
            "off: errors in memory go unseen, and some models have more bandwidth than with it",
            "`nvidia-smi -i N -e 1` as root and reset; or compare only with GPUs that have it off.",
        )
    else:
        yield sheet.ok("ECC", "on")
    yield from _memory_errors(gpu, sheet)


def _memory_errors(gpu: GpuState, sheet: Sheet) -> Iterator[Finding]:
    now, ever = gpu.uncorrected_now, gpu.uncorrected_ever
    if gpu.remapping_failed:
        yield sheet.problem(
            "memory errors",
            "a bad row of memory could not be replaced",
            "Have the GPU exchanged: `nvidia-smi -q -d ROW_REMAPPER` is what the vendor wants to see.",
        )
    elif now:
        yield sheet.problem(
            "memory errors",
            f"{counted(now, 'uncorrected error')} since the driver was loaded",
            "Reset it (`nvidia-smi -i N -r`) or restart the node; should they come back, have it "
            "exchanged (`dmesg | grep Xid`).",
        )
    elif gpu.remapping_pending:
        yield sheet.warning(
            "memory errors",
            "a bad row of memory waits to be replaced at the next reset",
            "`nvidia-smi -i N -r` as root, or restart the node.",
        )
    elif now is not None or ever is not None:
        past = f" now, {counted(ever, 'uncorrected error')} in its life" if ever else ""
        yield sheet.ok("memory errors", f"none{past}")


def _mig(gpu: GpuState, sheet: Sheet) -> Finding:
    if gpu.mig is None:
        return sheet.ok("MIG", "this GPU has none")
    if not gpu.mig:
        return sheet.ok("MIG", "off")
    if not gpu.slices:
        return sheet.problem(
            "MIG",
            "on, and no slice: CUDA finds nothing on this GPU",
            "`nvidia-smi -i N -mig 0`, or make slices (`nvidia-smi mig -cgi … -C`), as root.",
        )
    return sheet.warning(
        "MIG",
        f"on, {counted(len(gpu.slices), 'slice')}: {', '.join(gpu.slices)}",
        "Slices share clocks and power, and energy is of the whole GPU: measure on a whole one where you can.",
    )


def _pcie(gpu: GpuState, sheet: Sheet) -> Finding:
    generation, most_generation = gpu.pcie_generation, gpu.pcie_generation_max
    width, most_width = gpu.pcie_width, gpu.pcie_width_max
    if generation is None or most_generation is None or width is None or most_width is None:
        return sheet.unknown("PCIe", NOT_SUPPORTED)
    if not (generation and width):
        return sheet.garbage("PCIe", "NVML's link", f"generation {generation}, x{width}")
    text = f"generation {generation} x{width}, at most {most_generation} x{most_width}"
    saving = generation < most_generation and gpu.idle and width >= most_width
    if saving:
        return sheet.ok("PCIe", f"{text} (idle: it saves power)")
    if width < most_width or generation < most_generation:
        return sheet.warning(
            "PCIe",
            text,
            "Copies to and from the host are slower: reseat the card, look at the riser and the slot "
            "(`lspci -vv`, LnkSta).",
        )
    return sheet.ok("PCIe", text)
