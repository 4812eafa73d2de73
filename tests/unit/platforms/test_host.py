"""NUMA topology and the CPUs near a GPU: a fake sysfs, and the real pynvml with a fake driver library."""

import json
import os
from dataclasses import replace

import pytest

from pytest_accel.platforms import host, machine
from pytest_accel.platforms.host import DeviceAffinity, Topology
from tests.support.fake_nvml import FakeGpu

pytest_plugins = ("tests.support.fake_nvml",)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def make_sys(root, nodes, *, siblings=()):
    """A /sys of these nodes (CPUs as a list in the kernel's spelling), and of the cores by their CPUs."""
    for index, cpus in enumerate(nodes):
        write(root / f"sys/devices/system/node/node{index}/cpulist", cpus)
    for core in siblings:
        for cpu in host.parse_list(core):
            write(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", core)
    write(root / "sys/devices/system/node/possible", "0")
    write(root / "sys/devices/system/cpu/cpufreq", "")  # not a CPU
    return host.HostFiles(root=root)


def make_pci(root, bus_id, *, numa_node, cpus):
    write(root / f"sys/bus/pci/devices/{bus_id}/numa_node", numa_node)
    write(root / f"sys/bus/pci/devices/{bus_id}/local_cpulist", cpus)


@pytest.mark.parametrize(("text", "numbers"), [("0-3,8", {0, 1, 2, 3, 8}), ("", set()), ("5", {5})])
def test_lists_of_the_kernel(text, numbers):
    assert host.parse_list(text) == numbers
    assert host.format_list(numbers) == text
    assert host.parse_list("?") == set()


def test_nodes_and_cores_of_a_host_with_two_sockets(tmp_path):
    """A node without CPUs is none, as the HBM of a Grace Hopper."""
    files = make_sys(tmp_path, ["0-1,4-5", "2-3,6-7", ""], siblings=["0,4", "1,5", "2,6", "3,7"])
    assert host.topology(files) == Topology(
        nodes=(frozenset({0, 1, 4, 5}), frozenset({2, 3, 6, 7})),
        cores=tuple(map(frozenset, ({0, 4}, {1, 5}, {2, 6}, {3, 7}))),
    )


def load_files(root, *, waited_ns, throttled, busy, worker=0):
    write(root / "proc/self/task/7/schedstat", f"1 {waited_ns} 1")
    write(root / "proc/self/task/8/schedstat", f"1 {waited_ns // 2} 1")
    write(root / "proc/self/stat", f"7 (a b) R {' '.join('0' for _ in range(35))} 1 0")
    write(root / "proc/self/task/8/children", "9")
    write(root / "proc/9/stat", f"9 (loader) R {' '.join('0' for _ in range(10))} {worker} {worker} 0 0 0")
    write(root / "proc/stat", f"cpu0 {busy} 0 0 200 0 0 0 0\ncpu1 {busy} 0 0 200 0 0 0 0")
    write(root / "proc/self/cgroup", "1:cpu:/job\n0::/job")
    write(root / "sys/fs/cgroup/job/cpu.stat", f"throttled_usec {throttled}")
    write(root / "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "150000")
    write(root / "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000")
    write(root / "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", "2400000")
    return host.HostFiles(root=root)


def test_load_between_two_readings(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "allowed_cpus", lambda: frozenset({0, 1}))
    before = host.read_load(load_files(tmp_path, waited_ns=1_000_000_000, throttled=100, busy=0))
    after = host.read_load(load_files(tmp_path, waited_ns=3_000_000_000, throttled=500_100, busy=100))
    after = replace(after, at_s=before.at_s + 1.0, process_s=before.process_s + 1.0)
    assert host.load_metrics(before, after, 10) == pytest.approx(
        {
            "host_cpu_s_per_step": 0.1,
            "cpu_wait_s_per_step": 0.25,  # 2 s, and half of 1 s
            "cpu_throttled_s_per_step": 0.05,
            "other_cpu_share": 0.5,  # all of them busy, half by this process
            "usable_cpus": 1.5,
            "cpu_clock_mhz": 2400.0,
        }
    )


def test_loader_workers_are_no_other_processes(tmp_path, monkeypatch):
    """Else a loader that got slower itself would pass for other work on the CPUs."""
    monkeypatch.setattr(host, "allowed_cpus", lambda: frozenset({0, 1}))
    half = host.os.sysconf("SC_CLK_TCK") // 2
    before = host.read_load(load_files(tmp_path, waited_ns=1, throttled=0, busy=0))
    after = host.read_load(load_files(tmp_path, waited_ns=1, throttled=0, busy=100, worker=half))
    after = replace(after, at_s=before.at_s + 1.0, process_s=before.process_s + 1.0)
    assert host.load_metrics(before, after, 10)["other_cpu_share"] == pytest.approx(0.0)


def test_load_of_a_host_that_shows_nothing_is_its_own_time(tmp_path):
    now = host.read_load(host.HostFiles(root=tmp_path))
    assert host.load_metrics(now, now, 1).keys() == {"host_cpu_s_per_step", "usable_cpus"}


@pytest.mark.parametrize(
    ("limit", "expected"), [("250000 100000", 2.5), ("max 100000", 4), ("900000 100000", 4)]
)
def test_usable_cpus_are_within_the_quota(tmp_path, monkeypatch, limit, expected):
    """As in a container of `--cpus=2.5`, where all CPUs of the host are visible."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    write(tmp_path / "proc/self/cgroup", "0::/")
    write(tmp_path / "sys/fs/cgroup/cpu.max", limit)
    assert host.usable_cpus(host.HostFiles(root=tmp_path)) == expected


@pytest.mark.parametrize("spelling", ["0000:c1:00.0", "00000000:C1:00.0"])
def test_a_device_on_the_bus_is_near_its_local_cpus(tmp_path, spelling):
    make_pci(tmp_path, "0000:c1:00.0", numa_node=1, cpus="2-3,6-7")
    assert host.pci_affinity(spelling, host.HostFiles(root=tmp_path)) == DeviceAffinity(
        cpus=frozenset({2, 3, 6, 7})
    )


def test_a_device_that_no_driver_knows(tmp_path):
    (place, unnamed) = machine.device_affinities(["GPU-none", ""], host.HostFiles(root=tmp_path))
    assert place == DeviceAffinity(problem="no driver knows GPU-none")
    assert unnamed == DeviceAffinity(problem="no driver knows a device without UUID")


def test_an_amd_gpu_is_found_by_the_address_in_its_topology(tmp_path):
    node = tmp_path / "sys/class/kfd/kfd/topology/nodes/2"
    write(node / "properties", f"unique_id {0xABCDEF}\ndomain 1\nlocation_id {0xC1 << 8 | 2 << 3 | 1}")
    write(tmp_path / "sys/class/kfd/kfd/topology/nodes/0/properties", "unique_id 0")
    make_pci(tmp_path, "0001:c1:02.1", numa_node=3, cpus="48-63")
    (place,) = machine.device_affinities(["GPU-0000000000abcdef"], host.HostFiles(root=tmp_path))
    assert place == DeviceAffinity(cpus=frozenset(range(48, 64)))


ASK = """
import json
from pathlib import Path
from pytest_accel.platforms import host, machine
for place in machine.device_affinities({uuids!r}, host.HostFiles(root=Path({root!r}))):
    print(json.dumps(place and [sorted(place.cpus), place.problem]))
"""


def ask(fake_nvml, gpus, uuids, root):
    printed = fake_nvml.run(ASK.format(root=str(root), uuids=uuids), gpus)
    return [json.loads(line) for line in printed.splitlines()]


def test_sysfs_says_which_cpus_are_near_the_bus_of_a_gpu(fake_nvml, tmp_path):
    make_sys(tmp_path, ["0-3", "4-7"])
    make_pci(tmp_path, "0000:17:00.0", numa_node=1, cpus="4-7")
    gpus = [FakeGpu(uuid="GPU-a", pci_bus_id="00000000:17:00.0"), FakeGpu(uuid="GPU-b")]
    near, none, unknown = ask(fake_nvml, gpus, ["GPU-a", None, "GPU-b"], tmp_path)
    assert none is None
    assert near == [[4, 5, 6, 7], ""]
    assert unknown[0] == []
    assert unknown[1].startswith("NVML does not report the bus of GPU-b")
