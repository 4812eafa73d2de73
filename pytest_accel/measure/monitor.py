"""State of a GPU during a measurement: NVML's readings, and the thread that takes them beside it.

The thread takes all samples, the first and the last of a window too, for which the caller waits a bounded time: a driver
call that hangs holds the thread, not the session. Inside the window only calls that take microseconds; the rest at its
ends (H200: width of the PCIe link 28 us, running processes 25 us, their shares of the SMs 2 ms). All of NVML is optional:
an old driver or a lost GPU leave gaps, not errors.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, Self

from pytest_accel.measure.validity import DeviceReadings, DeviceSample, ForeignProcess
from pytest_accel.platforms.nvidia import Nvml, close, open_nvml, short_uuid

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

    # --- in the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        self._sample()
        first_s, beat = time.monotonic(), 0
        self._began.set()
        while True:
            beat = next_beat(beat, time.monotonic() - first_s, self._period_s)
            stopped = self._stop.wait(max(0.0, first_s + beat * self._period_s - time.monotonic()))
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


def next_beat(beat: int, elapsed_s: float, period_s: float) -> int:
    """Return the number of the next period since the first sample; a missed one is skipped."""
    return max(beat, math.floor(elapsed_s / period_s)) + 1


# --- NVML --------------------------------------------------------------------------------------------------


class NvmlMonitor:
    """Reads the state of one GPU from `begin()` to `end()`; between them a `SamplingThread` calls `sample`.

    `own_pids` returns the other processes of the measurement.
    """

    def __init__(
        self,
        uuid: str,
        own_pids: Callable[[], frozenset[int]] = frozenset,
        *,
        clock: Callable[[], float] = time.perf_counter,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._uuid = uuid
        self._own_pids = own_pids
        self._clock, self._wall_clock = clock, wall_clock
        self._nvml = Nvml(None, "not opened")
        self._handle: object | None = None
        self._calls: dict[str, tuple[str, tuple[object, ...]]] = {}  # by field of DeviceSample
        self._samples: list[DeviceSample] = []
        self._problems: dict[str, str] = {}
        self._begin_s = self._begin_wall_s = 0.0
        self._ecc_before: int | None = None

    @property
    def name(self) -> str:
        """The name in problems: `NVML GPU-8f3aab12`."""
        return f"NVML {short_uuid(self._uuid)}"

    def __enter__(self) -> Self:
        self._nvml = open_nvml()
        self._handle = self._nvml.handle(self._uuid)
        if self._handle is not None:
            self._calls = self._answered()
        return self

    def __exit__(self, *_: object) -> None:
        close(self._nvml)
        self._nvml, self._handle, self._calls = Nvml(None, "closed"), None, {}

    def begin(self) -> None:
        """Open a window; forget an earlier one."""
        self._samples, self._problems = [], {}
        if why := self._nvml.problem:
            self._say("NVML", why)
        elif self._handle is None:
            self._say("NVML", f"knows no device {self._uuid}")
        elif not self._calls:
            self._say("NVML", self._nvml.attempt("nvmlDeviceGetUUID", self._handle)[1] or "answers nothing")
        self._ecc_before = self._uncorrected()
        self._begin_wall_s = self._wall_clock()
        self._begin_s = self._clock()

    def sample(self) -> None:
        """Take one sample: the medians of these calls add up to 12 us on an H200."""
        at_s = self._clock()
        readings: dict[str, int] = {}
        for field, (function, arguments) in self._calls.items():
            answer, why = self._nvml.attempt(function, *arguments)
            if why:  # it did answer before
                self._say(field, why)
            else:
                readings[field] = int(answer)
        self._samples.append(DeviceSample(at_s=at_s, **readings))

    def end(self) -> DeviceReadings:
        """Return all readings; call it when the sampling thread has ended its window."""
        end_s = self._clock()
        samples = tuple(self._samples)
        # First: an idle link falls back to a slower generation.
        generation, width = self._ask("CurrPcieLinkGeneration"), self._ask("CurrPcieLinkWidth")
        limits_mw = [self._ask("PowerManagementLimit"), self._ask("EnforcedPowerLimit")]
        return DeviceReadings(
            begin_s=self._begin_s,
            end_s=end_s,
            samples=samples,
            # The lower one counts: a node or a Grace Hopper module may enforce less than was set.
            power_limit_w=_watts(min((each for each in limits_mw if each), default=None)),
            power_limit_default_w=_watts(self._ask("PowerManagementDefaultLimit")),
            ecc_uncorrected_before=self._ecc_before,
            ecc_uncorrected_after=self._uncorrected(),
            pcie_generation=generation,
            pcie_generation_max=self._ask("MaxPcieLinkGeneration"),
            pcie_width=width,
            pcie_width_max=self._ask("MaxPcieLinkWidth"),
            foreign=self._others(),
            problems=tuple(f"{self.name}: {what}: {why}" for what, why in self._problems.items()),
        )

    def _answered(self) -> dict[str, tuple[str, tuple[object, ...]]]:
        """Return the calls that this device answers: a refusal costs more than an answer, at every sample."""
        constant, device = self._nvml.constant, (self._handle,)
        candidates = [
            ("sm_mhz", "nvmlDeviceGetClockInfo", (*device, constant("NVML_CLOCK_SM"))),
            ("memory_mhz", "nvmlDeviceGetClockInfo", (*device, constant("NVML_CLOCK_MEM"))),
            ("temperature_c", "nvmlDeviceGetTemperature", (*device, constant("NVML_TEMPERATURE_GPU"))),
            ("event_reasons", "nvmlDeviceGetCurrentClocksEventReasons", device),
            ("event_reasons", "nvmlDeviceGetCurrentClocksThrottleReasons", device),  # before driver 535
        ]
        found: dict[str, tuple[str, tuple[object, ...]]] = {}
        for field, function, arguments in candidates:
            if field not in found and self._nvml.ask(function, *arguments) is not None:
                found[field] = (function, arguments)
        return found

    def _ask(self, what: str, *arguments: object) -> Any:  # noqa: ANN401 -- numbers of NVML's
        if self._handle is None:
            return None
        return self._nvml.ask(f"nvmlDeviceGet{what}", self._handle, *arguments)

    def _uncorrected(self) -> int | None:
        kinds = ("NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_VOLATILE_ECC")
        found: int | None = self._ask("TotalEccErrors", *map(self._nvml.constant, kinds))
        return found

    def _say(self, what: str, why: str) -> None:
        self._problems.setdefault(what, why)

    def _others(self) -> tuple[ForeignProcess, ...]:
        """Return other processes; none where a container hides pids, ours among them."""
        held, busy, own = self._held(), self._busy(), {os.getpid(), *self._own_pids()}
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

    def _held(self) -> dict[int, int | None] | None:
        """Return memory by process; None where the device does not list them."""
        if self._handle is None:
            return None
        listed = self._nvml.ask("nvmlDeviceGetComputeRunningProcesses", self._handle)
        return None if listed is None else {int(each.pid): each.usedGpuMemory for each in listed}

    def _busy(self) -> dict[int, float]:
        """Return shares of the SMs since the window began, by process, as far as they are known."""
        if self._handle is None:
            return {}
        since_us = int(self._begin_wall_s * 1e6)
        found = self._nvml.ask("nvmlDeviceGetProcessUtilization", self._handle, since_us) or ()
        shares: dict[int, list[float]] = {}
        for each in found:
            if each.pid and each.smUtil <= 100:  # anything else is a row that says nothing
                shares.setdefault(int(each.pid), []).append(each.smUtil / 100)
        return {pid: fmean(values) for pid, values in shares.items()}


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
