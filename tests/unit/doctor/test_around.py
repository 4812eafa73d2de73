"""What stands around the devices: torch's build, variables, the network, and room on disks."""

from __future__ import annotations

import os
from importlib import metadata
from types import SimpleNamespace

import pytest

from pytest_accel.doctor import disk, network, software
from pytest_accel.doctor.disk import Folder, shared_memory
from pytest_accel.doctor.finding import Level
from pytest_accel.doctor.software import Torch, installed_torch

CUDA = Torch(version="2.10.0", kind="cuda", cuda=(12, 8))


class TestTorch:
    @pytest.mark.parametrize(
        ("version", "told", "torch"),
        [
            ("2.10.0", "cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", CUDA),
            ("2.10.0+cpu", "cuda: Optional[str] = None\n", Torch(version="2.10.0+cpu", kind="cpu")),
            ("2.10.0", "cuda: Optional[str] = None\n", Torch(version="2.10.0", kind="cpu")),
            ("2.9+rocm6.4", "cuda = None\nhip = '6.4.43'\n", Torch(version="2.9+rocm6.4", kind="rocm")),
            # Without the file the local version has to do.
            ("2.6.0+cu118", None, Torch(version="2.6.0+cu118", kind="cuda", cuda=(11, 8))),
            ("2.6.0+cpu", None, Torch(version="2.6.0+cpu", kind="cpu")),
            ("2.6.0a0+nv25", None, Torch(version="2.6.0a0+nv25")),
        ],
    )
    def test_the_build_is_read_not_imported(self, tmp_path, version, told, torch):
        if told is not None:
            (tmp_path / "torch").mkdir()
            (tmp_path / "torch/version.py").write_text(told)
        found = SimpleNamespace(version=version, locate_file=lambda name: tmp_path / name)
        assert installed_torch(lambda name: found) == torch

    def test_no_torch(self):
        def absent(name):
            raise metadata.PackageNotFoundError(name)

        assert installed_torch(absent) is None

    @pytest.mark.parametrize(
        ("torch", "host", "level", "words"),
        [
            (CUDA, {"nvidia": 1, "cuda": (13, 0)}, Level.OK, "2.10.0, built for CUDA 12.8"),
            (CUDA, {"nvidia": 1, "cuda": (12, 4)}, Level.OK, "built for CUDA 12.8"),
            (CUDA, {"nvidia": 1, "cuda": (11, 4)}, Level.PROBLEM, "the driver runs CUDA 11.4 at most"),
            (CUDA, {"amd": 4}, Level.PROBLEM, "cannot use the GPU that is here"),
            (CUDA, {}, Level.OK, "built for CUDA 12.8"),
            (Torch(version="2", kind="cpu"), {"nvidia": 1}, Level.PROBLEM, "built for the CPU only"),
            (Torch(version="2", kind="cpu"), {}, Level.OK, "built for the CPU only"),
            (Torch(version="2", kind="rocm"), {"amd": 1}, Level.OK, "built for ROCm"),
            (Torch(version="2"), {"nvidia": 1}, Level.OK, "build not told"),
            (None, {"nvidia": 1}, Level.WARNING, "not installed"),
        ],
    )
    def test_it_must_fit_the_devices(self, tree, by_subject, torch, host, level, words):
        known = {"nvidia": 0, "amd": 0, "cuda": None} | host
        finding = by_subject(software.examine(tree({}), {}, torch=torch, **known))["torch"]
        assert finding.level is level
        assert words in finding.text


class TestSoftware:
    def examine(self, files, environ):
        return software.examine(files, environ, nvidia=0, amd=0, cuda=None, torch=None)

    @pytest.mark.parametrize(("value", "level"), [("1", Level.WARNING), ("0", Level.OK)])
    def test_variables_left_behind_by_a_search(self, tree, by_subject, value, level):
        finding = by_subject(self.examine(tree({}), {"CUDA_LAUNCH_BLOCKING": value}))["variables"]
        assert finding.level is level
        assert ("unset CUDA_LAUNCH_BLOCKING" in finding.remedy) == (level is Level.WARNING)

    def test_container(self, tree, by_subject):
        files = tree({"run/.containerenv": 'engine="podman-4.9"\nimage="registry.example/x/torch:2.10"\n'})
        text = by_subject(self.examine(files, {}))["container"].text
        assert text == "podman-4.9, registry.example/x/torch:2.10"

    def test_no_container(self, tree, by_subject):
        assert by_subject(self.examine(tree({}), {}))["container"].text == "none found"


PORT = "sys/class/infiniband/mlx5_0/ports/1"


