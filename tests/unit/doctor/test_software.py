"""Software: torch's build, slowing variables, container, NCCL's network, and the packages of an image."""

from __future__ import annotations

import json
import os
from importlib import metadata
from types import SimpleNamespace

import pytest

from pytest_accel.cli import main
from pytest_accel.doctor import software
from pytest_accel.doctor.doctor import Level, worst
from pytest_accel.doctor.software import (
    TorchBuild,
    examine_image,
    examine_network,
    installed_torch,
    is_within,
    judge_torch,
    try_import,
)

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
        return software.examine(files, environ, nvidia=0, amd=0, cuda=None)

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


# --- an image ---------------------------------------------------------------------------------------

EXTRAS = [name for name, (_, without) in software._USED.items() if without]


@pytest.fixture
def image(monkeypatch):
    """Findings by group and subject of an image with these versions (None: missing) and errors of imports."""
    monkeypatch.setattr(software, "installed_torch", lambda: CUDA)

    def examined(versions=(), errors=(), environ=os.environ):
        installed = {**dict.fromkeys(software._USED, "99.9"), "pytest-accel": "0.1.0", **dict(versions)}

        def version(name):
            if installed[name] is None:
                raise metadata.PackageNotFoundError(name)
            return installed[name]

        monkeypatch.setattr(metadata, "version", version)
        monkeypatch.setattr(software, "try_import", lambda module: dict(errors).get(module, ""))
        return {(each.group, each.subject): each for each in examine_image(environ)}

    return examined


def test_complete_image_needs_nothing(image):
    found = [each for (group, _), each in image().items() if group == "packages"]
    assert worst(found) is Level.OK
    assert {each.subject for each in found} == {*software._USED, "plugin"}


@pytest.mark.parametrize(
    ("versions", "words"),
    [({"pytest": None}, "missing"), ({"pytest": "8.1.1"}, "8.1.1, and >=8.2 is needed")],
)
def test_missing_requirement_is_a_problem(image, versions, words):
    found = image(versions)["packages", "pytest"]
    assert found.level is Level.PROBLEM
    assert words in found.text


def test_plugin_that_pytest_does_not_load_is_a_warning(image):
    found = image(environ={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})["packages", "plugin"]
    assert found.level is Level.WARNING


@pytest.mark.parametrize("name", EXTRAS)
def test_missing_package_says_what_does_not_work(image, name):
    found = image({name: None})["packages", name]
    assert found.level is (Level.PROBLEM if name == "nvidia-ml-py" else Level.WARNING)
    assert software._USED[name][1] in found.text
    # The image's own build of torch must stay.
    pinned = " 'torch==2.10.0'" if name in ("torchvision", "timm") else ""
    assert found.remedy == f"pip install {name}{pinned}"


def test_package_that_cannot_be_imported_is_a_problem(image):
    error = "ImportError: libcudart.so.12: cannot open shared object file"
    found = image(errors={"torch": error})["packages", "torch"]
    assert found.level is Level.PROBLEM
    assert f"99.9 cannot be imported: {error}" in found.text


@pytest.mark.parametrize(
    ("version", "wanted", "within"),
    [
        ("2.6.0", ">=2.6", True),
        ("2.5.1", ">=2.6", False),
        ("2.6.0a0+ecf3bae40a.nv25.01", ">=2.6", True),  # NVIDIA's container of January 2025
        ("2.10.0+cu128", ">=2.6", True),
        ("by hand", ">=2.6", True),
        ("1", "", True),
    ],
)
def test_versions(version, wanted, within):
    assert is_within(version, wanted) is within


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("print('I print at import')", ""),
        ("raise ImportError('libfoo.so.1: no such file')", "ImportError: libfoo.so.1: no such file"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "signal 9 ended the process that imported it",
        ),
        ("import signal; signal.pause()", "it did not end within 2 s"),
    ],
    ids=["good", "bad", "crash", "forever"],
)
def test_imports(tmp_path, monkeypatch, text, error):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "tried.py").write_text(text)
    assert try_import("tried", limit_s=2) == error


@pytest.mark.parametrize("environ", [{"PATH": "/nowhere"}, {"CC": "/nowhere/cc", "PATH": os.defpath}])
def test_missing_compiler_is_a_warning(image, environ):
    found = image(environ=environ)["software", "compiler"]
    assert found.level is Level.WARNING
    assert "--accel-compile=off" in found.remedy


def test_command_fails_where_there_is_a_problem(monkeypatch, capsys):
    bad = software.PACKAGES("plugin").problem("missing", "Install it.")
    monkeypatch.setattr(software, "examine_image", lambda environ: [bad])
    assert main(["doctor", "--image"]) == 1
    assert "PROBLEM  plugin" in capsys.readouterr().out
    monkeypatch.setattr(software, "examine_image", lambda environ: [software.PACKAGES("plugin").ok("found")])
    assert main(["doctor", "--image", "--json"]) == 0
    assert [each["level"] for each in json.loads(capsys.readouterr().out)["findings"]] == ["ok"]
