"""NVIDIA GPUs through NVML, without a CUDA context or torch: driver access, visible devices, clock events."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from typing import Any

from pytest_accel.platforms.catalogue import DetectedDevice, select_visible

NO_PACKAGE = "the package nvidia-ml-py is not installed"

# NVML's clock event reasons (nvml.h).
IDLE = 0x1
APPLICATION_CLOCKS = 0x2
POWER_CAP = 0x4
HW_SLOWDOWN = 0x8
SW_THERMAL = 0x20
HW_THERMAL = 0x40
POWER_BRAKE = 0x80
BOARD_LIMIT = 0x200
RELIABILITY = 0x400


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockEvent:
    bit: int
    name: str  # short, beside a share
    words: str  # in a sentence
    distress: bool  # caused by the hardware's state; else by a setting


EVENTS = (
    ClockEvent(bit=APPLICATION_CLOCKS, name="application clocks", words="application clocks", distress=False),
    ClockEvent(bit=POWER_CAP, name="power cap", words="power limit", distress=False),
    ClockEvent(bit=0x10, name="sync boost", words="sync boost", distress=False),
    ClockEvent(bit=0x100, name="display clocks", words="display clocks", distress=False),
    ClockEvent(bit=HW_SLOWDOWN, name="HW slowdown", words="hardware slowdown", distress=True),
    ClockEvent(bit=SW_THERMAL, name="SW thermal", words="too hot (software)", distress=True),
    ClockEvent(bit=HW_THERMAL, name="HW thermal", words="too hot (hardware)", distress=True),
    ClockEvent(bit=POWER_BRAKE, name="power brake", words="power brake", distress=True),
    ClockEvent(bit=BOARD_LIMIT, name="board limit", words="board limit", distress=True),
    ClockEvent(bit=RELIABILITY, name="reliability", words="reliability", distress=True),
)
KNOWN = IDLE | sum(event.bit for event in EVENTS)
CLOCK_STEP_MHZ = 15
HELD_BELOW = 0.95  # of the highest clock


def is_held(clocks_mhz: Sequence[int], reasons: Sequence[int], most_mhz: int | None) -> bool:
    """Return whether clocks stay in one place well below the highest, without a reason: locked (`nvidia-smi -lgc`) or capped."""
    others = any(each & ~(IDLE | APPLICATION_CLOCKS) for each in reasons)
    is_steady = max(clocks_mhz) - min(clocks_mhz) <= CLOCK_STEP_MHZ
    return bool(most_mhz) and not others and is_steady and max(clocks_mhz) < HELD_BELOW * (most_mhz or 0)


class Refused(ValueError):  # noqa: N818 -- NVML refused; the caller made no error
    """NVML does not answer a query that everything depends on; the text says why."""


class Nvml:
    """pynvml without its exceptions. One that could not be opened has a `problem` and answers nothing."""

    def __init__(self, pynvml: Any, problem: str = "") -> None:  # noqa: ANN401 -- the package has no types
        self._pynvml = pynvml
        self.problem = problem

    def ask(self, function: str, *arguments: object) -> Any:  # noqa: ANN401 -- each function has its own type
        """Return the answer; None if the driver, the device or this version of the package has none."""
        return self.attempt(function, *arguments)[0]

    def attempt(self, function: str, *arguments: object) -> tuple[Any, str]:
        if self.problem:
            return None, self.problem
        try:
            return getattr(self._pynvml, function)(*arguments), ""
        except Exception as error:  # noqa: BLE001 -- NVMLError, a name this version lacks, undecodable text
            return None, str(error) or type(error).__name__

    def demand(self, function: str, *arguments: object) -> Any:  # noqa: ANN401 -- each function has its own type
        answer, problem = self.attempt(function, *arguments)
        if problem:
            raise Refused(problem)
        return answer

    def constant(self, name: str) -> Any:  # noqa: ANN401 -- a number of NVML's
        return getattr(self._pynvml, name, None)

    def handle(self, uuid: str | None) -> object | None:
        """Return the handle of a UUID; NVML's indices ignore CUDA_VISIBLE_DEVICES and are not used."""
        handle: object | None = self.ask("nvmlDeviceGetHandleByUUID", uuid) if uuid else None
        return handle

    def cuda_version(self) -> tuple[int, int] | None:
        """Return the newest CUDA that the driver runs."""
        number = self.ask("nvmlSystemGetCudaDriverVersion_v2") or 0  # 12040 is 12.4
        return (number // 1000, number % 1000 // 10) if number else None

    def close(self) -> None:
        """Close NVML; one that never opened, or a GPU that was lost meanwhile, is no error."""
        self.ask("nvmlShutdown")


class NvmlGpu:
    """NVML's answers about one GPU; none without a handle."""

    def __init__(self, nvml: Nvml, handle: object | None) -> None:
        self.nvml, self.handle = nvml, handle

    def get(self, name: str, *constants: str) -> Any:  # noqa: ANN401 -- each function has its own type
        """Return the answer of nvmlDeviceGet<name>, given constants of these names; None if there is none."""
        if self.handle is None:
            return None
        return self.nvml.ask(f"nvmlDeviceGet{name}", self.handle, *map(self.nvml.constant, constants))

    def power_limit_mw(self) -> int | None:
        """Return the lower limit: a node or a Grace Hopper module may enforce less than was set."""
        limits_mw = self.get("PowerManagementLimit"), self.get("EnforcedPowerLimit")
        return min(filter(None, limits_mw), default=None)

    def uncorrected_errors(self, counter: str = "NVML_VOLATILE_ECC") -> int | None:
        errors: int | None = self.get("TotalEccErrors", "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", counter)
        return errors


class ListedGpu(NvmlGpu):
    """One GPU that NVML lists; raises `Refused` for a GPU without a name, such as a lost one."""

    def __init__(self, nvml: Nvml, index: int) -> None:
        super().__init__(nvml, nvml.demand("nvmlDeviceGetHandleByIndex", index))
        self.name, self.uuid = (
            str(nvml.demand(f"nvmlDeviceGet{what}", self.handle)) for what in ("Name", "UUID")
        )


def opened() -> AbstractContextManager[Nvml]:
    """Open NVML for a block. NVML counts its users, so that blocks may be nested."""
    return closing(open_nvml())


def open_nvml() -> Nvml:
    """Open NVML where `with` cannot be used; `close()` it."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return Nvml(None, NO_PACKAGE)
    except Exception as error:  # noqa: BLE001 -- no driver, a broken library or package
        return Nvml(None, str(error) or type(error).__name__)
    return Nvml(pynvml)


def short_uuid(uuid: str) -> str:
    """Return the first part of a UUID, `GPU-8f3aab12`, which is unique on a node."""
    return "-".join(uuid.split("-")[:2])


def find(environ: Mapping[str, str] = os.environ) -> tuple[list[DetectedDevice], list[str]]:
    gpus: list[DetectedDevice] = []
    sliced: list[str] = []  # UUIDs of GPUs in MIG mode
    problems: list[str] = []
    with opened() as nvml:
        count, problem = nvml.attempt("nvmlDeviceGetCount")
        if problem:
            return [], [f"NVML: {problem}"]
        for index in range(count):
            try:
                gpu = ListedGpu(nvml, index)
            except Refused as refused:  # one lost GPU must not hide the others
                problems.append(f"NVML: GPU {index}: {refused}")
                continue
            memory, mode = gpu.get("MemoryInfo"), gpu.get("MigMode")  # without MIG: "not supported"
            size = None if memory is None else int(memory.total)
            gpus.append(DetectedDevice(index=index, name=gpu.name, uuid=gpu.uuid, memory_bytes=size))
            sliced += [gpu.uuid] if mode and mode[0] else []
    spec = environ.get("CUDA_VISIBLE_DEVICES")
    chosen = select_visible(spec, [gpu.uuid for gpu in gpus])
    devices = [replace(gpus[each], index=index) for index, each in enumerate(chosen)]
    in_mig_mode = [device.index for device in devices if device.uuid in sliced]
    if in_mig_mode:  # CUDA enumerates one slice, and then no other device
        which = ", ".join(map(str, in_mig_mode))
        remedy = "hide it (CUDA_VISIBLE_DEVICES), or switch MIG off (`nvidia-smi -mig 0`)"
        return [], [*problems, f"GPU {which} is in MIG mode, and CUDA then finds no other GPU: {remedy}"]
    is_mixed = len({gpu.name for gpu in gpus}) > 1
    if gpus and not devices:
        problems.append(f"CUDA_VISIBLE_DEVICES={spec!r} leaves none of {len(gpus)} x {gpus[0].name}")
    elif is_mixed and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and "GPU-" not in (spec or ""):
        text = "GPUs of different models: CUDA counts the fastest first, NVML by bus, so that their numbers may differ."
        problems.append(f"{text} Set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name them by UUID")
    return devices, problems
