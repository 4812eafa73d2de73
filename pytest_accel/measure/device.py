"""Devices as measuring uses them: synchronization, memory, delays."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

Delay = Callable[[], None]

DEVICE_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
MOST_QUEUES = 32


class Device:
    """Where steps run: of a device whose calls return when it is done, and whose memory is not known."""

    name: str  # as torch spells it: `cuda:0`, `cpu`

    def prepare(self) -> None: ...
    def restore(self) -> None: ...
    def synchronize(self) -> None: ...
    def reset_peak_memory(self) -> None: ...

    def peak_memory_bytes(self) -> int | None:
        return None

    def delay(self, seconds: float) -> Delay:
        def spin() -> None:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                pass

        return spin


class IpuDevice(Device):
    """A Graphcore IPU: its memory is planned when poptorch compiles."""

    name = "ipu"


class CpuDevice(Device):
    """The host; works without torch, and pins torch's threads where it is used."""

    name = "cpu"

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._threads_before: int | None = None

    def prepare(self) -> None:
        torch = sys.modules.get("torch")
        if torch is not None and self._threads_before is None:
            self._threads_before = torch.get_num_threads()
            torch.set_num_threads(self._threads)

    def restore(self) -> None:
        if self._threads_before is not None:
            sys.modules["torch"].set_num_threads(self._threads_before)
            self._threads_before = None

    def reset_peak_memory(self) -> None:
        with suppress(OSError):  # not allowed: the peak is then that of the whole process
            Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM

    def peak_memory_bytes(self) -> int | None:
        status = Path("/proc/self/status").read_text()
        found = re.search(r"^VmHWM:\s*(\d+)", status, re.MULTILINE)
        return int(found[1]) * 1024 if found else None


class CudaDevice(Device):
    """An NVIDIA or AMD device through torch.cuda (ROCm has the same names)."""

    def __init__(self, index: int = 0) -> None:
        import torch

        self.index, self._cuda = index, torch.cuda
        self.name = f"cuda:{index}"

    def prepare(self) -> None:
        self._cuda.set_device(self.index)

    def restore(self) -> None:
        """Leave no cached memory behind for the next benchmark."""
        self._cuda.empty_cache()

    def synchronize(self) -> None:
        self._cuda.synchronize(self.index)

    def reset_peak_memory(self) -> None:
        self._cuda.reset_peak_memory_stats(self.index)

    def peak_memory_bytes(self) -> int | None:
        """Return the most that was allocated at once, with the memory that CUDA graphs keep for their replays.

        A graph allocates when it is recorded, and torch's counters do not see its replays use that memory.
        """
        kept = sum(
            segment["total_size"] - segment["allocated_size"]
            for segment in self._cuda.memory_snapshot()
            if segment["device"] == self.index and tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
        )
        return int(self._cuda.max_memory_allocated(self.index) + kept)

    def delay(self, seconds: float) -> Delay:
        """Return a kernel that spins: a host-side sleep would hide behind the launches that run ahead.

        At its power limit a device makes up for part of it: it cools, and its clock rises.
        """
        probe_cycles = 20_000_000  # about 10 ms on a GPU of 2 GHz: long against the launch
        begin, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        self._cuda._sleep(1000)  # noqa: SLF001 - load the kernel before timing it
        begin.record()
        self._cuda._sleep(probe_cycles)  # noqa: SLF001 - torch offers no public spin
        end.record()
        end.synchronize()
        cycles = max(1, round(seconds * probe_cycles / (begin.elapsed_time(end) * 1e-3)))

        def spin() -> None:
            self._cuda._sleep(cycles)  # noqa: SLF001

        return spin


def is_nvidia(kind: str) -> bool:
    """Return whether torch's device kind is NVIDIA's: ROCm calls its devices `cuda` too."""
    import torch

    return kind == "cuda" and torch.version.hip is None


def widen_device_queues() -> bool:
    """Give a CUDA device as many queues as it has streams, before CUDA starts; return whether it has them.

    By default it has eight, and a small kernel waits for the other streams of its queue. ResNet50 on an H200 with JPEGs
    that nvJPEG decodes on 14 streams trained at 70 % of its rate with 8 queues and at 94 % with 32. A value that the
    user set is kept.
    """
    if DEVICE_QUEUES not in os.environ:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            return False
        os.environ[DEVICE_QUEUES] = str(MOST_QUEUES)
    return os.environ[DEVICE_QUEUES] == str(MOST_QUEUES)


def torch_index(uuid: str, fallback: int) -> int:
    """Return torch's index of the device with this UUID; `fallback` where torch shows no such device.

    Drivers order devices by bus, CUDA the fastest first unless CUDA_DEVICE_ORDER says otherwise.
    """
    import torch

    if not uuid:
        return fallback
    for index in range(torch.cuda.device_count()):
        shown = str(getattr(torch.cuda.get_device_properties(index), "uuid", "")).lower()
        spellings = {shown.removeprefix("gpu-")}
        with suppress(ValueError):  # of ROCm the 16 bytes are the letters of the serial number
            spellings.add(bytes.fromhex(shown.replace("-", "")).decode("ascii").lower())
        if uuid.lower().removeprefix("gpu-") in spellings:
            return index
    return fallback
