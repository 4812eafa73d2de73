"""GPUs through the real pynvml against a fake driver: each case is one GPU of one crowded machine."""

from __future__ import annotations

import json
import sys

import pytest

from pytest_accel.doctor.finding import Level, from_plain
from pytest_accel.doctor.nvidia import examine
from tests.support.fake_nvml import FakeGpu, FakeSlice

pytest_plugins = ("tests.support.fake_nvml",)

CODE = """
import json, os, sys
from pathlib import Path
from pytest_accel.doctor.finding import to_plain
from pytest_accel.platforms.host import Files
from pytest_accel.doctor.nvidia import examine
devices = examine(Files(root=Path(os.environ["HOST_ROOT"])), os.environ, frozenset({0, 1}))
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


@pytest.fixture(scope="module")
def answer(fake_nvml, tmp_path_factory):
    """(findings, gpus, cuda, torch imported) of a machine; `init_error` is what nvmlInit returns."""
    root = tmp_path_factory.mktemp("empty")

    def ask(gpus, **options):
        out = json.loads(fake_nvml.run(CODE, gpus, HOST_ROOT=str(root), **options))
        return from_plain(out[0]), *out[1:]

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
        ("well", "other users", Level.OK, "no process seen, 0 MiB in use, 0 % busy"),
        ("well", "NUMA", Level.OK, "near CPUs 0-1"),
        ("capped", "power limit", Level.WARNING, "500 W, default 700 W"),
        ("in use", "other users", Level.PROBLEM, "2 processes (pid 4711, 4712), 900 MiB in use, 40 % busy"),
        ("hidden user", "other users", Level.WARNING, "no process seen, 900 MiB"),
        ("hot", "throttling", Level.PROBLEM, "too hot (hardware)"),
        ("sick", "memory errors", Level.PROBLEM, "3 uncorrected errors"),
        ("waiting", "memory errors", Level.WARNING, "waits to be replaced"),
        ("slow", "clocks", Level.WARNING, "application 1200 MHz, at most 1980, default 1980"),
        ("narrow", "PCIe", Level.WARNING, "generation 5 x4, at most 5 x16"),
        ("saving", "PCIe", Level.OK, "generation 1 x16, at most 5 x16 (idle"),
        ("far", "NUMA", Level.WARNING, "near CPUs 2-3; this process may only use 0-1"),
        ("lost", "device", Level.PROBLEM, "does not answer: GPU is lost"),
        ("sliced", "MIG", Level.WARNING, "on, 2 slices: 1g.10gb, 1g.10gb"),
        ("silent", "device", Level.OK, "memory not told"),
        ("silent", "power limit", Level.OK, "not told"),
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

    def test_a_device_file_is_a_loaded_driver_too(self, tree):
        assert examine(tree({"dev/nvidia0": ""}), {}, frozenset()).gpus == 1
        assert examine(tree({"dev/nvidia0": ""}), {}, frozenset()).findings[0].level is Level.PROBLEM

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
    (finding,) = from_plain(out[0])
    assert finding.level is Level.PROBLEM
    assert "driver and library versions differ" in finding.text
    assert finding.remedy.startswith("Restart")
