"""Software: torch's build, slowing variables, container and NCCL's network."""

from importlib import metadata
from types import SimpleNamespace

import pytest

from pytest_accel.doctor import host
from pytest_accel.doctor.findings import Level
from pytest_accel.doctor.host import TorchBuild, examine_network, installed_torch, judge_torch

CUDA = TorchBuild(version="2.10.0", kind="cuda", cuda=(12, 8))


class TestTorch:
    @pytest.mark.parametrize(
        ("version", "told", "torch"),
        [
            ("2.10.0", "cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", CUDA),
            ("2.10.0", "cuda: Optional[str] = None\n", TorchBuild(version="2.10.0", kind="cpu")),
            ("2.9+rocm6.4", "cuda = None\nhip = '6.4.43'\n", TorchBuild(version="2.9+rocm6.4", kind="rocm")),
        ],
    )
    def test_the_build_is_read_not_imported(self, tmp_path, monkeypatch, version, told, torch):
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch/version.py").write_text(told)
        found = SimpleNamespace(version=version, locate_file=lambda name: tmp_path / name)
        monkeypatch.setattr(metadata, "distribution", lambda name: found)
        assert installed_torch() == torch

    @pytest.mark.parametrize(
        ("torch", "host", "level", "words"),
        [
            (CUDA, {"nvidia": 1, "cuda": (13, 0)}, Level.OK, "2.10.0, built for CUDA 12.8"),
            (CUDA, {"nvidia": 1, "cuda": (11, 4)}, Level.PROBLEM, "the driver runs CUDA 11.4 at most"),
            (CUDA, {"amd": 4}, Level.PROBLEM, "cannot use the GPU that is here"),
            (TorchBuild(version="2", kind="cpu"), {"nvidia": 1}, Level.PROBLEM, "built for the CPU only"),
            (TorchBuild(version="2", kind="cpu"), {}, Level.OK, "built for the CPU only"),
            (TorchBuild(version="2", kind="rocm"), {"amd": 1}, Level.OK, "built for ROCm"),
            (None, {"nvidia": 1}, Level.WARNING, "not installed"),
        ],
    )
    def test_it_must_fit_the_devices(self, torch, host, level, words):
        finding = judge_torch(torch, **{"nvidia": 0, "amd": 0, "cuda": None} | host)
        assert finding.level is level
        assert words in finding.text


class TestSoftware:
    @pytest.mark.parametrize(
        ("name", "value", "level"),
        [
            ("CUDA_LAUNCH_BLOCKING", "1", Level.WARNING),
            ("CUDA_LAUNCH_BLOCKING", "0", Level.OK),
            ("NCCL_P2P_DISABLE", "1", Level.WARNING),
            ("NCCL_SOCKET_IFNAME", "eth0", Level.OK),
        ],
    )
    def test_variables_left_behind_by_a_search(self, by_subject, name, value, level):
        found = host.examine_software({name: value}, nvidia=0, amd=0, cuda=None)
        finding = by_subject(found)["variables"]
        assert finding.level is level
        assert (finding.remedy == f"unset {name}") == (level is Level.WARNING)


PORT = "sys/class/infiniband/mlx5_0/ports/1"


class TestNetwork:
    @pytest.mark.parametrize(
        ("files", "level", "words"),
        [
            ({}, Level.OK, "would use TCP"),
            (
                {f"{PORT}/state": "4: ACTIVE", f"{PORT}/rate": "400 Gb/sec (4X NDR)"},
                Level.OK,
                "mlx5_0/1 400 Gb/sec",
            ),
            ({f"{PORT}/state": "1: DOWN", f"{PORT}/rate": "10 Gb/sec"}, Level.WARNING, "none is active"),
            ({"sys/class/cxi/cxi0/": ""}, Level.WARNING, "Slingshot cxi0, and no libnccl-net*.so"),
        ],
    )
    def test_adapters(self, tree, by_subject, files, level, words):
        finding = by_subject(examine_network(tree(files), {}))["adapters"]
        assert finding.level is level
        assert words in finding.text

    def test_slingshot_with_its_plugin_is_well(self, tree, by_subject):
        files = tree({"sys/class/cxi/cxi0/": "", "apps/ofi/lib/libnccl-net-ofi.so": ""})
        environ = {"LD_LIBRARY_PATH": "/apps/none:/apps/ofi/lib"}
        finding = by_subject(examine_network(files, environ))["adapters"]
        assert (finding.level, finding.text) == (Level.OK, "Slingshot cxi0")
