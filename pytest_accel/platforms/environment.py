"""Environment of a run: device, driver, libraries, container and host settings, as text; nothing here raises."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from typing import Any, TypeAlias

from pytest_accel.platforms.host import HostFiles
from pytest_accel.platforms.machine import find_cpu
from pytest_accel.platforms.numa import allowed_cpus, format_list
from pytest_accel.platforms.nvidia import Nvml, opened
from pytest_accel.stats.environment import (
    REDACTED,
    VARIABLE_PREFIX,
    Environment,
    looks_secret,
    safe_variables,
)

Facts: TypeAlias = dict[str, str]

# Field: distributions that may hold it; the first installed one counts. Nightly and NVIDIA's builds of
# torch have Triton under other names.
_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "torchvision": ("torchvision",),
    "timm": ("timm",),
    "triton": ("triton", "pytorch-triton", "pytorch-triton-rocm"),
    "numpy": ("numpy",),
    "transformers": ("transformers",),
    "pytest_accel": ("pytest-accel",),
}
_ON_OFF: Mapping[object, str] = {0: "off", 1: "on"}

# The name that an image was built with, which neither Docker nor Kubernetes passes into it; deploy/containers writes it.
IMAGE_PATH = "etc/pytest-accel-image.json"  # below the root
IMAGE_FIELDS: Mapping[str, str] = {
    "name": "image_name",  # registry.example/bench/pytest-accel:0.1.0
    "revision": "image_revision",  # of its sources
    "base": "image_base",
}
_MOST_CHARACTERS = 10_000
# Commits and digests are shortened: a long hexadecimal word would be taken for a credential.
_LONG_HEX = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,}\b")


def read_environment(
    *,
    device: str,
    device_index: int = 0,
    threads: int | None = None,
    device_count: int = 1,
    uuid: str | None = None,
    cpu_model: str | None = None,
    files: HostFiles | None = None,
    environ: Mapping[str, str] | None = None,
) -> Environment:
    """Return the environment of a run on `device` ("cpu", "cuda", "cuda:1").

    `uuid` is the visible device's, as NVML spells it; without one, torch is queried, if it is loaded.
    """
    files = files or HostFiles()
    environ = os.environ if environ is None else environ
    model = cpu_model or find_cpu(cpuinfo=files.root / "proc/cpuinfo").name
    context = _software() | _kernel() | container(files, environ) | _cpu_context(files)
    context |= {VARIABLE_PREFIX + name: value for name, value in safe_variables(environ).items()}
    if device.partition(":")[0] == "cpu":
        return Environment(identity=_present(_cpu_identity(model, threads)), context=_present(context))
    device_identity, device_context = _device(device_index, uuid)
    identity = {**device_identity, "device_count": str(device_count)}
    context |= {**_torch_libraries(), **device_context, "host_cpu_model": model}
    return Environment(identity=_present(identity), context=_present(context))


def _present(facts: Mapping[str, str]) -> Facts:
    return {name: value for name, value in sorted(facts.items()) if value}


# --- software ---------------------------------------------------------------------------------------


def _software() -> Facts:
    """Return versions from installed metadata: importing torchvision for its version takes seconds."""
    versions = {name: _installed_version(packages) for name, packages in _PACKAGES.items()}
    python = platform.python_version()
    if platform.python_implementation() != "CPython":
        python = f"{platform.python_implementation()} {python}"
    return versions | {"python": python}


def _installed_version(packages: Iterable[str]) -> str:
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(package) or ""  # None for damaged metadata
    return ""


def _kernel() -> Facts:
    facts = {"kernel": platform.release()}
    with suppress(AttributeError, OSError, ValueError):  # musl and macOS have no such name
        facts["glibc"] = (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc ")
    return facts


def _torch_libraries() -> Facts:
    """Return the libraries that torch was built with and has loaded; empty unless torch is imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    facts: Facts = {}
    # A CPU build lacks some of these names and raises from others.
    with suppress(AttributeError):
        facts["cuda"] = torch.version.cuda or ""
    with suppress(AttributeError):
        facts["hip"] = torch.version.hip or ""
    with suppress(AttributeError, RuntimeError):
        facts["cudnn"] = cudnn_version(torch.backends.cudnn.version() or 0)
    with suppress(AttributeError, RuntimeError, ImportError):
        facts["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return facts


def cudnn_version(number: int) -> str:
    """Format cuDNN's number: 91002 is 9.10.2; before version 9, 8902 was 8.9.2."""
    if number <= 0:
        return ""
    unit = 10_000 if number >= 90_000 else 1_000
    return f"{number // unit}.{number % unit // 100}.{number % 100}"


# --- container --------------------------------------------------------------------------------------


def container(files: HostFiles, environ: Mapping[str, str]) -> Facts:
    """Return runtime, name and image of the container; the first source that has a field counts.

    Not the name of a Kubernetes pod: it is new for each, and would make every job a new environment.
    """
    facts = image_facts(files.text(IMAGE_PATH))
    for found in (
        _apptainer(environ),
        _podman(files),
        _nvidia_image(environ),
        _bare_container(files, environ),
    ):
        facts = found | facts
    return {name: REDACTED if looks_secret(value) else value for name, value in facts.items()}


def image_facts(text: str) -> Facts:
    """Return the fields of the image's file; empty without one, and without values that are not text."""
    try:
        table = json.loads(text) if len(text) <= _MOST_CHARACTERS else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(table, dict):
        return {}
    return {
        fact: _LONG_HEX.sub(r"\1", table[name].strip())
        for name, fact in IMAGE_FIELDS.items()
        if isinstance(table.get(name), str) and table[name].strip()
    }


def _apptainer(environ: Mapping[str, str]) -> Facts:
    for product in ("APPTAINER", "SINGULARITY"):
        if image := environ.get(f"{product}_CONTAINER", ""):
            name = environ.get(f"{product}_NAME", "")
            return _present(
                {"container_runtime": product.lower(), "container_image": image, "container_name": name}
            )
    return {}


def _podman(files: HostFiles) -> Facts:
    pairs = (line.partition("=") for line in files.lines("run/.containerenv"))
    fields = {key.strip(): value.strip().strip('"') for key, _, value in pairs}
    return _present(
        {
            "container_runtime": fields.get("engine", ""),
            "container_image": fields.get("image", ""),
            "container_name": fields.get("name", ""),
        }
    )


def _nvidia_image(environ: Mapping[str, str]) -> Facts:
    product = environ.get("NVIDIA_PRODUCT_NAME", "")
    version = environ.get("NVIDIA_PYTORCH_VERSION", "")
    return _present({"nvidia_container": f"{product or 'PyTorch'} {version}".strip() if version else product})


def _bare_container(files: HostFiles, environ: Mapping[str, str]) -> Facts:
    if "KUBERNETES_SERVICE_HOST" in environ:
        return {"container_runtime": "kubernetes"}
    if named := environ.get("container"):
        return {"container_runtime": named}
    return {"container_runtime": "docker"} if files.exists(".dockerenv") else {}


# --- the host's CPU ---------------------------------------------------------------------------------


def _cpu_identity(model: str, threads: int | None) -> Facts:
    torch = sys.modules.get("torch")
    if threads is None and torch is not None:
        threads = int(torch.get_num_threads())
    return {
        "cpu_model": model,
        "architecture": platform.machine(),
        "threads": "" if threads is None else str(threads),
    }


def _cpu_context(files: HostFiles) -> Facts:
    allowed = allowed_cpus()
    first = min(allowed, default=0)
    huge_pages = files.text("sys/kernel/mm/transparent_hugepage/enabled")  # always [madvise] never
    return {
        "cpu_affinity": format_list(allowed),
        "cpu_governor": files.text(f"sys/devices/system/cpu/cpu{first}/cpufreq/scaling_governor"),
        "transparent_hugepages": huge_pages.partition("[")[2].partition("]")[0],
    }


# --- the device -------------------------------------------------------------------------------------


def _device(index: int, uuid: str | None) -> tuple[Facts, Facts]:
    """Return identity and context of the visible device: from NVML, and from torch where NVML has none."""
    properties = _torch_properties(index)
    identity: Facts = {}
    if properties is not None:
        memory_gb = _gigabytes(properties.total_memory)
        identity = {**_device_name(properties.name), "device_memory_gb": memory_gb}
    context: Facts = {}
    with opened() as nvml:
        cuda = nvml.cuda_version()
        context["driver"] = nvml.text("nvmlSystemGetDriverVersion")
        context["cuda_driver"] = f"{cuda[0]}.{cuda[1]}" if cuda else ""
        torch_uuid = getattr(properties, "uuid", None)
        handle = nvml.handle(uuid or (None if torch_uuid is None else str(torch_uuid)))
        if handle is not None:
            identity |= _present(_device_identity(nvml, handle))
            context |= _device_context(nvml, handle)
    return identity, context


def _device_identity(nvml: Nvml, handle: object) -> Facts:
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    return {
        **_device_name(nvml.text("nvmlDeviceGetName", handle)),
        "device_memory_gb": "" if memory is None else _gigabytes(memory.total),
        # Part of the identity: a device capped at 500 W of 700 W runs slower steps.
        "power_limit_w": _watts(nvml.ask("nvmlDeviceGetPowerManagementLimit", handle)),
    }


def _device_context(nvml: Nvml, handle: object) -> Facts:
    graphics, memory = nvml.constant("NVML_CLOCK_SM"), nvml.constant("NVML_CLOCK_MEM")
    ecc = nvml.ask("nvmlDeviceGetEccMode", handle) or (None,)  # current, pending
    mig = nvml.ask("nvmlDeviceGetMigMode", handle) or (None,)
    return {
        "default_power_limit_w": _watts(nvml.ask("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
        "max_sm_clock_mhz": nvml.text("nvmlDeviceGetMaxClockInfo", handle, graphics),
        "max_memory_clock_mhz": nvml.text("nvmlDeviceGetMaxClockInfo", handle, memory),
        "application_sm_clock_mhz": nvml.text("nvmlDeviceGetApplicationsClock", handle, graphics),
        "application_memory_clock_mhz": nvml.text("nvmlDeviceGetApplicationsClock", handle, memory),
        "ecc": _ON_OFF.get(ecc[0], ""),
        "mig_mode": _ON_OFF.get(mig[0], ""),
        "persistence": _ON_OFF.get(nvml.ask("nvmlDeviceGetPersistenceMode", handle), ""),
    }


def _device_name(full: str) -> Facts:
    """Split `NVIDIA A100-SXM4-40GB MIG 3g.20gb` into the device and the profile of its slice."""
    name, _, profile = full.partition(" MIG ")
    return {"device_name": name, "mig_profile": profile}


def _torch_properties(index: int) -> Any:  # noqa: ANN401 - a torch class; torch may be absent
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    try:
        return torch.cuda.get_device_properties(index)
    except (AssertionError, AttributeError, RuntimeError):  # a CPU build; no such device
        return None


def _gigabytes(count: int) -> str:
    """Return whole GiB: the memory that drivers reserve differs a little from version to version."""
    return str(round(count / 2**30))


def _watts(milliwatts: int | None) -> str:
    return "" if milliwatts is None else str(round(milliwatts / 1000))
