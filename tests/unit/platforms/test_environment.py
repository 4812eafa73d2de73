"""Environment of a run, read from fakes of NVML, torch and /proc."""

import json
import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch as real_torch
from torch._inductor import config as inductor

from pytest_accel.platforms.catalogue import DetectedDevice
from pytest_accel.platforms.environment import read_environment, torch_facts
from pytest_accel.platforms.host import HostFiles
from pytest_accel.stats.environment import REDACTED

UUID = "8f3aab12-1234-9abc-1234-1234567890ab"
H200 = DetectedDevice(index=0, name="NVIDIA H200", uuid=f"GPU-{UUID}", memory_bytes=150_754_820_096)


ANSWERS = {
    "nvmlSystemGetDriverVersion": "570.133.20",
    "nvmlSystemGetCudaDriverVersion_v2": 12080,
    "nvmlDeviceGetHandleByUUID": "handle",
    "nvmlDeviceGetPowerManagementLimit": 500_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
    "nvmlDeviceGetMaxClockInfo": 1980,
    "nvmlDeviceGetEccMode": [1, 1],
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetPersistenceMode": 1,
}


def fake_torch(**cuda):
    torch = ModuleType("torch")
    torch.version = SimpleNamespace(cuda="12.8", hip=None)
    torch.backends = SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 91002))
    torch.cuda = SimpleNamespace(**{"nccl": SimpleNamespace(version=lambda: (2, 27, 3)), **cuda})
    torch.get_num_threads = lambda: 4
    return torch


@pytest.fixture(autouse=True)
def bare_process(monkeypatch):
    """No torch and no NVML unless a test brings one."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)


@pytest.fixture
def torch(monkeypatch):
    def install(**cuda):
        monkeypatch.setitem(sys.modules, "torch", fake_torch(**cuda))

    return install


@pytest.fixture
def host(tmp_path):
    def build(files=None, **environ):
        for name, text in (files or {}).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        return {"files": HostFiles(root=tmp_path), "environ": environ, "cpu_model": "Example CPU"}

    return build


class TestDevice:
    def test_identity_is_the_device_and_context_its_settings(self, driver, host):
        driver(**ANSWERS)
        read = read_environment(H200, **host())
        assert read.identity == {
            "device_count": "1",
            "device_memory_gb": "140",
            "device_name": "NVIDIA H200",
            "power_limit_w": "500",
        }
        settings = {
            "host_cpu_model": "Example CPU",
            "driver": "570.133.20",
            "cuda_driver": "12.8",
            "ecc": "on",
            "mig_mode": "off",
            "persistence": "on",
            "max_sm_clock_mhz": "1980",
            "max_memory_clock_mhz": "1980",
            "default_power_limit_w": "700",
        }
        assert settings.items() <= read.context.items()
        assert "application_sm_clock_mhz" not in read.context  # this driver does not answer

    def test_an_error_of_nvml_loses_only_its_own_field(self, driver, host):
        package = driver(**ANSWERS | {"nvmlDeviceGetEccMode": OSError()})
        context = read_environment(H200, **host()).context
        assert "ecc" not in context
        assert context["mig_mode"] == "off"
        assert package.calls[-1] == "nvmlShutdown"


class TestCpu:
    def test_identity_is_the_model_the_architecture_and_the_threads(self, host):
        identity = read_environment(threads=1, **host()).identity
        assert identity == {"architecture": os.uname().machine, "cpu_model": "Example CPU", "threads": "1"}

    @pytest.mark.parametrize(
        ("limit", "quota"), [("50000 100000", "0.5"), ("400000 100000", None), ("max 100000", None)]
    )
    def test_quota_below_the_cpus_is_another_machine(self, host, monkeypatch, limit, quota):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
        files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": f"{limit}\n"}
        assert read_environment(threads=1, **host(files)).identity.get("cpu_quota") == quota

    def test_threads_are_those_of_torch_where_not_told(self, torch, host):
        assert "threads" not in read_environment(**host()).identity
        torch()
        assert read_environment(**host()).identity["threads"] == "4"

    def test_governor_affinity_and_huge_pages(self, host, monkeypatch):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 4, 5, 32})
        files = {
            "sys/devices/system/cpu/cpu3/cpufreq/scaling_governor": "performance\n",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        }
        context = read_environment(**host(files)).context
        assert context["cpu_affinity"] == "3-5,32"
        assert context["cpu_governor"] == "performance"
        assert context["transparent_hugepages"] == "madvise"


class TestSoftware:
    def test_versions_come_from_metadata_without_an_import(self):
        code = (
            "import sys; from pytest_accel.platforms.environment import read_environment as r;"
            "c = r(threads=1, cpu_model='x').context; print(c['python'], c['kernel']);"
            "print(sorted({'torch', 'torchvision', 'timm', 'numpy', 'pynvml'} & set(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        versions, imported = done.stdout.splitlines()
        assert versions.startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
        assert imported == "[]"

    def test_torch_tells_its_libraries(self, torch, host):
        torch()
        context = read_environment(H200, **host()).context
        assert (context["cuda"], context["cudnn"], context["nccl"]) == ("12.8", "9.10.2", "2.27.3")
        assert "hip" not in context

    def test_a_cpu_build_of_torch_tells_none(self, monkeypatch, host):
        torch = fake_torch(nccl=SimpleNamespace())
        torch.version.cuda = None
        torch.backends.cudnn.version = lambda: None
        monkeypatch.setitem(sys.modules, "torch", torch)
        context = read_environment(H200, **host()).context
        assert context.keys().isdisjoint({"cuda", "cudnn", "nccl"})

    @pytest.mark.parametrize("is_loaded", [True, False])
    def test_settings_of_torch_that_are_not_its_defaults(self, monkeypatch, is_loaded):
        """Inductor's is that of its variable until Inductor is loaded."""
        monkeypatch.setitem(sys.modules, "torch", real_torch)
        monkeypatch.setattr(real_torch.backends.cudnn, "enabled", False)
        monkeypatch.setattr(real_torch.backends.cudnn, "benchmark", True)
        monkeypatch.setattr(real_torch.backends.cudnn, "allow_tf32", False)
        monkeypatch.setattr(real_torch.backends.mkldnn, "enabled", False)
        monkeypatch.setattr(real_torch.backends.cuda, "math_sdp_enabled", lambda: False)
        monkeypatch.setattr(real_torch, "get_float32_matmul_precision", lambda: "high")
        monkeypatch.setattr(real_torch, "are_deterministic_algorithms_enabled", lambda: True)
        monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "0" if is_loaded else "1")
        if not is_loaded:
            monkeypatch.delitem(sys.modules, "torch._inductor.config")
        with inductor.patch(max_autotune=is_loaded):
            found = torch_facts()
        assert found == {
            "matmul_precision": "high",
            "cudnn_enabled": "off",
            "mkldnn_enabled": "off",
            "cudnn_benchmark": "on",
            "cudnn_tf32": "off",
            "sdpa_disabled": "math",
            "deterministic": "on",
            "max_autotune": "on",
        }


