"""GPUs: each check on values, and all of them through the real pynvml with a fake driver library."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.doctor.findings import Finding, Level
from pytest_accel.doctor.gpus import GpuState, examine, judge_gpu
from tests.support.fake_nvml import FakeGpu, FakeSlice

pytest_plugins = ("tests.support.fake_nvml",)

GIB = 1 << 30
WELL = GpuState(
    index=0,
    name="NVIDIA H200",
    uuid="GPU-8f3aab12-1234-9abc-1234-1234567890ab",
    memory_bytes=140 * GIB,
    memory_used_bytes=4 << 20,
    utilization_percent=0,
    pids=(),
    sm_mhz=345,
    sm_max_mhz=1980,
    sm_application_mhz=1980,
    sm_default_mhz=1980,
    power_mw=75_000,
    power_limit_mw=700_000,
    power_limit_default_mw=700_000,
    temperature_c=30,
    event_reasons=1,
    persistence=True,
    ecc=True,
    ecc_pending=True,
    uncorrected_now=0,
    uncorrected_ever=0,
    remapping_pending=False,
    remapping_failed=False,
    mig=False,
    pcie_generation=5,
    pcie_generation_max=5,
    pcie_width=16,
    pcie_width_max=16,
)


def found(subject, *, gpu=WELL, own_pid=1, in_use=False, **changes):
    state = replace(gpu, **changes)
    (finding,) = [
        each for each in judge_gpu(state, own_pid=own_pid, in_use=in_use) if each.subject == subject
    ]
    return finding


def test_a_healthy_gpu_is_well_in_everything():
    findings = judge_gpu(WELL)
    assert {finding.level for finding in findings} == {Level.OK}
    assert all(finding.known and finding.of == "GPU 0" for finding in findings)
    assert findings[0].text == "NVIDIA H200, 140.0 GiB, GPU-8f3aab12"


def test_gpu_without_answers_is_no_warning():
    findings = judge_gpu(GpuState(index=2, name="Tesla K80", uuid="GPU-a"))
    assert {finding.level for finding in findings} == {Level.OK}
    silent = {finding.subject for finding in findings if not finding.known}
    assert silent == {
        "now",
        "other users",
        "clocks",
        "throttling",
        "power limit",
        "persistence",
        "ECC",
        "PCIe",
    }


@pytest.mark.parametrize(
    ("subject", "changes", "level", "words"),
    [
        ("power limit", {"power_limit_mw": 500_000}, Level.WARNING, "500 W, default 700 W: capped"),
        ("power limit", {"power_limit_mw": 800_000}, Level.OK, "800 W, default 700 W"),
        ("persistence", {"persistence": False}, Level.WARNING, "off"),
        ("ECC", {"ecc": False, "ecc_pending": False}, Level.WARNING, "off"),
        ("ECC", {"ecc_pending": False}, Level.WARNING, "on, and off after the next reset"),
        ("memory errors", {"uncorrected_now": 2}, Level.PROBLEM, "2 uncorrected errors"),
        ("memory errors", {"uncorrected_ever": 1}, Level.OK, "none now, 1 uncorrected error in its life"),
        ("memory errors", {"remapping_pending": True}, Level.WARNING, "is replaced at the next reset"),
        ("memory errors", {"remapping_failed": True}, Level.PROBLEM, "could not be replaced"),
        ("MIG", {"mig": True, "slices": ("1g.10gb", "1g.10gb")}, Level.WARNING, "on, 2 slices: 1g.10gb"),
        ("MIG", {"mig": True}, Level.PROBLEM, "CUDA finds nothing"),
        ("clocks", {"sm_application_mhz": 1200}, Level.WARNING, "default 1980: lowered"),
        # As shipped: an A100's default application clock is below its maximum.
        ("clocks", {"sm_application_mhz": 1095, "sm_default_mhz": 1095}, Level.OK, "application 1095 MHz"),
        ("clocks", {"sm_application_mhz": None}, Level.OK, "application clocks unknown"),
        ("PCIe", {"pcie_width": 8}, Level.WARNING, "generation 5 x8, at most 5 x16"),
        ("PCIe", {"pcie_generation": 1}, Level.OK, "idle: it saves power"),
        ("PCIe", {"pcie_generation": 3, "event_reasons": 0}, Level.WARNING, "generation 3 x16"),
        ("PCIe", {"pcie_width": 0}, Level.OK, "not reported"),
        ("throttling", {"event_reasons": 0}, Level.OK, "none"),
        ("throttling", {"event_reasons": 0x40 | 0x4}, Level.PROBLEM, "too hot (hardware), power limit"),
        ("throttling", {"event_reasons": 0x80}, Level.PROBLEM, "power brake"),
        ("throttling", {"event_reasons": 0x4}, Level.WARNING, "power limit"),
        ("throttling", {"event_reasons": 1 << 40}, Level.WARNING, "unknown reason 0x10000000000"),
    ],
)
def test_each_check(subject, changes, level, words):
    finding = found(subject, **changes)
    assert finding.level is level
    assert words in finding.text


class TestOtherUsers:
    def test_load_is_a_problem_even_where_a_container_hides_the_process(self):
        finding = found("other users", utilization_percent=37, memory_used_bytes=60 * GIB)
        assert finding.level is Level.PROBLEM
        assert finding.text == "no process visible, 60.0 GiB in use, 37 % busy"

    def test_memory_alone_is_a_warning(self):
        assert found("other users", memory_used_bytes=1 * GIB).level is Level.WARNING

    def test_what_this_process_holds_is_not_foreign(self):
        finding = found(
            "other users",
            own_pid=42,
            in_use=True,
            pids=(42,),
            memory_used_bytes=4 * GIB,
            utilization_percent=90,
        )
        assert finding.level is Level.OK
        assert "this process measures here" in finding.text

    def test_somebody_beside_this_process_is(self):
        finding = found("other users", own_pid=42, in_use=True, pids=(42, 43), utilization_percent=90)
        assert finding.level is Level.PROBLEM
        assert "pid 43" in finding.text
        assert "42" not in finding.text


def _answers():
    kinds = {
        "int": st.none() | st.integers(min_value=0, max_value=2**64),
        "bool": st.none() | st.booleans(),
    }
    return {
        each.name: kinds[each.type.partition(" ")[0]]
        for each in fields(GpuState)
        if each.name != "index" and each.type.partition(" ")[0] in kinds
    }


@given(st.fixed_dictionaries(_answers()))
def test_no_answer_of_nvml_is_too_strange(answers):
    """Whatever a sensor returns becomes findings; a Finding itself refuses a warning without a remedy."""
    findings = judge_gpu(GpuState(index=0, name="", uuid="", **answers))
    assert len(findings) >= 10


# --- the real pynvml --------------------------------------------------------------------------------

CODE = """
import json, os, sys
from pathlib import Path
from pytest_accel.doctor.findings import to_plain
from pytest_accel.platforms.host import HostFiles
from pytest_accel.doctor.gpus import examine
devices = examine(HostFiles(root=Path(os.environ["HOST_ROOT"])), os.environ, frozenset({0, 1}))
print(json.dumps([to_plain(devices.findings), devices.gpus, devices.cuda, "torch" in sys.modules]))
"""
CASES = {
    "well": FakeGpu(cpu_affinity="3"),
    "capped": FakeGpu(power_limit_mw=500_000),
    "in use": FakeGpu(processes="4711:512,4712:0", memory_used_mib=900, utilization=40),
    "hidden user": FakeGpu(memory_used_mib=900),
    "hot": FakeGpu(clock_event_reasons=0x40),
    "sick": FakeGpu(ecc_uncorrected=3, ecc_uncorrected_ever=9),
    "waiting": FakeGpu(remapping_pending=1),
    "slow": FakeGpu(clock_sm_application_mhz=1200, clock_sm_default_mhz=1980),
    "narrow": FakeGpu(pcie_width=4, pcie_width_max=16),
    "saving": FakeGpu(pcie_generation=1, pcie_generation_max=5),
    "far": FakeGpu(cpu_affinity="c"),
    "lost": FakeGpu(lost=1),
    "sliced": FakeGpu(mig=1, slices=(FakeSlice(uuid="MIG-a"), FakeSlice(uuid="MIG-b"))),
    "silent": FakeGpu(
        **dict.fromkeys(
            [
                "power_limit_mw",
                "power_limit_default_mw",
                "clock_sm_application_mhz",
                "clock_sm_max_mhz",
                "ecc",
                "persistence",
                "clock_event_reasons",
                "mig",
                "utilization",
                "processes",
                "ecc_uncorrected",
                "ecc_uncorrected_ever",
                "remapping_pending",
                "pcie_generation",
                "pcie_width",
                "temperature_c",
                "memory_mib",
            ]
        )
    ),
}


def findings_of(plain):
    return [Finding(**{**each, "level": Level(each["level"])}) for each in plain]


@pytest.fixture(scope="module")
def answer(fake_nvml, tmp_path_factory):
    """(findings, gpus, cuda, torch imported) of a machine; `init_error` is what nvmlInit returns."""
    root = tmp_path_factory.mktemp("empty")

    def ask(gpus, **options):
        out = json.loads(fake_nvml.run(CODE, gpus, HOST_ROOT=str(root), **options))
        return findings_of(out[0]), *out[1:]

    return ask


@pytest.fixture(scope="module")
def crowd(answer):
    gpus = [
        FakeGpu(**{name: getattr(gpu, name) for name in gpu.__slots__} | {"uuid": f"GPU-{index:08x}-1"})
        for index, gpu in enumerate(CASES.values())
    ]
    return answer(gpus)


@pytest.fixture
def of(crowd):
    def find(case, subject):
        which = f"GPU {list(CASES).index(case)}"
        (finding,) = [each for each in crowd[0] if each.of == which and each.subject == subject]
        return finding

    return find


@pytest.mark.parametrize(
    ("case", "subject", "level", "words"),
    [
        ("well", "device", Level.OK, "NVIDIA H200, 140.4 GiB, GPU-00000000"),
        ("well", "now", Level.OK, "345 MHz, 75 W, 30 °C (idle"),
        ("well", "other users", Level.OK, "no process visible, 0 MiB in use, 0 % busy"),
        ("well", "NUMA", Level.OK, "near CPUs 0-1"),
        ("capped", "power limit", Level.WARNING, "500 W, default 700 W"),
        ("in use", "other users", Level.PROBLEM, "2 processes (pid 4711, 4712), 900 MiB in use, 40 % busy"),
        ("hidden user", "other users", Level.WARNING, "no process visible, 900 MiB"),
        ("hot", "throttling", Level.PROBLEM, "too hot (hardware)"),
        ("sick", "memory errors", Level.PROBLEM, "3 uncorrected errors"),
        ("waiting", "memory errors", Level.WARNING, "is replaced at the next reset"),
        ("slow", "clocks", Level.WARNING, "application 1200 MHz, at most 1980, default 1980"),
        ("narrow", "PCIe", Level.WARNING, "generation 5 x4, at most 5 x16"),
        ("saving", "PCIe", Level.OK, "generation 1 x16, at most 5 x16 (idle"),
        ("far", "NUMA", Level.WARNING, "near CPUs 2-3; this process may only use 0-1"),
        ("lost", "device", Level.PROBLEM, "does not answer: GPU is lost"),
        ("sliced", "MIG", Level.WARNING, "on, 2 slices: 1g.10gb, 1g.10gb"),
        ("silent", "device", Level.OK, "memory unknown"),
        ("silent", "power limit", Level.OK, "not reported"),
    ],
)
def test_what_the_driver_says_is_found(of, case, subject, level, words):
    finding = of(case, subject)
    assert finding.level is level
    assert words in finding.text


def test_others_are_told_of_the_gpus_and_the_driver(crowd):
    findings, gpus, cuda, torch_imported = crowd
    assert (gpus, cuda, torch_imported) == (len(CASES), [13, 0], False)
    assert findings[0].text == "580.65.06, CUDA 13.0"


def test_healthy_gpus_raise_no_alarm(answer):
    findings, *_ = answer([FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b")])
    assert {finding.level for finding in findings} == {Level.OK}
    assert findings[-1].text == "CUDA sees 2 of 2"


def test_hidden_gpus_are_a_problem(answer):
    findings, *_ = answer([FakeGpu()], CUDA_VISIBLE_DEVICES="7")
    (finding,) = [each for each in findings if each.subject == "visible"]
    assert finding.level is Level.PROBLEM
    assert "CUDA_VISIBLE_DEVICES='7' leaves none of 1 x NVIDIA H200" in finding.text


def test_mixed_gpus_come_with_their_remedy(answer):
    findings, *_ = answer([FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b", name="Tesla T4")])
    (finding,) = [each for each in findings if each.subject == "visible"]
    assert finding.level is Level.WARNING
    assert "GPUs of different models" in finding.text
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in finding.remedy


class TestWithoutNvml:
    """This process has no driver library, which is what these are about."""

    @pytest.fixture(autouse=True)
    def no_driver(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pynvml", None)

    def test_no_gpu_is_no_finding(self, tree):
        devices = examine(tree({"dev/null": ""}), {}, frozenset({0}))
        assert (devices.findings, devices.gpus) == ((), 0)

    def test_a_loaded_driver_without_the_package_is_a_problem(self, tree):
        devices = examine(tree({"proc/driver/nvidia/version": "580"}), {}, frozenset({0}))
        assert devices.findings[0].level is Level.PROBLEM
        assert "pip install nvidia-ml-py" in devices.findings[0].remedy
        assert devices.gpus == 1

    def test_a_gpu_on_the_bus_may_be_meant_for_others(self, tree):
        root = "sys/bus/pci/devices"
        files = tree(
            {
                f"{root}/0000:17:00.0/vendor": "0x10de\n",
                f"{root}/0000:17:00.0/class": "0x030200\n",
                f"{root}/0000:17:00.1/vendor": "0x10de\n",
                f"{root}/0000:17:00.1/class": "0x040300\n",  # its audio
                f"{root}/0000:00:02.0/vendor": "0x8086\n",
                f"{root}/0000:00:02.0/class": "0x030000\n",
            }
        )
        devices = examine(files, {}, frozenset({0}))
        assert devices.findings[0].level is Level.WARNING
        assert "1 x NVIDIA on the PCI bus" in devices.findings[0].text
        assert devices.gpus == 0


def test_a_driver_that_does_not_match_its_library_is_a_problem(fake_nvml, tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    out = json.loads(fake_nvml.run(CODE, [FakeGpu()], init_error=18, HOST_ROOT=str(tmp_path)))
    (finding,) = findings_of(out[0])
    assert finding.level is Level.PROBLEM
    assert "driver and library versions differ" in finding.text
    assert finding.remedy.startswith("Restart")
