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
            ("2.10.0+cpu", "cuda: Optional[str] = None\n", TorchBuild(version="2.10.0+cpu", kind="cpu")),
            ("2.10.0", "cuda: Optional[str] = None\n", TorchBuild(version="2.10.0", kind="cpu")),
            ("2.9+rocm6.4", "cuda = None\nhip = '6.4.43'\n", TorchBuild(version="2.9+rocm6.4", kind="rocm")),
            # Without the file the local version has to do.
            ("2.6.0+cu118", None, TorchBuild(version="2.6.0+cu118", kind="cuda", cuda=(11, 8))),
            ("2.6.0+cpu", None, TorchBuild(version="2.6.0+cpu", kind="cpu")),
            ("2.6.0a0+nv25", None, TorchBuild(version="2.6.0a0+nv25")),
        ],
    )
    def test_the_build_is_read_not_imported(self, tmp_path, monkeypatch, version, told, torch):
        if told is not None:
            (tmp_path / "torch").mkdir()
            (tmp_path / "torch/version.py").write_text(told)
        found = SimpleNamespace(version=version, locate_file=lambda name: tmp_path / name)
        monkeypatch.setattr(metadata, "distribution", lambda name: found)
        assert installed_torch() == torch

    @pytest.mark.parametrize(
        ("torch", "host", "level", "words"),
        [
            (CUDA, {"nvidia": 1, "cuda": (13, 0)}, Level.OK, "2.10.0, built for CUDA 12.8"),
            (CUDA, {"nvidia": 1, "cuda": (12, 4)}, Level.OK, "built for CUDA 12.8"),
            (CUDA, {"nvidia": 1, "cuda": (11, 4)}, Level.PROBLEM, "the driver runs CUDA 11.4 at most"),
            (CUDA, {"amd": 4}, Level.PROBLEM, "cannot use the GPU that is here"),
            (CUDA, {}, Level.OK, "built for CUDA 12.8"),
            (TorchBuild(version="2", kind="cpu"), {"nvidia": 1}, Level.PROBLEM, "built for the CPU only"),
            (TorchBuild(version="2", kind="cpu"), {}, Level.OK, "built for the CPU only"),
            (TorchBuild(version="2", kind="rocm"), {"amd": 1}, Level.OK, "built for ROCm"),
            (TorchBuild(version="2"), {"nvidia": 1}, Level.OK, "build unknown"),
            (None, {"nvidia": 1}, Level.WARNING, "not installed"),
        ],
    )
    def test_it_must_fit_the_devices(self, torch, host, level, words):
        finding = judge_torch(torch, **{"nvidia": 0, "amd": 0, "cuda": None} | host)
        assert finding.level is level
        assert words in finding.text


class TestSoftware:
    def examine(self, files, environ):
        return host.examine_software(files, environ, nvidia=0, amd=0, cuda=None)

    @pytest.mark.parametrize(
        ("name", "value", "level"),
        [
            ("CUDA_LAUNCH_BLOCKING", "1", Level.WARNING),
            ("CUDA_LAUNCH_BLOCKING", "0", Level.OK),
            ("NCCL_P2P_DISABLE", "1", Level.WARNING),
            ("NCCL_DEBUG", "info", Level.WARNING),
            ("NCCL_DEBUG", "WARN", Level.OK),
            ("NCCL_SOCKET_IFNAME", "eth0", Level.OK),
        ],
    )
    def test_variables_left_behind_by_a_search(self, tree, by_subject, name, value, level):
        finding = by_subject(self.examine(tree({}), {name: value}))["variables"]
        assert finding.level is level
        assert (finding.remedy == f"unset {name}") == (level is Level.WARNING)

    def test_container(self, tree, by_subject):
        files = tree({"run/.containerenv": 'engine="podman-4.9"\nimage="registry.example/x/torch:2.10"\n'})
        text = by_subject(self.examine(files, {}))["container"].text
        assert text == "podman-4.9, registry.example/x/torch:2.10"


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