class TestNetwork:
    @pytest.mark.parametrize(
        ("files", "level", "words"),
        [
            ({}, Level.OK, "over TCP"),
            (
                {f"{PORT}/state": "4: ACTIVE", f"{PORT}/rate": "400 Gb/sec (4X NDR)"},
                Level.OK,
                "mlx5_0/1 400 Gb/sec",
            ),
            ({f"{PORT}/state": "1: DOWN", f"{PORT}/rate": "10 Gb/sec"}, Level.WARNING, "none is active"),
            ({"sys/class/cxi/cxi0/": ""}, Level.OK, "Slingshot cxi0"),
        ],
    )
    def test_adapters(self, tree, by_subject, files, level, words):
        finding = by_subject(network.examine(tree(files), {}))["adapters"]
        assert finding.level is level
        assert words in finding.text

    def test_slingshot_without_its_plugin_is_tcp(self, tree, by_subject):
        slingshot = {"sys/class/cxi/cxi0/": ""}
        bare = by_subject(network.examine(tree(slingshot), {}))["plugins"]
        assert bare.level is Level.WARNING
        files = tree({**slingshot, "apps/ofi/lib/libnccl-net-ofi.so": ""})
        found = by_subject(network.examine(files, {"LD_LIBRARY_PATH": "/apps/none:/apps/ofi/lib"}))["plugins"]
        assert (found.level, found.text) == (Level.OK, "/apps/ofi/lib/libnccl-net-ofi.so")

    def test_a_plugin_that_is_asked_for_and_not_there(self, tree, by_subject):
        finding = by_subject(network.examine(tree({}), {"NCCL_NET_PLUGIN": "ofi"}))["plugins"]
        assert finding.level is Level.WARNING
        assert "NCCL_NET_PLUGIN=ofi" in finding.text

    @pytest.mark.parametrize(
        ("environ", "level", "words"),
        [
            ({}, Level.OK, "no NCCL_* is set"),
            ({"NCCL_SOCKET_IFNAME": "eth0", "HOME": "/root"}, Level.OK, "NCCL_SOCKET_IFNAME=eth0"),
            ({"NCCL_P2P_DISABLE": "1"}, Level.WARNING, "GPUs of a node copy through the host"),
            ({"NCCL_P2P_DISABLE": "0"}, Level.OK, "NCCL_P2P_DISABLE=0"),
            ({"NCCL_DEBUG": "info"}, Level.WARNING, "it writes while it measures"),
            ({"NCCL_DEBUG": "WARN"}, Level.OK, "NCCL_DEBUG=WARN"),
            ({f"NCCL_X{number}": "1" for number in range(9)}, Level.OK, "and 3 more"),
        ],
    )
    def test_variables(self, tree, by_subject, environ, level, words):
        finding = by_subject(network.examine(tree({}), environ))["variables"]
        assert finding.level is level
        assert words in finding.text

    def test_no_secret_is_shown(self, tree):
        environ = {"NCCL_AUTH_TOKEN": "hunter2hunter2"}
        assert "hunter2" not in str(network.examine(tree({}), environ))


class TestDisk:
    @pytest.fixture
    def statvfs(self, monkeypatch):
        def answer(free_mib, free_files=1000):
            state = SimpleNamespace(f_bavail=free_mib, f_frsize=1 << 20, f_files=1000, f_favail=free_files)
            monkeypatch.setattr(os, "statvfs", lambda path: state)

        return answer

    @pytest.mark.parametrize(
        ("free_mib", "free_files", "level", "words"),
        [
            (50_000, 1000, Level.OK, "48.8 GiB free at"),
            (1_000, 1000, Level.WARNING, "1000 MiB free"),
            (50, 1000, Level.PROBLEM, "full"),
            (50_000, 0, Level.PROBLEM, "no inode"),
        ],
    )
    def test_room(self, statvfs, tmp_path, free_mib, free_files, level, words):
        statvfs(free_mib, free_files)
        (finding,) = disk.examine(Folder(purpose="baselines", path=tmp_path))
        assert (finding.level, finding.subject) == (level, "baselines")
        assert words in finding.text

    def test_data_is_only_read_so_that_a_full_disk_is_well(self, statvfs, tmp_path):
        statvfs(0)
        assert disk.examine(Folder(purpose="data", path=tmp_path, written=False))[0].level is Level.OK

    def test_data_that_is_not_there(self, tmp_path):
        (finding,) = disk.examine(Folder(purpose="data", path=tmp_path / "none", written=False))
        assert finding.level is Level.WARNING

    def test_baselines_that_are_not_there_yet_will_be_made(self, statvfs, tmp_path):
        statvfs(50_000)
        (finding,) = disk.examine(Folder(purpose="baselines", path=tmp_path / "a/b"))
        assert finding.level is Level.OK
        assert "not there yet" in finding.text

    def test_what_cannot_be_written(self, statvfs, tmp_path, monkeypatch):
        statvfs(50_000)
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        (finding,) = disk.examine(Folder(purpose="baselines", path=tmp_path))
        assert finding.level is Level.WARNING
        assert "cannot be written to" in finding.text

    def test_a_stale_mount_is_a_problem(self, tmp_path, monkeypatch):
        def stale(path):
            raise OSError(116, "Stale file handle")

        monkeypatch.setattr(os, "statvfs", stale)
        (finding,) = disk.examine(Folder(purpose="data", path=tmp_path))
        assert finding.level is Level.PROBLEM
        assert "stale file handle" in finding.text

    def test_dockers_64_mib_of_shared_memory(self, statvfs, tmp_path):
        statvfs(64)
        (finding,) = disk.examine(shared_memory(tmp_path))
        assert finding.level is Level.PROBLEM
        assert "--shm-size" in finding.remedy
