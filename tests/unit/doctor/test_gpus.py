"""GPUs: each check on the answers of a fake pynvml, and all of them through the real one with a fake driver library."""

import json
import sys
from types import SimpleNamespace

import pytest

from pytest_accel.doctor.findings import Finding, Level
from pytest_accel.doctor.gpus import examine, examine_gpu
from pytest_accel.platforms.host import HostFiles
from pytest_accel.platforms.nvidia import Nvml
from tests.support.fake_nvml import FakeGpu

pytest_plugins = ("tests.support.fake_nvml",)

GIB = 1 << 30
NAMED = {"HandleByIndex": 0, "Name": "NVIDIA H200", "UUID": "GPU-8f3aab12-1234-9abc-1234-1234567890ab"}
WELL = {
    **NAMED,
    "MemoryInfo": SimpleNamespace(total=140 * GIB, used=4 << 20),
    "UtilizationRates": SimpleNamespace(gpu=0),
    "ComputeRunningProcesses": [],
    "ClockInfo": 345,
    "MaxClockInfo": 1980,
    "ApplicationsClock": 1980,
    "DefaultApplicationsClock": 1980,
    "PowerUsage": 75_000,
    "PowerManagementLimit": 700_000,
    "PowerManagementDefaultLimit": 700_000,
    "Temperature": 30,
    "CurrentClocksEventReasons": 1,
    "PersistenceMode": 1,
    "EccMode": (1, 1),
    "TotalEccErrors": 0,
    "RemappedRows": (0, 0, 0, 0),
    "MigMode": (0, 0),
    "CurrPcieLinkGeneration": 5,
    "CurrPcieLinkWidth": 16,
    "MaxPcieLinkGeneration": 5,
    "MaxPcieLinkWidth": 16,
}


def judged(answers, tmp_path):
    """Findings by subject on a GPU with these answers to `nvmlDeviceGet...`; None is no answer."""
    functions = {
        f"nvmlDeviceGet{name}": lambda *_, answer=answer: answer
        for name, answer in answers.items()
        if answer is not None
    }
    findings = examine_gpu(Nvml(SimpleNamespace(**functions)), 0, HostFiles(root=tmp_path), frozenset({0}))
    return {finding.subject: finding for finding in findings if finding.subject != "NUMA"}


def test_healthy_gpu_is_ok_in_everything(tmp_path):
    found = judged(WELL, tmp_path)
    assert {finding.level for finding in found.values()} == {Level.OK}
    assert all(finding.known and finding.of == "GPU 0" for finding in found.values())
    assert found["device"].text == "NVIDIA H200, 140.0 GiB, GPU-8f3aab12"


def test_gpu_without_answers_is_no_warning(tmp_path):
    found = judged(NAMED, tmp_path)
    assert {finding.level for finding in found.values()} == {Level.OK}
    assert {name for name in found if found[name].known} == {"device", "MIG"}


def memory(gib):
    return SimpleNamespace(total=140 * GIB, used=int(gib * GIB))


