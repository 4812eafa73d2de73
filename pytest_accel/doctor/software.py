"""Checks of the software that uses the devices: torch's build, slowing variables, container, NCCL's network.

torch is never imported: its files are read.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pytest_accel.doctor.findings import Finding, Sheet
from pytest_accel.platforms.environment import container
from pytest_accel.platforms.host import HostFiles
from pytest_accel.stats.environment import safe_variables
from pytest_accel.stats.quantities import counted

SOFTWARE, NETWORK = Sheet(group="software"), Sheet(group="network")
_OFF = frozenset({"", "0", "n", "no", "false"})
# Debugging settings that are easily left behind; each slows every step.
_SLOWING = {
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for",
    "HIP_LAUNCH_BLOCKING": "every kernel is waited for",
    "AMD_SERIALIZE_KERNEL": "every kernel is waited for",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is a call to the driver",
    "PYTHONDEVMODE": "Python runs extra checks",
}
_SLOWING_NCCL = {
    "NCCL_P2P_DISABLE": "GPUs of a node copy through the host",
    "NCCL_SHM_DISABLE": "ranks of a node communicate through the network",
    "NCCL_IB_DISABLE": "InfiniBand and RoCE stay unused",
}
_ADAPTERS = "sys/class/infiniband"
_SLINGSHOT = "sys/class/cxi"
_PLUGIN_FOLDERS = (
    "usr/lib",
    "usr/lib64",
    f"usr/lib/{platform.machine()}-linux-gnu",
    "usr/local/lib",
    "usr/local/nccl-plugin/lib",
    "opt/amazon/ofi-nccl/lib",
    "opt/aws-ofi-nccl/lib",
    "opt/hpcx/nccl_rdma_sharp_plugin/lib",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """The installed torch, by its files: `kind` is cuda, rocm, cpu, or empty if they do not say."""

    version: str
    kind: str = ""
    cuda: tuple[int, int] | None = None


def examine(
    files: HostFiles,
    environ: Mapping[str, str],
    *,
    nvidia: int,
    amd: int,
    cuda: tuple[int, int] | None,
    find_torch: Callable[[], TorchBuild | None] | None = None,
) -> list[Finding]:
    """Check torch's build for the GPUs (`nvidia` and `amd` are their numbers, `cuda` the driver's newest)."""
    torch = (find_torch or installed_torch)()
    return [
        judge_torch(torch, nvidia=nvidia, amd=amd, cuda=cuda),
        slowing_variables(environ),
        _container(files, environ),
    ]


def installed_torch(
    distribution: Callable[[str], metadata.Distribution] = metadata.distribution,
) -> TorchBuild | None:
    """Return torch's build; PyPI's wheels have no +cu128 in their metadata, but torch/version.py has it."""
    try:
        found = distribution("torch")
        version = found.version or "version unknown"
        place = Path(str(found.locate_file("torch/version.py")))
    except metadata.PackageNotFoundError:
        return None
    text = HostFiles(root=place.parent).text(place.name)
    local = version.partition("+")[2]
    fields = dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *'([^'\n]*)'", text, re.MULTILINE))
    if fields.get("hip") or local.startswith("rocm"):
        return TorchBuild(version=version, kind="rocm")
    number = re.match(r"(\d+)\.(\d+)", fields.get("cuda", "")) or re.match(r"cu(\d+)(\d)$", local)
    if number:
        return TorchBuild(version=version, kind="cuda", cuda=(int(number[1]), int(number[2])))
    return TorchBuild(version=version, kind="cpu" if text or local == "cpu" else "")


def judge_torch(torch: TorchBuild | None, *, nvidia: int, amd: int, cuda: tuple[int, int] | None) -> Finding:
    if torch is None:
        return SOFTWARE.warning(
            "torch",
            "not installed: only benchmarks of your own steps can run",
            "pip install 'pytest-accel[suites]'",
        )
    built = {"cuda": "for CUDA", "rocm": "for ROCm", "cpu": "for the CPU only"}.get(torch.kind, "")
    version = f" {torch.cuda[0]}.{torch.cuda[1]}" if torch.cuda else ""
    text = f"{torch.version}, built {built}{version}" if built else f"{torch.version}, build unknown"
    needed = ("CUDA", "cuda") if nvidia else ("ROCm", "rocm") if amd else ("", torch.kind)
    if torch.kind and torch.kind != needed[1]:
        return SOFTWARE.problem(
            "torch",
            f"{text}: it cannot use the GPU that is here",
            f"Install a build of torch for {needed[0]} (pytorch.org, 'Get started').",
        )
    if torch.cuda and cuda and torch.cuda[0] > cuda[0]:
        return SOFTWARE.problem(
            "torch",
            f"{text}; the driver runs CUDA {cuda[0]}.{cuda[1]} at most",
            f"Upgrade the driver, or install a build for CUDA {cuda[0]} or older.",
        )
    return SOFTWARE.ok("torch", text)


def slowing_variables(environ: Mapping[str, str]) -> Finding:
    slowing = [name for name in _SLOWING if environ.get(name, "").lower() not in _OFF]
    if slowing:
        words = "; ".join(f"{name} is set: {_SLOWING[name]}" for name in slowing)
        return SOFTWARE.warning("variables", words, f"unset {' '.join(slowing)}")
    return SOFTWARE.ok("variables", "none that slows every step")


def _container(files: HostFiles, environ: Mapping[str, str]) -> Finding:
    facts = container(files, environ)
    runtime = facts.get("container_runtime", "")
    names = ("image_name", "container_image", "container_name", "nvidia_container")
    named = next((facts[name] for name in names if name in facts), "")
    if not runtime and not named:
        return SOFTWARE.ok("container", "none found")
    return SOFTWARE.ok("container", f"{runtime or 'image'}{f', {named}' if named else ''}")


# --- the network between GPUs and nodes -------------------------------------------------------------


def examine_network(files: HostFiles, environ: Mapping[str, str]) -> list[Finding]:
    """Check InfiniBand and Slingshot adapters, NCCL's plugin for Slingshot, and NCCL's variables."""
    return [_adapters(files, environ), _nccl_variables(environ)]


def _adapters(files: HostFiles, environ: Mapping[str, str]) -> Finding:
    ports = [
        (f"{name}/{port}", f"{_ADAPTERS}/{name}/ports/{port}")
        for name in files.names(_ADAPTERS)
        for port in files.names(f"{_ADAPTERS}/{name}/ports")
    ]
    active = [
        f"{name} {files.text(f'{path}/rate') or 'rate unknown'}"
        for name, path in ports
        if files.text(f"{path}/state").endswith("ACTIVE")  # "4: ACTIVE"
    ]
    slingshot = files.names(_SLINGSHOT)
    # NCCL uses InfiniBand by itself; Slingshot only through a plugin.
    if slingshot and not _has_plugin(files, environ):
        return NETWORK.warning(
            "adapters",
            f"Slingshot {', '.join(slingshot)}, and no libnccl-net*.so is found: NCCL would use TCP over it",
            "Load the site's aws-ofi-nccl, and put its folder into LD_LIBRARY_PATH.",
        )
    if ports and not active and not slingshot:
        return NETWORK.warning(
            "adapters",
            f"{counted(len(ports), 'InfiniBand port')}, and none is active",
            "Check cables and the subnet manager (`ibstat`): NCCL falls back to TCP between nodes.",
        )
    words = active[:4] + (["…"] if len(active) > 4 else [])
    words += [f"Slingshot {', '.join(slingshot)}"] if slingshot else []
    return NETWORK.ok("adapters", "; ".join(words) or "no InfiniBand or Slingshot: nodes would use TCP")


def _has_plugin(files: HostFiles, environ: Mapping[str, str]) -> bool:
    folders = [folder.strip("/") for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return any(
        name.startswith("libnccl-net") and ".so" in name
        for folder in dict.fromkeys([*folders, *_PLUGIN_FOLDERS])
        for name in files.names(folder)
    )


def _nccl_variables(environ: Mapping[str, str]) -> Finding:
    found = {name: value for name, value in safe_variables(environ).items() if name.startswith("NCCL_")}
    slowing = [name for name in _SLOWING_NCCL if found.get(name, "").lower() not in _OFF]
    if slowing:
        words = "; ".join(f"{name}={found[name]}: {_SLOWING_NCCL[name]}" for name in slowing)
        return NETWORK.warning("variables", words, f"unset {' '.join(slowing)}")
    if found.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE"):
        text = f"NCCL_DEBUG={found['NCCL_DEBUG']}: NCCL prints while it measures"
        return NETWORK.warning("variables", text, "unset NCCL_DEBUG")
    shown = ", ".join(f"{name}={value}" for name, value in sorted(found.items()))
    return NETWORK.ok("variables", shown or "no NCCL_* is set")
