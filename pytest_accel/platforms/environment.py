"""Read where this process measures, as text: what cannot be read is absent, and nothing here raises."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_accel.platforms import image
from pytest_accel.platforms.cpu import find as find_cpu
from pytest_accel.platforms.numa import allowed_cpus, format_list
from pytest_accel.platforms.nvml import Nvml, opened
from pytest_accel.stats.environment import (
    REDACTED,
    VARIABLE_PREFIX,
    Environment,
    looks_secret,
    safe_variables,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Facts: TypeAlias = dict[str, str]

# Field: distributions that may hold it, the first installed one counts. Nightly and NVIDIA's builds of
# torch bring Triton under other names.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where facts about the host come from; tests put a folder and a dict in its place."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def line(self, path: str) -> str:
        """The file's first line; empty when there is no such file."""
        return next(iter(self.lines(path)), "").strip()

    def lines(self, path: str) -> list[str]:
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()


def read_environment(
    *,
    device: str,
    device_index: int = 0,
    threads: int | None = None,
    device_count: int = 1,
    uuid: str | None = None,
    cpu_model: str | None = None,
    host: Host | None = None,
) -> Environment:
    """The environment of a run on `device` ("cpu", "cuda", "cuda:1").

    `uuid` is the visible device's, as NVML spells it; without one, torch is asked, if it is loaded.
    """
    host = host or Host()
    model = cpu_model or find_cpu(cpuinfo=host.root / "proc/cpuinfo").name
    context = _software() | _kernel() | container(host) | _cpu_context(host)
    context |= {VARIABLE_PREFIX + name: value for name, value in safe_variables(host.environ).items()}
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
    """Versions from installed metadata: importing torchvision to ask for its version takes seconds."""
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
    with suppress(AttributeError, OSError, ValueError):  # musl and macOS know no such name
        facts["glibc"] = (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc ")
    return facts


def _torch_libraries() -> Facts:
    """What torch was built with and has loaded; only where somebody imported torch already."""
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
    """91002 is 9.10.2; before version 9, 8902 was 8.9.2."""
    if number <= 0:
        return ""
    unit = 10_000 if number >= 90_000 else 1_000
    return f"{number // unit}.{number % unit // 100}.{number % 100}"


# --- container --------------------------------------------------------------------------------------


def container(host: Host) -> Facts:
    """Name and image where the environment tells; the first source that knows a field counts.

    Not the name of a Kubernetes pod: it is made up anew for each, and would make every job a new
    environment and a suspect in every report.
    """
    facts: Facts = image.image_facts("\n".join(host.lines(image.PATH)))
    for source in (_apptainer, _podman, _nvidia_image, _bare_container):
        facts = source(host) | facts
    return {name: REDACTED if looks_secret(value) else value for name, value in facts.items()}


def _apptainer(host: Host) -> Facts:
    variables = host.environ
    for product in ("APPTAINER", "SINGULARITY"):
        if image := variables.get(f"{product}_CONTAINER", ""):
            name = variables.get(f"{product}_NAME", "")
            return _present(
                {"container_runtime": product.lower(), "container_image": image, "container_name": name}
            )
    return {}


def _podman(host: Host) -> Facts:
    pairs = (line.partition("=") for line in host.lines("run/.containerenv"))
    told = {key.strip(): value.strip().strip('"') for key, _, value in pairs}
    return _present(
        {
            "container_runtime": told.get("engine", ""),
            "container_image": told.get("image", ""),
            "container_name": told.get("name", ""),
        }
    )


def _nvidia_image(host: Host) -> Facts:
    product = host.environ.get("NVIDIA_PRODUCT_NAME", "")
    version = host.environ.get("NVIDIA_PYTORCH_VERSION", "")
    return _present({"nvidia_container": f"{product or 'PyTorch'} {version}".strip() if version else product})


def _bare_container(host: Host) -> Facts:
    """The kind of container, where nothing more is told."""
    if "KUBERNETES_SERVICE_HOST" in host.environ:
        return {"container_runtime": "kubernetes"}
    if named := host.environ.get("container"):
        return {"container_runtime": named}
    return {"container_runtime": "docker"} if host.exists(".dockerenv") else {}


# --- the host's CPU ---------------------------------------------------------------------------------


def _cpu_identity(model: str, threads: int | None) -> Facts:
    used = _torch_threads() if threads is None else threads
    return {
        "cpu_model": model,
        "architecture": platform.machine(),
        "threads": "" if used is None else str(used),
    }


def _torch_threads() -> int | None:
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def _cpu_context(host: Host) -> Facts:
    allowed = allowed_cpus()
    first = min(allowed, default=0)
    huge_pages = host.line("sys/kernel/mm/transparent_hugepage/enabled")  # always [madvise] never
    return {
        "cpu_affinity": format_list(allowed),
        "cpu_governor": host.line(f"sys/devices/system/cpu/cpu{first}/cpufreq/scaling_governor"),
        "transparent_hugepages": huge_pages.partition("[")[2].partition("]")[0],
    }


# --- the device -------------------------------------------------------------------------------------


def _device(index: int, uuid: str | None) -> tuple[Facts, Facts]:
    """Identity and context of the visible device: from NVML, and from torch where NVML is silent."""
    identity: Facts = _torch_device(index)
    context: Facts = {}
    with opened() as nvml:
        context |= _driver(nvml)
        handle = nvml.handle(uuid or _torch_uuid(index))
        if handle is not None:
            identity |= _present(_device_identity(nvml, handle))
            context |= _device_context(nvml, handle)
    return identity, context


def _driver(nvml: Nvml) -> Facts:
    number = nvml.ask("nvmlSystemGetCudaDriverVersion_v2") or 0  # 12040 is 12.4
    return {
        "driver": nvml.text("nvmlSystemGetDriverVersion"),
        "cuda_driver": f"{number // 1000}.{number % 1000 // 10}" if number else "",
    }


def _device_identity(nvml: Nvml, handle: object) -> Facts:
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    return {
        **_named(nvml.text("nvmlDeviceGetName", handle)),
        "device_memory_gb": "" if memory is None else gigabytes(memory.total),
        # A capped device is another device to a benchmark: 500 W of 700 W are slower steps.
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


def _torch_device(index: int) -> Facts:
    properties = _torch_properties(index)
    if properties is None:
        return {}
    return {**_named(properties.name), "device_memory_gb": gigabytes(properties.total_memory)}


def _named(full: str) -> Facts:
    """`NVIDIA A100-SXM4-40GB MIG 3g.20gb` is a slice of the device before the word."""
    name, _, profile = full.partition(" MIG ")
    return {"device_name": name, "mig_profile": profile}


def _torch_uuid(index: int) -> str | None:
    uuid = getattr(_torch_properties(index), "uuid", None)
    return None if uuid is None else str(uuid)


def _torch_properties(index: int) -> Any:  # noqa: ANN401 - a torch class; torch may be absent
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    try:
        return torch.cuda.get_device_properties(index)
    except (AssertionError, AttributeError, RuntimeError):  # a CPU build; no such device
        return None


def gigabytes(count: int) -> str:
    """Whole GiB: drivers reserve a little more or less from version to version."""
    return str(round(count / 2**30))


def _watts(milliwatts: int | None) -> str:
    return "" if milliwatts is None else str(round(milliwatts / 1000))