@pytest.mark.parametrize(
    ("subject", "changes", "level", "words"),
    [
        ("power limit", {"PowerManagementLimit": 500_000}, Level.WARNING, "500 W, default 700 W: capped"),
        ("power limit", {"EnforcedPowerLimit": 600_000}, Level.WARNING, "600 W, default 700 W: capped"),
        ("power limit", {"PowerManagementLimit": 800_000}, Level.OK, "800 W, default 700 W"),
        ("persistence", {"PersistenceMode": 0}, Level.WARNING, "off"),
        ("ECC", {"EccMode": (0, 0)}, Level.WARNING, "off"),
        ("memory errors", {"TotalEccErrors": 2}, Level.PROBLEM, "2 uncorrected errors"),
        ("memory errors", {"RemappedRows": (0, 0, 1, 0)}, Level.WARNING, "is replaced at the next reset"),
        ("memory errors", {"RemappedRows": (0, 0, 0, 1)}, Level.PROBLEM, "could not be replaced"),
        ("MIG", {"MigMode": (1, 1)}, Level.PROBLEM, "slices of a GPU are not measured"),
        ("clocks", {"ApplicationsClock": 1200}, Level.WARNING, "default 1980: lowered"),
        # As shipped: an A100's default application clock is below its maximum.
        ("clocks", {"ApplicationsClock": 1095, "DefaultApplicationsClock": 1095}, Level.OK, "1095 MHz"),
        ("clocks", {"ApplicationsClock": None}, Level.OK, "application clock unknown, at most 1980"),
        # Locked by `nvidia-smi -lgc 1200`: application clocks are as they were, idle or busy.
        ("clocks", {"ClockInfo": 1200}, Level.WARNING, "held at 1200 without a reason"),
        ("clocks", {"ClockInfo": 900, "CurrentClocksEventReasons": 0}, Level.WARNING, "held at 900"),
        ("clocks", {"ClockInfo": 900, "CurrentClocksEventReasons": 4}, Level.OK, "at most 1980"),  # power
        ("clocks", {"ClockInfo": 1980, "CurrentClocksEventReasons": 0}, Level.OK, "at most 1980"),
        ("PCIe", {"CurrPcieLinkWidth": 8}, Level.WARNING, "generation 5 x8, at most 5 x16"),
        ("PCIe", {"CurrPcieLinkGeneration": 1}, Level.OK, "idle: it saves power"),
        (
            "PCIe",
            {"CurrPcieLinkGeneration": 3, "CurrentClocksEventReasons": 0},
            Level.WARNING,
            "generation 3 x16",
        ),
        ("PCIe", {"CurrPcieLinkWidth": 0}, Level.OK, "not reported"),
        ("throttling", {"CurrentClocksEventReasons": 0}, Level.OK, "none"),
        ("throttling", {"CurrentClocksEventReasons": 0x44}, Level.PROBLEM, "power limit, too hot (hardware)"),
        ("throttling", {"CurrentClocksEventReasons": 0x80}, Level.PROBLEM, "power brake"),
        ("throttling", {"CurrentClocksEventReasons": 0x4}, Level.WARNING, "power limit"),
        ("throttling", {"CurrentClocksEventReasons": 1 << 40}, Level.WARNING, "unknown reason 0x10000000000"),
        ("other users", {"MemoryInfo": memory(1)}, Level.WARNING, "processes: none visible, 1.0 GiB in use"),
        (
            "other users",
            {"MemoryInfo": memory(60), "UtilizationRates": SimpleNamespace(gpu=37)},
            Level.PROBLEM,
            "processes: none visible, 60.0 GiB in use, 37 % busy",  # a container hides the process
        ),
        (
            "other users",
            {"UtilizationRates": SimpleNamespace(gpu=2**32 - 1)},
            Level.OK,
            "processes: none visible",
        ),
    ],
)
def test_each_check(tmp_path, subject, changes, level, words):
    finding = judged(WELL | changes, tmp_path)[subject]
    assert finding.level is level
    assert bool(finding.remedy) == (level is not Level.OK)
    assert words in finding.text


def test_locked_clock_is_named_with_its_remedy_below_the_present_one(tmp_path):
    found = judged(WELL | {"ClockInfo": 1200}, tmp_path)
    assert found["now"].text == "1200 MHz, 75 W, 30 °C (idle)"
    assert "at most 1980, and held at 1200" in found["clocks"].text
    assert "`nvidia-smi -i N -rgc` as root releases locked clocks" in found["clocks"].remedy


# --- the real pynvml --------------------------------------------------------------------------------

CODE = """
import json, os, sys
from pathlib import Path
from pytest_accel.doctor.findings import to_plain
from pytest_accel.platforms.host import HostFiles
from pytest_accel.doctor.gpus import examine
devices = examine(HostFiles(root=Path(os.environ["HOST_ROOT"])), os.environ, frozenset({0, 1}))
print(json.dumps([to_plain(devices[0]), "torch" in sys.modules]))
"""
CASES = {
    "well": FakeGpu(pci_bus_id="00000000:17:00.0"),
    "in use": FakeGpu(processes="4711:512,4712:0", memory_used_mib=900, utilization=40),
    "far": FakeGpu(pci_bus_id="00000000:18:00.0"),
    "locked": FakeGpu(clock_sm_mhz=1200),  # new drivers say no application clocks
    "lost": FakeGpu(lost=1),
}


