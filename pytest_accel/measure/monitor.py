"""State of a GPU during a measurement: readings of NVML or amdsmi, and the thread that takes them beside it.

The thread takes all samples, the first and the last of a window too, for which the caller waits a bounded time: a driver
call that hangs holds the thread, not the session. Inside the window only calls that take microseconds; the rest at its
ends (H200: running processes 25 us, their shares of the SMs 2 ms). All of a driver is optional:
an old one or a lost GPU leave gaps, not errors. amdsmi was tried with replayed answers only, and its cost is not known.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, ClassVar, Self

from pytest_accel.measure.validity import DeviceReadings, DeviceSample, ForeignProcess
from pytest_accel.platforms import nvidia
from pytest_accel.power.amd import close_amdsmi, open_amdsmi, serial_number
from pytest_accel.power.source import words

PERIOD_S = 0.1
LIMIT_S = 2.0  # the slowest sampler takes microseconds; a call that takes this long hangs


class SamplingThread:
    """Calls every sampler each period between `begin()` and `end()`, and once at each of them.

    A sampler that raises is called no more, and `problems` says why, once. After one that hangs nothing is sampled.
    """

    def __init__(
        self,
        samplers: Sequence[Callable[[], object]],
        period_s: float = PERIOD_S,
        *,
        limit_s: float = LIMIT_S,
    ) -> None:
        self.problems: list[str] = []
        self._samplers = list(samplers)
        self._period_s = period_s
        self._limit_s = limit_s
        self._thread: threading.Thread | None = None
        self._sampling = ""  # the sampler that is running: named when it hangs
        self._given_up = False
        self._began, self._stop = threading.Event(), threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> None:
        """Open a window; return when the first sample is taken."""
        if not self._samplers or self._given_up:
            return
        self._began.clear()
        self._stop.clear()
        thread = threading.Thread(target=self._run, name="pytest-accel sampling", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # a limit on processes: nothing is sampled, and all is measured
            self.problems.append(f"nothing was sampled: {error}")
            return
        self._thread = thread
        if not self._began.wait(self._limit_s):
            self._give_up()

    def end(self) -> None:
        """Close the window; return when the last sample is taken. No sampler is called from then on."""
        thread, self._thread = self._thread, None
        if thread is None or self._given_up:
            return
        self._stop.set()
        thread.join(self._limit_s)
        if thread.is_alive():
            self._give_up()

    def _give_up(self) -> None:
        """Leave a thread behind that hangs: it does not keep the process alive, and returns if the call ever does."""
        self._given_up = True
        self._stop.set()
        self.problems.append(
            f"{self._sampling or 'the sampling thread'} did not return within {self._limit_s:g} s, and nothing was "
            "sampled from then on: look at the driver (`dmesg`) and at the load of this host"
        )

    def _run(self) -> None:
        self._sample()
        self._began.set()
        while True:
            stopped = self._stop.wait(self._period_s)
            self._sample()
            if stopped:
                return

    def _sample(self) -> None:
        for sampler in tuple(self._samplers):
            if self._given_up:
                return
            owner, name = getattr(sampler, "__self__", None), getattr(sampler, "__name__", "a sampler")
            self._sampling = str(getattr(owner, "name", "") or name.strip("_").replace("_", " "))
            try:
                sampler()
            except Exception as error:  # noqa: BLE001 -- a sensor that fails never ends a measurement
                self._samplers.remove(sampler)
                why = str(error) or type(error).__name__
                self.problems.append(f"{self._sampling} gave no more readings: {why}")
        self._sampling = ""


class _Monitor:
    """Reads the state of one GPU from `begin()` to `end()`; between them a `SamplingThread` calls `sample`.

    `own_pids` returns the other processes of the measurement.
    """

    library: ClassVar[str]

    def __init__(self, uuid: str, own_pids: Callable[[], frozenset[int]] = frozenset) -> None:
        self._uuid = uuid
        self._own_pids = own_pids
        self._handle: object | None = None
        self._samples: list[DeviceSample] = []
        self._problems: dict[str, str] = {}
        self._begin_s = self._begin_wall_s = 0.0
        self._ecc_before: int | None = None

    @property
    def name(self) -> str:
        return f"{self.library} {nvidia.short_uuid(self._uuid)}"

    def _say(self, what: str, why: str) -> None:
        self._problems.setdefault(what, why)

    def _found_problems(self) -> tuple[str, ...]:
        return tuple(f"{self.name}: {what}: {why}" for what, why in self._problems.items())

    def _others(
        self, held: Mapping[int, int | None] | None, busy: Mapping[int, float]
    ) -> tuple[ForeignProcess, ...]:
        """Return other processes, from memory and load by process; none where a container hides pids, ours among them."""
        own = {os.getpid(), *self._own_pids()}
        if held is None:
            return ()
        pids = held.keys() | busy.keys()
        if not own & pids:
            self._say("processes", "hidden by a container, so that others cannot be separated from ours")
            return ()
        idle = 0.0 if busy else None  # without any sample of shares, idleness is unknown
        return tuple(
            ForeignProcess(pid=pid, memory_bytes=held.get(pid), busy_share=busy.get(pid, idle))
            for pid in sorted(pids - own)
        )


class NvmlMonitor(_Monitor):
    library = "NVML"
    _gpu = nvidia.NvmlGpu(nvidia.Nvml(None, "not opened"), None)
    _calls: Mapping[str, tuple[str, tuple[object, ...]]] = {}  # by field of DeviceSample

    def __enter__(self) -> Self:
        nvml = nvidia.open_nvml()
        self._gpu = nvidia.NvmlGpu(nvml, nvml.handle(self._uuid))
        if self._gpu.handle is not None:
            self._calls = self._answered()
        return self

    def __exit__(self, *_: object) -> None:
        self._gpu.nvml.close()
        self._gpu, self._calls = nvidia.NvmlGpu(nvidia.Nvml(None, "closed"), None), {}

    def begin(self) -> None:
        """Open a window; forget an earlier one."""
        self._samples, self._problems = [], {}
        nvml, handle = self._gpu.nvml, self._gpu.handle
        if why := nvml.problem:
            self._say("NVML", why)
        elif handle is None:
            self._say("NVML", f"knows no device {self._uuid}")
        elif not self._calls:
            self._say("NVML", nvml.attempt("nvmlDeviceGetUUID", handle)[1] or "answers nothing")
        self._ecc_before = self._gpu.uncorrected_errors()
        self._begin_wall_s = time.time()
        self._begin_s = time.perf_counter()

    def sample(self) -> None:
        """Take one sample: the medians of these calls add up to 12 us on an H200."""
        at_s = time.perf_counter()
        readings: dict[str, int] = {}
        for field, (function, arguments) in self._calls.items():
            answer, why = self._gpu.nvml.attempt(function, *arguments)
            if why:  # it did answer before
                self._say(field, why)
            else:
                readings[field] = int(answer)
        self._samples.append(DeviceSample(at_s=at_s, **readings))

    def end(self) -> DeviceReadings:
        """Return all readings; call it when the sampling thread has ended its window."""
        end_s = time.perf_counter()
        samples, gpu = tuple(self._samples), self._gpu
        return DeviceReadings(
            begin_s=self._begin_s,
            end_s=end_s,
            samples=samples,
            power_limit_w=_watts(gpu.power_limit_mw()),
            power_limit_default_w=_watts(gpu.get("PowerManagementDefaultLimit")),
            ecc_uncorrected_before=self._ecc_before,
            ecc_uncorrected_after=gpu.uncorrected_errors(),
            sm_mhz_max=gpu.get("MaxClockInfo", "NVML_CLOCK_SM"),
            foreign=self._others(self._held(), self._busy()),
            problems=self._found_problems(),
        )

    def _answered(self) -> dict[str, tuple[str, tuple[object, ...]]]:
        """Return the calls that this device answers: a refusal costs more than an answer, at every sample."""
        nvml, device = self._gpu.nvml, (self._gpu.handle,)
        constant = nvml.constant
        candidates = [
            ("sm_mhz", "nvmlDeviceGetClockInfo", (*device, constant("NVML_CLOCK_SM"))),
            ("memory_mhz", "nvmlDeviceGetClockInfo", (*device, constant("NVML_CLOCK_MEM"))),
            ("temperature_c", "nvmlDeviceGetTemperature", (*device, constant("NVML_TEMPERATURE_GPU"))),
            ("event_reasons", "nvmlDeviceGetCurrentClocksEventReasons", device),
            ("event_reasons", "nvmlDeviceGetCurrentClocksThrottleReasons", device),  # before driver 535
        ]
        found: dict[str, tuple[str, tuple[object, ...]]] = {}
        for field, function, arguments in candidates:
            if field not in found and nvml.ask(function, *arguments) is not None:
                found[field] = (function, arguments)
        return found

    def _held(self) -> dict[int, int | None] | None:
        listed = self._gpu.get("ComputeRunningProcesses")
        return None if listed is None else {int(each.pid): each.usedGpuMemory for each in listed}

    def _busy(self) -> dict[int, float]:
        """Return shares of the SMs since the window began, by process, as far as they are known."""
        since_us, gpu = int(self._begin_wall_s * 1e6), self._gpu
        found = gpu.nvml.ask("nvmlDeviceGetProcessUtilization", gpu.handle, since_us) if gpu.handle else ()
        shares: dict[int, list[float]] = {}
        for each in found or ():
            if each.pid and each.smUtil <= 100:  # anything else is a row that says nothing
                shares.setdefault(int(each.pid), []).append(each.smUtil / 100)
        return {pid: fmean(values) for pid, values in shares.items()}


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


# `indep_throttle_status` of the MI200 series (amdgpu_smu.h: power, current, temperature, others), as NVML's bits: power and
# current limits bound a healthy GPU at its highest clocks, heat throttles it.
_THROTTLERS = (
    (0, nvidia.POWER_CAP),
    (16, nvidia.BOARD_LIMIT),
    (32, nvidia.HW_THERMAL),
    (48, nvidia.RELIABILITY),
)
# The MI300 series counts the time in each state instead, over `accumulation_counter`.
_HEAT = ("prochot_residency_acc", "socket_thm_residency_acc", "vr_thm_residency_acc", "hbm_thm_residency_acc")
_RESIDENCIES = {"ppt_residency_acc": nvidia.POWER_CAP, **dict.fromkeys(_HEAT, nvidia.HW_THERMAL)}
_NO_STATUS = 0xFFFF_FFFF_FFFF_FFFF
_MOST_W = 1e5  # beyond, a power cap is in microwatts, as on hosts that are no guests


class AmdMonitor(_Monitor):
    """amdsmi's readings of one GPU: a sample is one table, the rest is read at the ends."""

    library = "amdsmi"
    _smi: Any = None
    _unusable = _refusal = "it answers nothing"
    _counted: Mapping[str, int] = {}  # the numbers of the last table

    def __enter__(self) -> Self:
        self._smi, listed, self._unusable = open_amdsmi()
        wanted = serial_number(self._uuid)
        for handle in listed:
            serial = serial_number(self._ask("gpu_asic_info", handle).get("asic_serial"))
            if self._handle is None and serial == wanted is not None:
                self._handle = handle
        return self

    def __exit__(self, *_: object) -> None:
        close_amdsmi(self._smi)
        self._smi, self._handle = None, None

    def begin(self) -> None:
        self._samples, self._problems = [], {}
        if self._handle is None:
            self._say("amdsmi", self._unusable or f"knows no device {self._uuid}")
        # Time in each state that no sample has shown yet, in samples.
        self._carried = dict.fromkeys(_RESIDENCIES, 0.0)
        self._counted = _numbers(self._ask("gpu_metrics_info"))
        self._ecc_before = self._uncorrected()
        self._begin_s = time.perf_counter()

    def sample(self) -> None:
        at_s = time.perf_counter()
        metrics = self._ask("gpu_metrics_info")
        if not metrics and self._handle is not None:
            self._say("metrics", self._refusal)
        numbers = _numbers(metrics)
        self._samples.append(
            DeviceSample(
                at_s=at_s,
                sm_mhz=numbers.get("current_gfxclk", numbers.get("current_gfxclks")),
                memory_mhz=numbers.get("current_uclk"),
                temperature_c=numbers.get("temperature_hotspot"),
                event_reasons=self._events(numbers),
            )
        )

    def end(self) -> DeviceReadings:
        end_s = time.perf_counter()
        caps_w = {
            name: cap / 1e6 if cap > _MOST_W else cap
            for name, cap in _numbers(self._ask("power_cap_info")).items()
        }
        return DeviceReadings(
            begin_s=self._begin_s,
            end_s=end_s,
            samples=tuple(self._samples),
            power_limit_w=caps_w.get("power_cap"),
            power_limit_default_w=caps_w.get("default_power_cap"),
            ecc_uncorrected_before=self._ecc_before,
            ecc_uncorrected_after=self._uncorrected(),
            foreign=self._others(*self._listed()),
            problems=self._found_problems(),
        )

    def _ask(self, what: str, *handle: object) -> Any:  # noqa: ANN401 -- it has no types
        """Return the answer; an empty one where the driver, the GPU or this version has none."""
        try:
            return getattr(self._smi, f"amdsmi_get_{what}")(*(handle or (self._handle,)))
        except Exception as error:  # noqa: BLE001 -- its own types, or a name that this version lacks
            self._refusal = words(error)
            return {}

    def _events(self, numbers: Mapping[str, int]) -> int | None:
        """Return the reasons for lower clocks as NVML's bits."""
        status = numbers.get("indep_throttle_status", _NO_STATUS)
        if status != _NO_STATUS:
            return sum(bit for first, bit in _THROTTLERS if status >> first & 0xFFFF)
        before, self._counted = self._counted, numbers
        passed = {name: numbers[name] - before[name] for name in numbers.keys() & before.keys()}
        if "accumulation_counter" not in passed:
            return None
        reasons = 0
        for name, bit in _RESIDENCIES.items():  # as many samples show a state as it took of the window
            self._carried[name] += passed.get(name, 0) / max(1, passed["accumulation_counter"])
            if self._carried[name] >= 1:
                self._carried[name] -= 1
                reasons |= bit
        return reasons

    def _uncorrected(self) -> int | None:
        return _numbers(self._ask("gpu_total_ecc_count")).get("uncorrectable_count")

    def _listed(self) -> tuple[dict[int, int | None] | None, dict[int, float]]:
        """Return memory, and the share of the compute units at this moment, by process."""
        units = _numbers(self._ask("gpu_asic_info")).get("num_compute_units", 0)
        held: dict[int, int | None] = {}
        busy: dict[int, float] = {}
        processes = self._ask("gpu_process_list")
        for each in filter(lambda process: isinstance(process, dict), processes):  # before ROCm 6, handles
            if memory := _numbers(each).get("mem") or _numbers(each.get("memory_usage")).get("vram_mem"):
                held[each["pid"]] = memory  # without any, it is a process of another GPU
                if units and isinstance(each.get("cu_occupancy"), int):
                    busy[each["pid"]] = min(1.0, each["cu_occupancy"] / units)
        return (held if isinstance(processes, list) else None), busy


def _numbers(answer: Any) -> dict[str, int]:  # noqa: ANN401 -- of amdsmi
    """Return the numbers of an answer, of several their mean; what is absent is "N/A"."""
    found: dict[str, int] = {}
    for name, value in (answer if isinstance(answer, dict) else {}).items():
        numbers = [
            each for each in (value if isinstance(value, list) else [value]) if isinstance(each, int | float)
        ]
        if numbers:  # a mean would round the bits of a status
            found[name] = int(numbers[0]) if len(numbers) == 1 else round(fmean(numbers))
    return found


MONITORS: Mapping[str, type[NvmlMonitor | AmdMonitor]] = {"nvidia": NvmlMonitor, "amd": AmdMonitor}
