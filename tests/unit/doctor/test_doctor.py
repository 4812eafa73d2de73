"""Examination of a machine: no check raises, hangs or imports torch; and findings as values."""

import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import fields
from pathlib import Path

import pytest

import pytest_accel.doctor
from pytest_accel.doctor import doctor, gpus, host
from pytest_accel.doctor.doctor import examine
from pytest_accel.doctor.findings import Finding, Level, to_plain

# Recorded in a container of one of two NUMA nodes, control groups of version 2; shortened.
HOST = {
    "proc/stat": "cpu 1 0 1 9 0 0 0 0 0 0\ncpu0 1 0 1 9 0 0 0 0 0 0\nintr 3\n",
    "proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n",
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: Example CPU\n",
    "proc/self/cgroup": "0::/job\n",
    "proc/driver/nvidia/version": "NVRM version: 580\n",
    "sys/fs/cgroup/job/cpu.max": "max 100000\n",
    "sys/fs/cgroup/job/memory.max": "8589934592\n",
    "sys/fs/cgroup/job/memory.current": "1000\n",
    "sys/fs/cgroup/job/memory.stat": "inactive_file 100\n",
    "sys/devices/system/cpu/online": "0-1\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
    "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0\n",
    "sys/devices/system/node/node0/cpulist": "0\n",
    "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 8388608 kB\n",
    "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec\n",
    "run/.containerenv": 'engine="podman"\n',
    "dev/shm/": "",
}
GROUPS = ["devices", "software", "cpu", "memory", "network", "disk", "load"]


def rest(seconds):
    pass


@pytest.fixture(autouse=True)
def one_cpu(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    monkeypatch.setitem(sys.modules, "pynvml", None)


def test_groups_stand_in_their_order_and_survive_json(tree, tmp_path):
    findings = examine({}, files=tree(HOST), data=tmp_path, baselines=tmp_path, pause=rest)
    assert list(dict.fromkeys(finding.group for finding in findings)) == GROUPS
    assert json.loads(json.dumps(to_plain(findings)))[0].keys() == {each.name for each in fields(Finding)}


@pytest.mark.parametrize(
    "garbage",
    [
        *(b"", b"\xff\xfe\x00", b"-1", b"NaN inf", b"9" * 400),
        *(b"0-99999999999", b"cpu0 \xc2\xb2 : :", b"Node 0 MemTotal: x", b"a=b\n[c]\nd e f g h i j k"),
    ],
)
def test_no_file_of_the_host_can_break_it(tree, garbage):
    """One file after the other speaks nonsense; no check may raise."""
    files = tree(HOST)
    for name, text in HOST.items():
        if name.endswith("/"):
            continue
        (files.root / name).write_bytes(garbage)
        findings = examine({}, files=files, pause=rest)
        assert [each for each in findings if each.subject in ("doctor", "hangs")] == [], name
        (files.root / name).write_text(text)


@pytest.fixture
def never():
    """A call that does not come back before the test has ended."""
    event = threading.Event()
    yield lambda *_, **__: event.wait(30) and None
    event.set()


def test_a_driver_that_hangs_is_a_problem_and_the_rest_is_told(tree, monkeypatch, never):
    monkeypatch.setattr(gpus, "examine", never)
    monkeypatch.setattr(doctor, "DEVICES_LIMIT_S", 0.05)
    findings = examine({}, files=tree(HOST), pause=rest)
    # The first: on a busy host others may be late, too.
    finding, *_ = (each for each in findings if each.subject == "hangs")
    assert finding.level is Level.PROBLEM
    assert finding.text == "NVIDIA's driver did not answer within 0.05 s"
    assert list(dict.fromkeys(each.group for each in findings)) == GROUPS


def test_a_file_server_that_hangs_is_a_problem(tree, tmp_path, monkeypatch, never):
    judge = host.examine_folder
    monkeypatch.setattr(
        host, "examine_folder", lambda purpose, path: never() if purpose == "data" else judge(purpose, path)
    )
    monkeypatch.setattr(doctor, "FILES_LIMIT_S", 0.5)
    found = examine({}, files=tree(HOST), data=tmp_path / "nfs", baselines=tmp_path, pause=rest)
    findings = [each for each in found if each.group == "disk"]
    assert f"{tmp_path / 'nfs'} did not answer" in findings[0].text
    assert "baselines" in [each.subject for each in findings]


def test_a_check_that_breaks_does_not_cost_the_others(tree, monkeypatch):
    def broken(*_):
        raise TypeError("an int is not a str")

    monkeypatch.setattr(gpus, "examine", broken)
    findings = examine({}, files=tree(HOST), pause=rest)
    assert findings[0].level is Level.WARNING
    assert findings[0].text == "this check failed: TypeError: an int is not a str"
    assert list(dict.fromkeys(each.group for each in findings)) == GROUPS


def test_amds_gpus_are_named(tree):
    node = "sys/class/kfd/kfd/topology/nodes/1"
    properties = "simd_count 1216\nsimd_per_cu 4\nunique_id 81985529216486895\ndevice_id 29857\n"
    findings = examine({}, files=tree({f"{node}/properties": properties}), pause=rest)
    assert findings[0].of == "amd 0"
    assert "MI300X" in findings[0].text
    torch = next(each for each in findings if each.subject == "torch")
    assert torch.level in (
        Level.PROBLEM,
        Level.WARNING,
    )  # this repository's torch is not AMD's, if it is there


def test_this_very_machine_without_torch():
    code = (
        "import sys\nfrom pytest_accel.doctor.doctor import examine\n"
        "from pytest_accel.commands.doctor import screen\n"
        "found = examine()\nprint(len(screen(found)) > 15, [f for f in found if f.subject == 'doctor'])\n"
        "print(sorted({'torch', 'numpy', 'amdsmi'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines() == ["True []", "[]"]


# --- findings ---------------------------------------------------------------------------------------


def subjects() -> set[str]:
    """Every subject in the source, where it is written out: the argument of a sheet, or a check of GPUs."""
    found = set(gpus.CHECKS)
    for path in Path(pytest_accel.doctor.__file__).parent.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r'(?:[A-Z]{3,}|sheet)\("([^"]+)"\)', text))
    return found


def test_every_subject_is_on_the_page():
    page = (Path(__file__).parents[3] / "docs/doctor.md").read_text(encoding="utf-8")
    told = {
        name.strip()
        for line in page.splitlines()
        if line.startswith("|")
        for name in line.split("|")[2].split(",")
    }
    listed = subjects() - {"doctor", "hangs"}  # its own trouble
    assert len(listed) > 20
    assert listed <= told
