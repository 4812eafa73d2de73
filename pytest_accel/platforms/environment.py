"""Environment of a run: device, driver, libraries, container and host settings, as text; nothing here raises."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import metadata
from typing import TypeAlias

from pytest_accel.platforms.catalogue import DetectedDevice
from pytest_accel.platforms.host import HOST, HostFiles, allowed_cpus, cpu_quota, format_list
from pytest_accel.platforms.nvidia import NvmlGpu, opened
from pytest_accel.stats import environment

Facts: TypeAlias = dict[str, str]

# Distribution: field. Nightly and NVIDIA's builds of torch have Triton under other names.
_PACKAGES = ("torch", "torchvision", "timm", "numpy", "transformers", "torchao", "vllm")
_FIELDS = {name: name for name in _PACKAGES}
_FIELDS |= {name: name.replace("-", "_") for name in ("transformer-engine", "flash-attn", "pytest-accel")}
_FIELDS |= dict.fromkeys(("pytorch-triton-rocm", "pytorch-triton", "triton"), "triton")
_ON_OFF: Mapping[object, str] = {0: "off", 1: "on"}

# The name that an image was built with, which neither Docker nor Kubernetes passes into it; deploy/containers writes it.
IMAGE_PATH = "etc/pytest-accel-image.json"  # below the root
IMAGE_FIELDS = ("name", "revision", "base")  # registry.example/bench/pytest-accel:0.1.0, of its sources
# Commits and digests are shortened: a long hexadecimal word would be taken for a credential.
_LONG_HEX = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,}\b")


def read_environment(
    hardware: DetectedDevice | None = None,
    *,
    cpu_model: str,
    threads: int | None = None,
    device_count: int = 1,
    files: HostFiles = HOST,
    environ: Mapping[str, str] = os.environ,
) -> environment.Environment:
    """Return the environment of a run on a device; on the CPU without one."""
    variables = environment.safe_variables(environ)
    context = {
        environment.FACTS: environment.FACT_SET,
        **_software(),
        **container(files, environ),
        **_cpu_context(files),
        **torch_facts(libraries=hardware is not None),
        **{environment.VARIABLE_PREFIX + name: value for name, value in variables.items()},
    }
    if hardware is None:
        if threads is None and (torch := sys.modules.get("torch")):
            threads = torch.get_num_threads()
        identity = {"cpu_model": cpu_model, "architecture": platform.machine(), "threads": _text(threads)}
        if (quota := cpu_quota(files)) and quota < len(allowed_cpus()):  # as the power limit of a GPU
            identity["cpu_quota"] = f"{quota:g}"
    else:
        identity, device_context = _device(hardware)
        identity["device_count"] = str(device_count)
        cards = "sys/class/infiniband"  # of RoCE adapters too
        firmware = {files.text(f"{cards}/{card}/fw_ver") for card in files.names(cards)} - {""}
        context |= {
            **device_context,
            "host_cpu_model": cpu_model,
            "nic_firmware": ", ".join(sorted(firmware)),
            "ofed": files.text("sys/module/mlx5_core/version"),
        }
    return environment.Environment(identity=_present(identity), context=_present(context))


def _present(facts: Mapping[str, str]) -> Facts:
    return {name: value for name, value in sorted(facts.items()) if value}


def _software() -> Facts:
    """Return versions from installed metadata: importing torchvision for its version takes seconds."""
    facts = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "glibc": platform.libc_ver()[1],
    }
    for package, name in _FIELDS.items():
        with suppress(metadata.PackageNotFoundError):
            facts[name] = metadata.version(package) or ""  # None for damaged metadata
    return facts


def torch_facts(*, libraries: bool = False) -> Facts:
    """Return settings of torch that are not its defaults, which change speed; on request its libraries too.

    Empty unless torch is imported.
    """
    torch, inductor = sys.modules.get("torch"), sys.modules.get("torch._inductor.config")
    if torch is None:
        return {}
    backends = ("flash", "mem_efficient", "cudnn", "math")
    # Before Inductor is loaded, its variable: loading it changes no setting.
    variable = os.environ.get("TORCHINDUCTOR_MAX_AUTOTUNE") == "1"
    autotunes = inductor.max_autotune if inductor else variable
    readers: dict[str, Callable[[], str]] = {
        "matmul_precision": lambda: torch.get_float32_matmul_precision().replace("highest", ""),
        "cudnn_enabled": lambda: "" if torch.backends.cudnn.enabled else "off",
        "mkldnn_enabled": lambda: "" if torch.backends.mkldnn.enabled else "off",
        "cudnn_benchmark": lambda: "on" if torch.backends.cudnn.benchmark else "",
        "cudnn_tf32": lambda: "" if torch.backends.cudnn.allow_tf32 else "off",
        "sdpa_disabled": lambda: " ".join(
            each for each in backends if not getattr(torch.backends.cuda, f"{each}_sdp_enabled")()
        ),
        "deterministic": lambda: "on" if torch.are_deterministic_algorithms_enabled() else "",
        "max_autotune": lambda: "on" if autotunes else "",
    }
    if libraries:
        readers |= {
            "cuda": lambda: torch.version.cuda or "",
            "hip": lambda: torch.version.hip or "",
            "cudnn": lambda: _cudnn_version(torch.backends.cudnn.version()),
            "nccl": lambda: ".".join(str(part) for part in torch.cuda.nccl.version()),
            "cublas": lambda: _loaded_version("cublas"),
            "cublaslt": lambda: _loaded_version("cublasLt"),
        }
    facts: Facts = {}
    for name, read in readers.items():
        # A CPU build lacks some, and raises from others.
        with suppress(AttributeError, RuntimeError, ImportError):
            if found := read():
                facts[name] = found
    return facts


def _loaded_version(library: str) -> str:
    """Return the version of a CUDA library that this process has loaded; empty without it."""
    for major in (13, 12, 11):
        with suppress(OSError, AttributeError):
            loaded = ctypes.CDLL(f"lib{library}.so.{major}", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            parts = []
            for part in range(3):  # MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL
                number = ctypes.c_int()
                getattr(loaded, f"{library}GetProperty")(part, ctypes.byref(number))
                parts.append(str(number.value))
            return ".".join(parts)
    return ""


def compiled_counts() -> dict[str, float]:
    """Return how many graphs torch.compile has made in this process, and how often it broke one off; empty where it is not used."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return {}
    counters = dynamo.counters
    return {
        "compiled_graphs": float(counters["stats"]["unique_graphs"]),
        "graph_breaks": float(sum(counters["graph_break"].values())),
    }


