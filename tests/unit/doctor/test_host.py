"""The host's own files, replayed: CPUs, control groups, memory, load; each check with a tree that it must tell apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.doctor import cpu, load, memory
from pytest_accel.doctor.finding import Level
from pytest_accel.doctor.load import Shares, shares
from pytest_accel.platforms.host import MOST_BYTES, CpuQuota, MemoryLimit, read_memory_limit, read_quota

GIB = 1 << 30
TWO = frozenset({0, 1})
EIGHT = frozenset(range(8))


class TestQuota:
    @pytest.mark.parametrize(
        ("files", "cpus"),
        [
            ({}, None),
            ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
            ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
            # The least of all groups above counts, the own one or another.
            (
                {
                    "proc/self/cgroup": "0::/job/step\n",
                    "sys/fs/cgroup/job/cpu.max": "400000 100000",
                    "sys/fs/cgroup/job/step/cpu.max": "800000 100000",
                },
                4,
            ),
            # A container without a namespace of its own names a path of the host.
            ({"proc/self/cgroup": "0::/docker/4a1b\n", "sys/fs/cgroup/cpu.max": "200000 100000"}, 2),
            # One that is outside of what is mounted is not looked for above the mount.
            (
                {
                    "proc/self/cgroup": "0::/../../outside\n",
                    "sys/fs/cgroup/cpu.max": "200000 100000",
                    "sys/outside/cpu.max": "100000 100000",
                },
                2,
            ),
            # Version 1, alone and beside version 2.
            (
                {
                    "proc/self/cgroup": "4:cpu,cpuacct:/docker/4a1b\n",
                    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
                    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
                },
                2.5,
            ),
            (
                {
                    "proc/self/cgroup": "2:cpuacct:/\n1:cpu:/\n0::/\n",
                    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
                },
                None,
            ),
        ],
    )
    def test_both_versions_and_every_group_above(self, tree, files, cpus):
        assert read_quota(tree(files)) == CpuQuota(cpus=cpus)

    def test_periods_without_time_are_counted(self, tree):
        files = {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "200000 100000",
            "sys/fs/cgroup/cpu.stat": "usage_usec 5\nnr_periods 1000\nnr_throttled 120\n",
        }
        finding = cpu.examine(tree(files), EIGHT)[1]
        assert finding.level is Level.WARNING
        assert finding.text == "2 CPUs' worth of time, 8 visible; it ran out in 12.0 % of periods so far"
        assert "OMP_NUM_THREADS=2" in finding.remedy

    def test_a_quota_for_all_visible_cpus_is_well(self, tree):
        files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000"}
        assert cpu.examine(tree(files), TWO)[1].level is Level.OK

    def test_a_quota_of_less_than_one_cpu_still_leaves_a_thread(self, tree):
        files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000"}
        assert "OMP_NUM_THREADS=1 " in cpu.examine(tree(files), TWO)[1].remedy

    @pytest.mark.parametrize("text", ["lots", "100000", "0 0", "100000 0", "1 2 3", "-5 100000"])
    def test_nonsense_is_told(self, tree, text):
        finding = cpu.examine(tree({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": text}), TWO)[1]
        assert finding.level is Level.WARNING
        assert not finding.known
        assert "/sys/fs/cgroup/cpu.max says" in finding.text


class TestCpu:
    def test_cpus_and_those_of_the_host(self, tree, by_subject):
        files = tree({"sys/devices/system/cpu/online": "0-63\n"})
        assert by_subject(cpu.examine(files, EIGHT))["CPUs"].text.startswith("8 CPUs of the host's 64 (0-7)")

    @pytest.mark.parametrize(
        ("governors", "level", "words"),
        [
            ({}, Level.OK, "not told: no cpufreq"),
            ({0: "performance", 1: "performance"}, Level.OK, "performance"),
            ({0: "powersave", 1: "powersave"}, Level.WARNING, "powersave: clocks follow"),
            ({0: "performance", 1: "schedutil"}, Level.WARNING, "performance on 1, schedutil on 1"),
        ],
    )
    def test_governor(self, tree, by_subject, governors, level, words):
        files = {
            f"sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor": f"{name}\n"
            for number, name in governors.items()
        }
        finding = by_subject(cpu.examine(tree(files), TWO))["governor"]
        assert finding.level is level
        assert words in finding.text

    def test_governors_of_cpus_that_are_not_ours_do_not_matter(self, tree, by_subject):
        root = "sys/devices/system/cpu"
        files = {
            f"{root}/cpu0/cpufreq/scaling_governor": "performance",
            f"{root}/cpu9/cpufreq/scaling_governor": "powersave",
        }
        assert by_subject(cpu.examine(tree(files), TWO))["governor"].level is Level.OK

    @pytest.mark.parametrize(
        ("current", "available", "level", "words"),
        [
            ("tsc", "tsc hpet acpi_pm", Level.OK, ""),
            ("arch_sys_counter", "arch_sys_counter", Level.OK, ""),
            ("hpet", "tsc hpet acpi_pm", Level.WARNING, "`echo tsc > /sys/"),
            ("hpet", "hpet acpi_pm", Level.WARNING, "There is no other"),
            ("", "", Level.OK, ""),
        ],
    )
    def test_clock(self, tree, by_subject, current, available, level, words):
        root = "sys/devices/system/clocksource/clocksource0"
        files = {f"{root}/current_clocksource": current, f"{root}/available_clocksource": available}
        finding = by_subject(cpu.examine(tree(files), TWO))["clock"]
        assert finding.level is level
        assert finding.known == bool(current)
        assert words in finding.remedy

    def test_numa(self, tree, by_subject):
        root = "sys/devices/system/node"
        files = {f"{root}/node0/cpulist": "0-1", f"{root}/node1/cpulist": "2-3"}
        finding = by_subject(cpu.examine(tree(files), TWO))["NUMA"]
        assert (finding.level, finding.text) == (Level.OK, "2 nodes; this process may run on node 0")
        moving = by_subject(cpu.examine(tree({**files, "proc/sys/kernel/numa_balancing": "1\n"}), TWO))[
            "NUMA"
        ]
        assert moving.level is Level.WARNING
        assert "kernel.numa_balancing=0" in moving.remedy


MEMINFO = f"MemTotal: {64 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {48 * GIB // 1024} kB\n"
PSI = "some avg10={some} avg60=0.00 avg300=0.00 total=5\nfull avg10={full} avg60=0.00 avg300=0.00 total=1\n"


class TestMemory:
    @pytest.mark.parametrize(
        ("files", "allowance"),
        [
            ({}, MemoryLimit()),
            ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, MemoryLimit()),
            (
                {
                    "proc/self/cgroup": "0::/job\n",
                    "sys/fs/cgroup/job/memory.max": str(8 * GIB),
                    "sys/fs/cgroup/job/memory.current": str(5 * GIB),
                    "sys/fs/cgroup/job/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
                    "sys/fs/cgroup/job/memory.events": "low 0\noom 3\noom_kill 2\n",
                },
                MemoryLimit(limit_bytes=8 * GIB, used_bytes=3 * GIB, kills=2),
            ),
            (
                {
                    "proc/self/cgroup": "4:memory:/job\n",
                    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(4 * GIB),
                    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(GIB),
                    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
                },
                MemoryLimit(limit_bytes=4 * GIB, used_bytes=GIB),
            ),
        ],
    )
    def test_both_versions(self, tree, files, allowance):
        assert read_memory_limit(tree(files)) == allowance

    def test_room_in_the_host_and_in_the_group(self, tree, by_subject):
        files = {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": str(8 * GIB),
            "sys/fs/cgroup/memory.current": str(7 * GIB),
            "sys/fs/cgroup/memory.events": "oom_kill 2\n",
        }
        found = by_subject(memory.examine(tree(files)))
        assert (found["host"].level, found["host"].text) == (Level.OK, "48.0 GiB free of 64.0 GiB")
        assert found["limit"].level is Level.WARNING
        assert found["limit"].text == "1.0 GiB left of 8.0 GiB for this group"
        assert found["kills"].level is Level.WARNING

    def test_a_limit_above_the_hosts_memory_is_none(self, tree, by_subject):
        files = {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": str(99 * GIB),
        }
        assert by_subject(memory.examine(tree(files)))["limit"].text.startswith("none")

    @pytest.mark.parametrize(
        ("some", "full", "level"),
        [
            ("0.00", "0.00", Level.OK),
            ("0.75", "0.50", Level.OK),
            ("3.00", "1.00", Level.WARNING),
            ("60.00", "30.00", Level.PROBLEM),
        ],
    )
    def test_pressure(self, tree, by_subject, some, full, level):
        files = tree({"proc/pressure/memory": PSI.format(some=some, full=full)})
        assert by_subject(memory.examine(files))["pressure"].level is level

    def test_pressure_that_makes_no_sense(self, tree, by_subject):
        finding = by_subject(memory.examine(tree({"proc/pressure/memory": "some avg10=nan \n"})))["pressure"]
        assert finding.level is Level.WARNING
        assert "makes no sense" in finding.text

    @pytest.mark.parametrize(
        ("text", "level", "words"),
        [
            ("always [madvise] never\n", Level.OK, "madvise"),
            ("always madvise [never]\n", Level.WARNING, "never"),
            ("always madvise never\n", Level.WARNING, "makes no sense"),
            ("", Level.OK, "not told"),
        ],
    )
    def test_huge_pages(self, tree, by_subject, text, level, words):
        files = tree({"sys/kernel/mm/transparent_hugepage/enabled": text})
        finding = by_subject(memory.examine(files))["huge pages"]
        assert finding.level is level
        assert words in finding.text


def stat(*cpus):
    lines = [f"cpu{number} {' '.join(map(str, ticks))} 0 0" for number, ticks in enumerate(cpus)]
    return "\n".join(["cpu 0 0 0 0 0 0 0 0 0 0", *lines, "intr 5 6 7"]) + "\n"


IDLE = (0, 0, 0, 0, 0, 0, 0, 0)


class TestLoad:
    def test_shares_are_of_our_cpus_only(self):
        after = stat((5, 0, 5, 80, 10, 0, 0, 0), (0, 0, 0, 100, 0, 0, 0, 0), (100, 0, 0, 0, 0, 0, 0, 0))
        assert shares(stat(IDLE, IDLE, IDLE), after, TWO) == Shares(busy=0.05, stolen=0.0)

    def test_stolen_time_is_not_busy(self):
        assert shares(stat(IDLE), stat((10, 0, 0, 70, 0, 0, 0, 20)), TWO) == Shares(busy=0.1, stolen=0.2)

    @pytest.mark.parametrize(
        ("before", "after"),
        [("", ""), (stat(IDLE), stat(IDLE)), (stat((9,) * 8), stat(IDLE)), ("cpu0 x y", "cpu0 1 2")],
    )
    def test_what_counts_no_time_tells_nothing(self, before, after):
        assert shares(before, after, TWO) is None

    @given(st.text(alphabet="cpu01 \r\n²-x"), st.text(alphabet="cpu01 \r\n²-x"))
    def test_no_text_is_too_strange(self, before, after):
        found = shares(before, after, TWO)
        assert found is None or 0 <= found.busy <= 1

    @pytest.mark.parametrize(
        ("ticks", "loadavg", "levels"),
        [
            ((1, 0, 0, 99, 0, 0, 0, 0), "0.20 0.10 0.05 1/100 7", {"other work": Level.OK}),
            ((49, 0, 0, 51, 0, 0, 0, 0), "0.20 0.10 0.05 1/100 7", {"other work": Level.WARNING}),
            ((50, 0, 0, 50, 0, 0, 0, 0), "0.20 0.10 0.05 1/100 7", {"other work": Level.PROBLEM}),
            ((1, 0, 0, 99, 0, 0, 0, 0), "3.10 2.00 1.00 1/100 7", {"other work": Level.WARNING}),
            ((1, 0, 0, 99, 0, 0, 0, 0), "garbage", {"other work": Level.OK}),
            (
                (1, 0, 0, 89, 0, 0, 0, 10),
                "0.20 0 0",
                {"other work": Level.OK, "stolen time": Level.WARNING},
            ),
        ],
    )
    def test_others_are_watched_while_we_rest(self, tree, by_subject, ticks, loadavg, levels):
        files = tree({"proc/stat": stat(IDLE, IDLE), "proc/loadavg": loadavg})
        rests = []

        def pause(seconds):
            rests.append(seconds)
            (files.root / "proc/stat").write_text(stat(ticks, ticks))

        found = by_subject(load.examine(files, TWO, pause))
        assert {name: found[name].level for name in found if name != "disks"} == levels
        assert rests == [load.WATCHED_S]

    def test_a_host_that_counts_nothing_is_told(self, tree, by_subject):
        finding = by_subject(load.examine(tree({}), TWO, lambda seconds: None))["other work"]
        assert (finding.level, finding.known) == (Level.OK, False)


class TestFiles:
    def test_a_pipe_nobody_writes_to_does_not_hang(self, tree):
        import os

        files = tree({"proc/": ""})
        os.mkfifo(files.root / "proc/stat")
        assert files.text("proc/stat") == ""

    def test_no_more_than_the_bound_is_read(self, tree):
        assert len(tree({"big": "x" * (MOST_BYTES + 5)}).text("big")) == MOST_BYTES

    def test_why_there_is_nothing(self, tree):
        assert tree({"folder/": ""}).attempt("none") == ("", "/none: no such file or directory")
        assert tree({"folder/": ""}).attempt("folder") == ("", "/folder: is a directory")
        assert tree({}).attempt("a\0b")[1]