class TestContainer:
    @pytest.mark.parametrize(
        ("files", "environ", "told"),
        [
            ({}, {}, {}),
            ({".dockerenv": ""}, {}, {"runtime": "docker"}),
            ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, {"runtime": "kubernetes"}),
            (
                {
                    "run/.containerenv": 'engine="podman-4.9"\nname="bench"\nimage="registry.example/torch:2"\n'
                },
                {"container": "podman"},
                {"runtime": "podman-4.9", "name": "bench", "image": "registry.example/torch:2"},
            ),
            ({"run/.containerenv": ""}, {"container": "podman"}, {"runtime": "podman"}),
            (
                {},
                {
                    "APPTAINER_CONTAINER": "/torch.sif",
                    "APPTAINER_NAME": "torch",
                    "SINGULARITY_CONTAINER": "/torch.sif",
                },
                {"runtime": "apptainer", "image": "/torch.sif", "name": "torch"},
            ),
            ({}, {"SINGULARITY_CONTAINER": "/torch.sif"}, {"runtime": "singularity", "image": "/torch.sif"}),
        ],
    )
    def test_what_the_environment_tells(self, host, files, environ, told):
        context = read_environment(**host(files, **environ)).context
        assert {name[10:]: value for name, value in context.items() if name.startswith("container_")} == told

    def test_an_image_of_nvidia_tells_its_product(self, host):
        environ = {"NVIDIA_PRODUCT_NAME": "PyTorch", "NVIDIA_PYTORCH_VERSION": "24.12"}
        assert read_environment(**host(**environ)).context["nvidia_container"] == "PyTorch 24.12"

    def test_an_image_tells_the_name_it_was_built_with(self, host):
        """Docker and Kubernetes tell none; a commit and a digest are told by their beginning."""
        built = {
            "name": "registry.example/bench:0.1.0",
            "revision": "0a09a39c" * 5,
            "base": f"registry.example/pytorch@sha256:{'4f' * 32}",
            "base_os": "unknown field",
        }
        environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
        context = read_environment(
            **host({"etc/pytest-accel-image.json": json.dumps(built)}, **environ)
        ).context
        assert {name: value for name, value in context.items() if "image" in name} == {
            "image_name": "registry.example/bench:0.1.0",
            "image_revision": "0a09a39c0a09",
            "image_base": "registry.example/pytorch@sha256:4f4f4f4f4f4f",
        }

    @pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"name": 3}'])
    def test_a_file_that_names_no_image_is_none(self, host, text):
        context = read_environment(**host({"etc/pytest-accel-image.json": text})).context
        assert not [name for name in context if "image" in name]

    def test_a_password_in_an_image_name_is_not_stored(self, host):
        built = json.dumps({"name": "https://me:hunter2@registry.example.org/x"})
        context = read_environment(**host({"etc/pytest-accel-image.json": built})).context
        assert context["image_name"] == REDACTED