def _cudnn_version(number: int | None) -> str:
    """Format the number since cuDNN 9: 91002 is 9.10.2."""
    return f"{number // 10_000}.{number % 10_000 // 100}.{number % 100}" if number else ""


def _cpu_context(files: HostFiles) -> Facts:
    allowed = allowed_cpus()
    huge_pages = files.text("sys/kernel/mm/transparent_hugepage/enabled")  # always [madvise] never
    microcode = re.search(r"^microcode\s*: (\S+)", files.text("proc/cpuinfo"), re.MULTILINE)
    return {
        "microcode": microcode[1] if microcode else "",
        "cpu_affinity": format_list(allowed),
        "cpu_governor": files.text(f"sys/devices/system/cpu/cpu{min(allowed)}/cpufreq/scaling_governor"),
        "transparent_hugepages": huge_pages.partition("[")[2].partition("]")[0],
    }


def container(files: HostFiles, environ: Mapping[str, str]) -> Facts:
    """Return runtime, name and image of the container.

    Not the name of a Kubernetes pod: it is new for each, and would make every job a new environment.
    """
    pairs = (line.partition("=") for line in files.lines("run/.containerenv"))
    podman = {key.strip(): value.strip().strip('"') for key, _, value in pairs}
    # Apptainer sets the variables of both names.
    product = next((each for each in ("APPTAINER", "SINGULARITY") if f"{each}_CONTAINER" in environ), "")
    runtime = environ.get("container", "") or ("docker" if files.exists(".dockerenv") else "")
    if "KUBERNETES_SERVICE_HOST" in environ:
        runtime = "kubernetes"
    facts = {
        "container_runtime": product.lower() or podman.get("engine", "") or runtime,
        "container_image": environ.get(f"{product}_CONTAINER", podman.get("image", "")),
        "container_name": environ.get(f"{product}_NAME", podman.get("name", "")),
        "nvidia_container": " ".join(
            filter(None, map(environ.get, ("NVIDIA_PRODUCT_NAME", "NVIDIA_PYTORCH_VERSION")))
        ),
        **_image_facts(files.text(IMAGE_PATH)),
    }
    return {
        name: environment.REDACTED if environment.looks_secret(value) else value
        for name, value in _present(facts).items()
    }


def _image_facts(text: str) -> Facts:
    """Return the fields of the image's file; empty without one."""
    try:
        table = json.loads(text)
        given = [name for name in IMAGE_FIELDS if name in table]
        return {f"image_{name}": _LONG_HEX.sub(r"\1", table[name]) for name in given}
    except (ValueError, TypeError):
        return {}


def _device(hardware: DetectedDevice) -> tuple[Facts, Facts]:
    """Return identity and context of a device: as it was detected, and what NVML adds."""
    # Whole GiB: the memory that drivers reserve differs a little from version to version.
    memory_gb = "" if hardware.memory_bytes is None else str(round(hardware.memory_bytes / 2**30))
    identity = {"device_name": hardware.name, "device_memory_gb": memory_gb}
    with opened() as nvml:
        cuda = nvml.cuda_version()
        context = {
            "driver": _text(nvml.ask("nvmlSystemGetDriverVersion")),
            "cuda_driver": f"{cuda[0]}.{cuda[1]}" if cuda else "",
        }
        gpu = NvmlGpu(nvml, nvml.handle(hardware.uuid))
        # Part of the identity: a device capped at 500 W of 700 W runs slower steps.
        identity["power_limit_w"] = _watts(gpu.get("PowerManagementLimit"))
        for clock, field in (("NVML_CLOCK_SM", "sm_clock_mhz"), ("NVML_CLOCK_MEM", "memory_clock_mhz")):
            context[f"max_{field}"] = _text(gpu.get("MaxClockInfo", clock))
            context[f"application_{field}"] = _text(gpu.get("ApplicationsClock", clock))
        # ECC and MIG: current, pending.
        modes = {"ecc": gpu.get("EccMode") or (None,), "mig_mode": gpu.get("MigMode") or (None,)}
        return identity, context | {
            "vbios": _text(gpu.get("VbiosVersion")),
            "inforom": _text(gpu.get("InforomImageVersion")),
            "gsp_firmware": _text(gpu.get("GspFirmwareVersion")),
            "default_power_limit_w": _watts(gpu.get("PowerManagementDefaultLimit")),
            "persistence": _ON_OFF.get(gpu.get("PersistenceMode"), ""),
            **{name: _ON_OFF.get(mode[0], "") for name, mode in modes.items()},
        }


def _text(answer: object) -> str:
    return "" if answer is None else str(answer)


def _watts(milliwatts: int | None) -> str:
    return _text(milliwatts and round(milliwatts / 1000))
