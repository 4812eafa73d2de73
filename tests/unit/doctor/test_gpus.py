"""One GPU, judged: each check alone, from the answers of NVML as values."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.doctor.finding import Level
from pytest_accel.doctor.gpus import GpuProcess, GpuState, judge
from pytest_accel.platforms.nvidia import short_uuid

GIB = 1 << 30
WELL = GpuState(
    index=0,
    name="NVIDIA H200",
    uuid="GPU-8f3aab12-1234-9abc-1234-1234567890ab",
    memory_bytes=140 * GIB,
    memory_used_bytes=4 << 20,
    utilisation_percent=0,
    processes=(),
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
    (finding,) = [each for each in judge(state, own_pid=own_pid, in_use=in_use) if each.subject == subject]
    return finding


def test_a_healthy_gpu_is_well_in_everything():
    findings = judge(WELL)
    assert {finding.level for finding in findings} == {Level.OK}
    assert all(finding.known and finding.of == "GPU 0" for finding in findings)
    assert findings[0].text == "NVIDIA H200, 140.0 GiB, GPU-8f3aab12"


def test_a_gpu_that_says_nothing_is_told_so_and_is_no_warning():
    findings = judge(GpuState(index=2, name="Tesla K80", uuid="GPU-a"))
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
        ("memory errors", {"remapping_pending": True}, Level.WARNING, "waits to be replaced"),
        ("memory errors", {"remapping_failed": True}, Level.PROBLEM, "could not be replaced"),
        ("MIG", {"mig": True, "slices": ("1g.10gb", "1g.10gb")}, Level.WARNING, "on, 2 slices: 1g.10gb"),
        ("MIG", {"mig": True}, Level.PROBLEM, "CUDA finds nothing"),
        ("clocks", {"sm_application_mhz": 1200}, Level.WARNING, "default 1980: somebody lowered it"),
        # As shipped: an A100's default application clock is below its maximum.
        ("clocks", {"sm_application_mhz": 1095, "sm_default_mhz": 1095}, Level.OK, "application 1095 MHz"),
        ("clocks", {"sm_application_mhz": None}, Level.OK, "application clocks not told"),
        ("PCIe", {"pcie_width": 8}, Level.WARNING, "generation 5 x8, at most 5 x16"),
        ("PCIe", {"pcie_generation": 1}, Level.OK, "idle: it saves power"),
        ("PCIe", {"pcie_generation": 3, "event_reasons": 0}, Level.WARNING, "generation 3 x16"),
        ("PCIe", {"pcie_width": 0}, Level.WARNING, "makes no sense"),
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


def test_low_clocks_of_an_idle_gpu_are_normal():
    assert "idle: low clocks are normal" in found("now").text
    assert "idle" not in found("now", event_reasons=0).text


class TestOtherUsers:
    def test_load_is_a_problem_even_where_a_container_hides_the_process(self):
        finding = found("other users", utilisation_percent=37, memory_used_bytes=60 * GIB)
        assert finding.level is Level.PROBLEM
        assert finding.text == "no process seen, 60.0 GiB in use, 37 % busy"

    def test_memory_alone_is_a_warning(self):
        assert found("other users", memory_used_bytes=1 * GIB).level is Level.WARNING

    def test_a_process_alone_is_a_warning(self):
        finding = found("other users", processes=(GpuProcess(pid=4711),))
        assert finding.level is Level.WARNING
        assert "1 process (pid 4711)" in finding.text

    def test_many_processes_are_counted(self):
        crowd = tuple(GpuProcess(pid=100 + number) for number in range(9))
        assert "9 processes (pid 100, 101, 102, 103, …)" in found("other users", processes=crowd).text

    def test_what_this_process_holds_is_not_foreign(self):
        ours = (GpuProcess(pid=42, memory_bytes=3 * GIB),)
        finding = found(
            "other users",
            own_pid=42,
            in_use=True,
            processes=ours,
            memory_used_bytes=4 * GIB,
            utilisation_percent=90,
        )
        assert finding.level is Level.OK
        assert "this process measures here" in finding.text

    def test_somebody_beside_this_process_is(self):
        both = (GpuProcess(pid=42), GpuProcess(pid=43))
        finding = found("other users", own_pid=42, in_use=True, processes=both, utilisation_percent=90)
        assert finding.level is Level.PROBLEM
        assert "pid 43" in finding.text
        assert "42" not in finding.text

    def test_impossible_load_is_not_trusted(self):
        finding = found("other users", utilisation_percent=4_294_967_295)
        assert finding.level is Level.WARNING
        assert not finding.known

    def test_grace_hopper_keeps_the_kernels_pages(self):
        finding = found("other users", name="NVIDIA GH200 480GB", memory_used_bytes=GIB)
        assert "kernel's own pages" in finding.remedy


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
    findings = judge(GpuState(index=0, name="", uuid="", **answers))
    assert len(findings) >= 10


def test_a_short_uuid_tells_gpus_of_a_node_apart():
    assert short_uuid("MIG-8f3aab12-1234-9abc-1234-1234567890ab") == "MIG-8f3aab12"
    assert short_uuid("") == ""
