"""Sampling thread with counted samples and a fake clock; NVML: the real pynvml on a fake driver; amdsmi: replayed answers."""

import json
import os
import sys
import threading
from itertools import count
from types import SimpleNamespace

import pytest

from pytest_accel.measure.monitor import AmdMonitor, NvmlMonitor, SamplingThread
from pytest_accel.measure.validity import assess
from tests.support.fake_amdsmi import Smi, SmiError
from tests.support.fake_nvml import MIB, FakeGpu

pytest_plugins = ("tests.support.fake_nvml",)

PATIENCE_S = 30.0  # no test waits this long
NEVER_S = 1e6  # longer than any test


class Counter:
    """Counts its calls and their threads; sets an event at one of them."""

    def __init__(self, wanted: int = 1) -> None:
        self.threads: list[threading.Thread] = []
        self.wanted = wanted
        self.reached = threading.Event()

    def __call__(self) -> None:
        self.threads.append(threading.current_thread())
        if len(self.threads) >= self.wanted:
            self.reached.set()

    def __len__(self) -> int:
        return len(self.threads)


def test_samples_are_taken_by_one_thread_between_begin_and_end_only():
    counter = Counter(wanted=5)
    with SamplingThread([counter], period_s=0.001) as sampling:
        sampling.begin()
        assert counter.reached.wait(PATIENCE_S)
        sampling.end()
    (thread,) = set(counter.threads)
    assert thread is not threading.current_thread()
    assert not thread.is_alive()
    assert sampling.problems == []


def test_a_window_shorter_than_a_period_has_two_samples():
    counter = Counter()
    with SamplingThread([counter], period_s=NEVER_S) as sampling:
        for window in range(1, 4):
            sampling.begin()
            assert len(counter) == 2 * window - 1
            sampling.end()
            assert len(counter) == 2 * window


def test_raising_sampler_is_dropped_and_reported_once():
    counter, calls = Counter(wanted=4), []

    def broken() -> None:
        calls.append(1)
        raise OSError("sensor vanished")

    with SamplingThread([broken, counter], period_s=0.001) as sampling:
        sampling.begin()
        assert counter.reached.wait(PATIENCE_S)
        sampling.end()
        sampling.begin()
        sampling.end()
    assert len(calls) == 1
    assert sampling.problems == ["broken gave no more readings: sensor vanished"]


class Stuck:
    """Answers so many times, then hangs until it is released, like a driver call."""

    name = "NVML GPU-8f3aab12"

    def __init__(self, answers: int) -> None:
        self.answers = answers
        self.hanging, self.released = threading.Event(), threading.Event()

    def sample(self) -> None:
        if self.answers:
            self.answers -= 1
            return
        self.hanging.set()
        assert self.released.wait(PATIENCE_S)


@pytest.mark.parametrize("answers", [0, 1, 2])
def test_hanging_sampler_costs_a_bounded_time_and_is_reported_once(answers):
    """At the first sample, at the one of `end`, and between them."""
    stuck, after = Stuck(answers), Counter()
    sampling = SamplingThread(
        [stuck.sample, after], period_s=NEVER_S if answers == 1 else 0.001, limit_s=PATIENCE_S
    )
    with sampling:
        sampling._limit_s = PATIENCE_S if answers else 1.0
        sampling.begin()
        sampling._limit_s = 1.0
        if answers != 1:
            assert stuck.hanging.wait(PATIENCE_S)
        sampling.end()
        (problem,) = sampling.problems
        assert problem.startswith("NVML GPU-8f3aab12 did not return within 1 s")
        assert not problem.endswith(".")  # others follow behind a semicolon
        sampling.begin()
        sampling.end()
    assert sampling.problems == [problem]
    seen = len(after)
    stuck.released.set()
    left = [thread for thread in threading.enumerate() if thread.name == "pytest-accel sampling"]
    assert all(thread.daemon for thread in left)
    for thread in left:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert len(after) == seen


def test_no_sampler_needs_no_thread():
    before = threading.active_count()
    with SamplingThread([]) as sampling:
        sampling.begin()
        assert threading.active_count() == before
        sampling.end()


