"""Host: CPUs, control groups, memory, disks and load, from recorded files."""

import os
from types import SimpleNamespace

import pytest

from pytest_accel.doctor import host
from pytest_accel.doctor.findings import Level
from pytest_accel.doctor.host import examine_cpus, examine_folder, examine_load, examine_memory
from pytest_accel.platforms.host import HostFiles, busy_share, cpu_quota, memory_limit, read_file

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
            *(
                ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": text}, None)
                for text in ("lots", "100000", "0 0", "100000 0", "1 2 3", "-5 100000")
            ),
        ],
    )
    def test_every_group_above_counts(self, tree, files, cpus):
        assert cpu_quota(tree(files)) == cpus

    @pytest.mark.parametrize(
        ("cpus", "level", "remedy"), [(EIGHT, Level.WARNING, "OMP_NUM_THREADS=2"), (TWO, Level.OK, "")]
    )
    def test_less_time_than_cpus_is_a_warning(self, tree, by_subject, cpus, level, remedy):
        files = tree({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000"})
        finding = by_subject(examine_cpus(files, cpus))["quota"]
        assert (finding.level, finding.text) == (level, f"2 CPUs' worth of time, {len(cpus)} visible")
        assert remedy in finding.remedy


class TestCpu:
    def test_cpus_and_those_of_the_host(self, tree, by_subject):
        files = tree({"sys/devices/system/cpu/online": "0-63\n"})
        assert by_subject(examine_cpus(files, EIGHT))["CPUs"].text.startswith("8 CPUs of the host's 64 (0-7)")

    @pytest.mark.parametrize(
        ("governors", "level", "words"),
        [
            ({}, Level.OK, "not reported: no cpufreq"),
            ({0: "performance", 1: "performance"}, Level.OK, "performance"),
            ({0: "powersave", 1: "powersave"}, Level.WARNING, "powersave on 2: clocks follow"),
            ({0: "performance", 1: "schedutil"}, Level.WARNING, "performance on 1, schedutil on 1"),
        ],
    )
    def test_governor(self, tree, by_subject, governors, level, words):
        files = {
            f"sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor": f"{name}\n"
            for number, name in governors.items()
        }
        finding = by_subject(examine_cpus(tree(files), TWO))["governor"]
        assert finding.level is level
        assert words in finding.text


MEMINFO = f"MemTotal: {64 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {48 * GIB // 1024} kB\n"


class TestMemory:
    @pytest.mark.parametrize(
        ("files", "limit"),
        [
            ({}, None),
            ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, None),
            (
                {
                    "proc/self/cgroup": "0::/job\n",
                    "sys/fs/cgroup/job/memory.max": str(8 * GIB),
                    "sys/fs/cgroup/job/memory.current": str(5 * GIB),
                    "sys/fs/cgroup/job/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
                },
                (8 * GIB, 3 * GIB),
            ),
        ],
    )
    def test_limit_of_the_group(self, tree, files, limit):
        assert memory_limit(tree(files)) == limit

    def test_room_in_the_host_and_in_the_group(self, tree, by_subject):
        files = {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": str(8 * GIB),
            "sys/fs/cgroup/memory.current": str(7 * GIB),
        }
        found = by_subject(examine_memory(tree(files)))
        assert (found["host"].level, found["host"].text) == (Level.OK, "48.0 GiB free of 64.0 GiB")
        assert found["limit"].level is Level.WARNING
        assert found["limit"].text == "1.0 GiB left of 8.0 GiB for this group"


def stat(*cpus):
    lines = [f"cpu{number} {' '.join(map(str, ticks))} 0 0" for number, ticks in enumerate(cpus)]
    return "\n".join(["cpu 0 0 0 0 0 0 0 0 0 0", *lines, "intr 5 6 7"]) + "\n"


IDLE = (0, 0, 0, 0, 0, 0, 0, 0)


class TestLoad:
    def test_shares_are_of_our_cpus_only(self):
        after = stat((5, 0, 5, 80, 10, 0, 0, 0), (0, 0, 0, 100, 0, 0, 0, 0), (100, 0, 0, 0, 0, 0, 0, 0))
        assert busy_share(stat(IDLE, IDLE, IDLE), after, TWO) == 0.05

    @pytest.mark.parametrize(
        ("ticks", "level"),
        [
            ((1, 0, 0, 99, 0, 0, 0, 0), Level.OK),
            ((49, 0, 0, 51, 0, 0, 0, 0), Level.WARNING),
            ((50, 0, 0, 50, 0, 0, 0, 0), Level.PROBLEM),
            ((1, 0, 0, 89, 0, 0, 0, 10), Level.WARNING),  # of which 10 % went to other virtual machines
        ],
    )
    def test_others_are_observed_while_this_process_is_idle(self, tree, by_subject, ticks, level):
        files = tree({"proc/stat": stat(IDLE, IDLE)})
        rests = []

        def pause(seconds):
            rests.append(seconds)
            (files.root / "proc/stat").write_text(stat(ticks, ticks))

        assert by_subject(examine_load(files, TWO, pause))["other work"].level is level
        assert rests == [host.OBSERVED_S]


class TestDisk:
    @pytest.fixture
    def statvfs(self, monkeypatch):
        def answer(free_mib):
            state = SimpleNamespace(f_bavail=free_mib, f_frsize=1 << 20)
            monkeypatch.setattr(os, "statvfs", lambda path: state)

        return answer

    @pytest.mark.parametrize(
        ("free_mib", "level", "words"),
        [
            (50_000, Level.OK, "48.8 GiB free at"),
            (1_000, Level.WARNING, "1000 MiB free"),
            (50, Level.PROBLEM, "full"),
        ],
    )
    def test_room(self, statvfs, tmp_path, free_mib, level, words):
        statvfs(free_mib)
        (finding,) = examine_folder("baselines", tmp_path)
        assert (finding.level, finding.subject) == (level, "baselines")
        assert words in finding.text

    def test_what_cannot_be_written(self, statvfs, tmp_path, monkeypatch):
        statvfs(50_000)
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        (finding,) = examine_folder("baselines", tmp_path)
        assert finding.level is Level.WARNING
        assert "cannot be written to" in finding.text

    def test_a_stale_mount_is_a_problem(self, tmp_path, monkeypatch):
        def stale(path):
            raise OSError(116, "Stale file handle")

        monkeypatch.setattr(os, "statvfs", stale)
        (finding,) = examine_folder("data", tmp_path)
        assert finding.level is Level.PROBLEM
        assert "stale file handle" in finding.text

    def test_dockers_64_mib_of_shared_memory(self, statvfs, tmp_path):
        statvfs(64)
        (tmp_path / "dev/shm").mkdir(parents=True)
        found = host.folders(HostFiles(root=tmp_path), {}, data=None, baselines=None)
        (finding,) = examine_folder("shared memory", found["shared memory"])
        assert finding.level is Level.PROBLEM
        assert "--shm-size" in finding.remedy


class TestFiles:
    def test_reason_of_a_missing_text(self, tmp_path):
        assert read_file(tmp_path / "none") == ("", "no such file or directory")
        assert read_file(tmp_path) == ("", "is a directory")