@pytest.fixture(scope="module")
def answer(fake_nvml, tmp_path_factory):
    """Findings on a machine; `init_error` is what nvmlInit returns."""
    root = tmp_path_factory.mktemp("host")
    for bus_id, cpus in {"0000:17:00.0": "0-1", "0000:18:00.0": "2-3"}.items():
        folder = root / "sys/bus/pci/devices" / bus_id
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text("0")
        (folder / "local_cpulist").write_text(cpus)

    def ask(gpus, **options):
        plain, has_torch = json.loads(fake_nvml.run(CODE, gpus, **{"HOST_ROOT": str(root)} | options))
        assert not has_torch
        return [Finding(**{**each, "level": Level(each["level"])}) for each in plain]

    return ask


@pytest.fixture(scope="module")
def crowd(answer):
    return answer(
        [
            FakeGpu(**{name: getattr(gpu, name) for name in gpu.__slots__} | {"uuid": f"GPU-{index:08x}-1"})
            for index, gpu in enumerate(CASES.values())
        ]
    )


@pytest.mark.parametrize(
    ("case", "subject", "level", "words"),
    [
        ("well", "device", Level.OK, "NVIDIA H200, 140.4 GiB, GPU-00000000"),
        ("well", "now", Level.OK, "345 MHz, 75 W, 30 °C (idle)"),
        ("well", "NUMA", Level.OK, "near CPUs 0-1"),
        ("in use", "other users", Level.PROBLEM, "processes: 4711, 4712, 900 MiB in use, 40 % busy"),
        ("far", "NUMA", Level.WARNING, "near CPUs 2-3; this process may only use 0-1"),
        ("locked", "now", Level.OK, "1200 MHz, 75 W, 30 °C (idle)"),
        ("locked", "clocks", Level.WARNING, "at most 1980, and held at 1200 without a reason"),
        ("lost", "device", Level.PROBLEM, "does not answer: GPU is lost"),
    ],
)
def test_answers_of_the_driver(crowd, case, subject, level, words):
    which = f"GPU {list(CASES).index(case)}"
    (finding,) = [each for each in crowd if (each.of, each.subject) == (which, subject)]
    assert finding.level is level
    assert words in finding.text


@pytest.mark.parametrize(
    ("gpus", "environ", "level", "words", "remedy"),
    [
        ([FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b")], {}, Level.OK, "CUDA sees 2 of 2", ""),
        (
            [FakeGpu()],
            {"CUDA_VISIBLE_DEVICES": "7"},
            Level.PROBLEM,
            "CUDA_VISIBLE_DEVICES='7' leaves none of 1 x NVIDIA H200",
            "Unset CUDA_VISIBLE_DEVICES",
        ),
        (
            [FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b", name="Tesla T4")],
            {},
            Level.WARNING,
            "GPUs of different models",
            "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        ),
    ],
    ids=["all", "hidden", "mixed"],
)
def test_visible_gpus(answer, gpus, environ, level, words, remedy):
    finding = answer(gpus, **environ)[-1]
    assert (finding.subject, finding.level) == ("visible", level)
    assert words in finding.text
    assert remedy in finding.remedy


def test_driver_that_does_not_match_its_library_is_a_problem(answer, tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    (finding,) = answer([FakeGpu()], init_error=18, HOST_ROOT=str(tmp_path))
    assert finding.level is Level.PROBLEM
    assert "version mismatch" in finding.text
    assert "restart the node" in finding.remedy


@pytest.mark.parametrize(("file", "gpus"), [("dev/null", 0), ("proc/driver/nvidia/version", 1)])
def test_loaded_driver_without_the_package_is_a_problem(tree, monkeypatch, file, gpus):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    findings, number, _ = examine(tree({file: "580"}), {}, frozenset({0}))
    assert (number, len(findings)) == (gpus, gpus)
    assert all("nvidia-ml-py is not installed" in each.text for each in findings)