def test_thread_that_cannot_start_is_reported(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    counter = Counter()
    with SamplingThread([counter]) as sampling:
        sampling.begin()
        sampling.end()
    assert sampling.problems == ["nothing was sampled: can't start new thread"]
    assert not counter


# --- NVML ------------------------------------------------------------------------------------------

GIB = 1 << 30
UUID = "GPU-8f3aab12-0000-0000-0000-000000000001"
OTHER = FakeGpu(uuid="GPU-00000000-0000-0000-0000-000000000002", clock_sm_mhz=1, ecc_uncorrected=99)
OWN = "{own}"  # the pid of the monitoring process
CODE = """
import json, os, sys, time
from dataclasses import asdict
from itertools import count
from pathlib import Path
from types import SimpleNamespace
description = Path(os.environ["FAKE_NVML"])
description.write_text(description.read_text().replace("{own}", str(os.getpid())))
from pytest_accel.measure import monitor

wanted = json.loads(os.environ["WANTED"])
ticks = count(100)
monitor.time = SimpleNamespace(perf_counter=lambda: float(next(ticks)), time=lambda: time.time() - 10)
device_monitor = monitor.NvmlMonitor(wanted["uuid"], lambda: frozenset(wanted["own_pids"]))
windows = []
with device_monitor:
    for _ in range(wanted["windows"]):
        device_monitor.begin()
        device_monitor.sample()
        device_monitor.sample()
        windows.append(asdict(device_monitor.end()))
print(json.dumps([windows, device_monitor.name, os.getpid(), "torch" in sys.modules]))
"""


@pytest.fixture(scope="module")
def monitor(fake_nvml):
    """Return the readings of a GPU as plain values, a list for several windows."""

    def seen(*gpus, uuid=UUID, own_pids=(), windows=1, **options):
        wanted = {"uuid": uuid, "own_pids": list(own_pids), "windows": windows}
        found, _, _, torch = json.loads(fake_nvml.run(CODE, gpus, WANTED=json.dumps(wanted), **options))
        assert not torch
        return found[0] if windows == 1 else found

    return seen


def gpu(**fields):
    return FakeGpu(**{"uuid": UUID, "processes": f"{OWN}:1000", "process_utilization": f"{OWN}:90"} | fields)


def test_changing_values_are_sampled_and_others_read_at_the_ends(monitor):
    seen = monitor(
        OTHER,
        # The first value of each answers the probe for support.
        gpu(
            clock_sm_mhz="345|1980|1515",
            clock_mem_mhz="0|3201",
            temperature_c="30|61|64",
            clock_event_reasons="1|0|4",
            power_limit_mw=500_000,
            ecc_uncorrected="2|5",
        ),
    )
    first, last = seen.pop("samples")
    assert first == {
        "at_s": 101.0,
        "sm_mhz": 1980,
        "memory_mhz": 3201,
        "temperature_c": 61,
        "event_reasons": 0,
    }
    assert (last["at_s"], last["sm_mhz"], last["temperature_c"]) == (102.0, 1515, 64)
    assert last["event_reasons"] == 4
    assert seen == {
        "begin_s": 100.0,
        "end_s": 103.0,
        "power_limit_w": 500.0,
        "power_limit_default_w": 700.0,
        "sm_mhz_max": 1980,
        "ecc_uncorrected_before": 2,
        "ecc_uncorrected_after": 5,
        "foreign": [],
        "problems": [],
    }


def test_new_window_forgets_the_previous_one(monitor):
    first, second = monitor(gpu(ecc_uncorrected="1|2|3|4"), windows=2)
    assert [first["ecc_uncorrected_before"], first["ecc_uncorrected_after"]] == [1, 2]
    assert [second["ecc_uncorrected_before"], second["ecc_uncorrected_after"]] == [3, 4]
    assert len(first["samples"]) == len(second["samples"]) == 2
    assert second["begin_s"] > first["end_s"]


class TestForeignProcesses:
    def test_foreign_processes_are_listed_with_load_and_memory(self, monitor):
        crowded = gpu(
            processes=f"{OWN}:1000,4711:2150,4712:10,4714:1",
            process_utilization=f"{OWN}:50,4711:30,4711:46,4713:5,4712:80:60",
        )
        assert monitor(crowded, own_pids=[4714])["foreign"] == [
            {"pid": 4711, "memory_bytes": 2150 * MIB, "busy_share": pytest.approx(0.38)},
            {"pid": 4712, "memory_bytes": 10 * MIB, "busy_share": 0.0},  # it was busy before the window
            {"pid": 4713, "memory_bytes": None, "busy_share": 0.05},  # gone by now
        ]

    def test_missing_utilization_leaves_the_load_unknown(self, monitor):
        for silent in (None, ""):
            (foreign,) = monitor(gpu(processes=f"{OWN}:1,4711:10", process_utilization=silent))["foreign"]
            assert foreign == {"pid": 4711, "memory_bytes": 10 * MIB, "busy_share": None}

    def test_invalid_utilization_rows_are_ignored(self, monitor):
        assert monitor(gpu(process_utilization=f"{OWN}:90,0:30,4711:4294967295"))["foreign"] == []

    @pytest.mark.parametrize("processes", ["", "70001:3000,70002:1500"])
    def test_hidden_pids_are_reported(self, monitor, processes):
        seen = monitor(gpu(processes=processes, process_utilization=""))
        assert seen["foreign"] == []
        assert seen["problems"] == [
            "NVML GPU-8f3aab12: processes: hidden by a container, so that others cannot be separated from ours"
        ]


class TestGaps:
    def test_unsupported_values_are_gaps_without_a_problem(self, monitor):
        silent = FakeGpu(
            uuid=UUID,
            temperature_c=41,
            **dict.fromkeys(
                [
                    *("clock_sm_mhz", "clock_mem_mhz", "clock_sm_max_mhz", "clock_event_reasons"),
                    *("utilization", "memory_mib", "power_limit_mw", "power_limit_default_mw"),
                    *("ecc_uncorrected", "processes", "process_utilization"),
                ]
            ),
        )
        seen = monitor(silent)
        known = {name: value for name, value in seen["samples"][0].items() if value is not None}
        assert known == {"at_s": 101.0, "temperature_c": 41}
        ends = {name for name, value in seen.items() if value not in (None, [])}
        assert ends == {"begin_s", "end_s", "samples"}

    def test_gpu_lost_in_the_window_is_reported_once_per_value(self, monitor):
        seen = monitor(gpu(clock_sm_mhz="345|1980|lost", temperature_c="30|lost"))
        assert [each["sm_mhz"] for each in seen["samples"]] == [1980, None]
        assert [each["temperature_c"] for each in seen["samples"]] == [None, None]
        assert seen["problems"] == [
            "NVML GPU-8f3aab12: temperature_c: GPU is lost",
            "NVML GPU-8f3aab12: sm_mhz: GPU is lost",
        ]

    def test_missing_gpu_is_reported(self, monitor):
        seen = monitor(OTHER)
        assert seen["problems"] == [f"NVML GPU-8f3aab12: NVML: knows no device {UUID}"]
        assert seen["ecc_uncorrected_after"] is None

    def test_missing_pynvml_is_reported(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pynvml", None)
        with NvmlMonitor(UUID) as device_monitor:
            device_monitor.begin()
            device_monitor.sample()
            seen = device_monitor.end()
        assert seen.problems == (f"{device_monitor.name}: NVML: the package nvidia-ml-py is not installed",)
        assert [each.sm_mhz for each in seen.samples] == [None]


# --- amdsmi ------------------------------------------------------------------------------------------

SERIAL = "GPU-00000000000000aa"
MI250 = {"current_gfxclk": 1700, "current_uclk": 1600, "temperature_hotspot": 61, "indep_throttle_status": 0}
MI300 = {  # the fields of an MI250 are "N/A" there
    "current_gfxclk": "N/A",
    "current_gfxclks": [2100, 2098, "N/A"],
    "current_uclk": 1300,
    "temperature_hotspot": 70,
    "indep_throttle_status": "N/A",
    "accumulation_counter": 1000,
    "ppt_residency_acc": 500,
    "prochot_residency_acc": 0,
    "socket_thm_residency_acc": 40,
    "vr_thm_residency_acc": 0,
    "hbm_thm_residency_acc": 0,
}
OWN_PROCESS = {"pid": os.getpid(), "mem": GIB, "memory_usage": {"vram_mem": GIB}, "cu_occupancy": 300}


def passed(ticks, **residencies):
    """Return an MI300's metrics after so many ticks, spent in these states."""
    grown = {name: MI300[name] + spent for name, spent in residencies.items()}
    return MI300 | {"accumulation_counter": MI300["accumulation_counter"] + ticks} | grown


@pytest.fixture
def amd(monkeypatch):
    """Return the readings of a GPU that replays these answers; the first metrics are those before the window."""

    def seen(*, samples=2, uuid=SERIAL, own_pids=(), **gpu):
        smi = Smi({"serial": "0xBB"}, {"serial": "0xAA", "processes": [[OWN_PROCESS]], **gpu})
        monkeypatch.setitem(sys.modules, "amdsmi", smi)
        ticks = count(100)
        clock = SimpleNamespace(perf_counter=lambda: float(next(ticks)))
        monkeypatch.setattr("pytest_accel.measure.monitor.time", clock)
        with AmdMonitor(uuid, lambda: frozenset(own_pids)) as device_monitor:
            device_monitor.begin()
            for _ in range(samples):
                device_monitor.sample()
            readings = device_monitor.end()
        assert smi.open == 0
        return readings

    return seen


def test_amd_readings_are_sampled_and_read_at_the_ends(amd):
    seen = amd(
        metrics=[
            MI250,
            MI250,
            MI250 | {"current_gfxclk": 1500, "indep_throttle_status": 1 << 56 | 1 << 36 | 1},
        ],
        caps=[{"power_cap": 500_000_000, "default_power_cap": 560_000_000}],
        ecc=[{"uncorrectable_count": 1}, {"uncorrectable_count": 3}],
    )
    first, last = seen.samples
    assert (first.at_s, first.sm_mhz, first.memory_mhz, first.temperature_c) == (101.0, 1700, 1600, 61)
    assert first.event_reasons == 0
    assert last.event_reasons == 0x400 | 0x40 | 0x4  # reliability; the hotspot is heat, PPT the power limit
    assert (seen.power_limit_w, seen.power_limit_default_w) == (500.0, 560.0)
    assert (seen.ecc_uncorrected_before, seen.ecc_uncorrected_after) == (1, 3)
    assert seen.problems == ()


@pytest.mark.parametrize(
    ("spent", "invalid", "capped"),
    [
        ({}, (), 0.0),
        ({"ppt_residency_acc": 0.5}, (), 0.5),  # a healthy GPU at its power limit
        ({"socket_thm_residency_acc": 0.25}, ("throttled (HW thermal, 25 % of the window)",), 0.0),
        ({"hbm_thm_residency_acc": 0.02}, (), 0.0),  # too short to matter
    ],
)
def test_time_that_an_mi300_was_throttled_is_that_share_of_the_samples(amd, spent, invalid, capped):
    """It counts how long each state lasted, where an MI250 says whether it is in one."""
    grown = {name: share * 100 for name, share in spent.items()}
    window = [passed(100 * n, **{name: int(each * n) for name, each in grown.items()}) for n in range(41)]
    found = assess(amd(samples=40, metrics=window, caps=[{"power_cap": 750}]))
    assert found.invalid == invalid
    assert found.figures["power_capped_share"] == pytest.approx(capped)
    assert found.figures["sm_clock_mhz"] == 2099


def test_foreign_processes_on_an_amd_gpu_invalidate_by_their_load(amd):
    def process(pid, memory, occupied):
        return {"pid": pid, "mem": memory, "memory_usage": {"vram_mem": memory}, "cu_occupancy": occupied}

    listed = [OWN_PROCESS, process(4711, 2 * GIB, 152), process(4712, GIB, "N/A"), process(4713, 0, 0)]
    listed.append({"pid": 4714, "mem": "N/A", "memory_usage": "N/A", "cu_occupancy": 4})
    seen = amd(metrics=[MI250], processes=[listed], own_pids=[4712])
    assert [(each.pid, each.memory_bytes, each.busy_share) for each in seen.foreign] == [(4711, 2 * GIB, 0.5)]
    assert assess(seen).invalid == ("foreign load (pid 4711, 50 % of the SMs, 2.0 GiB)",)
    hidden = amd(metrics=[MI250], processes=[[process(70001, GIB, 10)]])
    assert hidden.foreign == ()
    assert "hidden by a container" in hidden.problems[0]


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({"metrics": [MI250 | {"indep_throttle_status": 2**64 - 1}]}, "clock events are not available"),
        ({"metrics": [SmiError("NO_DATA")]}, "amdsmi GPU-00000000000000aa: metrics: SmiError: NO_DATA"),
        ({"metrics": [MI250], "uuid": "GPU-0"}, "amdsmi GPU-0: amdsmi: knows no device GPU-0"),
    ],
)
def test_what_amdsmi_does_not_answer_is_a_note(amd, answers, problem):
    seen = amd(**answers)
    assert assess(seen).invalid == ()
    assert problem in assess(seen).notes[0]


def test_amdsmi_without_rocm_is_a_note(monkeypatch):
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with AmdMonitor(SERIAL) as device_monitor:
        device_monitor.begin()
        device_monitor.sample()
        (problem,) = device_monitor.end().problems
    assert "amdsmi is not installed; it comes with ROCm" in problem
