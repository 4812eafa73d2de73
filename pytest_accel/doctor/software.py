"""Checks of installed software: torch's build, slowing variables, container and NCCL's network."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pytest_accel.doctor.findings import Finding, Sheet
from pytest_accel.platforms.environment import container
from pytest_accel.platforms.host import HostFiles, read_file
from pytest_accel.stats.quantities import counted

SOFTWARE, NETWORK = Sheet("software"), Sheet("network")
_OFF = frozenset({"", "0", "n", "no", "false"})
# Debugging settings that are easily left behind; each slows every step.
_SLOWING = {
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for",
    "HIP_LAUNCH_BLOCKING": "every kernel is waited for",
    "AMD_SERIALIZE_KERNEL": "every kernel is waited for",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is a call to the driver",
    "PYTHONDEVMODE": "Python runs extra checks",
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
    files: HostFiles, environ: Mapping[str, str], *, nvidia: int, amd: int, cuda: tuple[int, int] | None
) -> list[Finding]:
    """Check torch's build for the GPUs (`nvidia` and `amd` are their numbers, `cuda` the driver's newest)."""
    facts = container(files, environ)
    names = ("image_name", "container_image", "container_name", "nvidia_container")
    named = [facts["container_runtime"]] if "container_runtime" in facts else []
    named += [facts[name] for name in names if name in facts][:1]
    return [
        judge_torch(installed_torch(), nvidia=nvidia, amd=amd, cuda=cuda),
        slowing_variables(environ),
        SOFTWARE("container").ok(", ".join(named) or "none found"),
    ]


def installed_torch() -> TorchBuild | None:
    """Return torch's build; PyPI's wheels have no +cu128 in their metadata, but torch/version.py has it."""
    try:
        found = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return None
    version = found.version or "version unknown"
    text, _ = read_file(Path(str(found.locate_file("torch/version.py"))))
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
        text = "not installed: only benchmarks of your own steps can run"
        return SOFTWARE("torch").warning(text, "pip install torch torchvision")
    built = {"cuda": "for CUDA", "rocm": "for ROCm", "cpu": "for the CPU only"}.get(torch.kind, "")
    version = f" {torch.cuda[0]}.{torch.cuda[1]}" if torch.cuda else ""
    text = f"{torch.version}, built {built}{version}" if built else f"{torch.version}, build unknown"
    needed = ("CUDA", "cuda") if nvidia else ("ROCm", "rocm") if amd else ("", torch.kind)
    if torch.kind and torch.kind != needed[1]:
        remedy = f"Install a build of torch for {needed[0]} (pytorch.org, 'Get started')."
        return SOFTWARE("torch").problem(f"{text}: it cannot use the GPU that is here", remedy)
    if torch.cuda and cuda and torch.cuda[0] > cuda[0]:
        remedy = f"Upgrade the driver, or install a build for CUDA {cuda[0]} or older."
        text += f"; the driver runs CUDA {cuda[0]}.{cuda[1]} at most"
        return SOFTWARE("torch").problem(text, remedy)
    return SOFTWARE("torch").ok(text)


def slowing_variables(environ: Mapping[str, str]) -> Finding:
    slowing = [name for name in _SLOWING if environ.get(name, "").lower() not in _OFF]
    words = [f"{name} is set: {_SLOWING[name]}" for name in slowing]
    if environ.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE"):
        slowing.append("NCCL_DEBUG")
        words.append("NCCL_DEBUG is set: NCCL prints while it measures")
    if slowing:
        return SOFTWARE("variables").warning("; ".join(words), f"unset {' '.join(slowing)}")
    return SOFTWARE("variables").ok("none that slows every step")


# --- the network between GPUs and nodes -------------------------------------------------------------


def examine_network(files: HostFiles, environ: Mapping[str, str]) -> list[Finding]:
    """Check InfiniBand and Slingshot adapters, and NCCL's plugin for Slingshot."""
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
    sheet = NETWORK("adapters")
    # NCCL uses InfiniBand by itself; Slingshot only through a plugin.
    if slingshot and not _has_plugin(files, environ):
        text = (
            f"Slingshot {', '.join(slingshot)}, and no libnccl-net*.so is found: NCCL would use TCP over it"
        )
        remedy = "Load the site's aws-ofi-nccl, and put its folder into LD_LIBRARY_PATH."
        return [sheet.warning(text, remedy)]
    if ports and not active and not slingshot:
        text = f"{counted(len(ports), 'InfiniBand port')}, and none is active"
        remedy = "Check cables and the subnet manager (`ibstat`): NCCL falls back to TCP between nodes."
        return [sheet.warning(text, remedy)]
    words = active[:4] + (["…"] if len(active) > 4 else [])
    words += [f"Slingshot {', '.join(slingshot)}"] if slingshot else []
    return [sheet.ok("; ".join(words) or "no InfiniBand or Slingshot: nodes would use TCP")]


def _has_plugin(files: HostFiles, environ: Mapping[str, str]) -> bool:
    folders = [folder.strip("/") for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return any(
        name.startswith("libnccl-net") and ".so" in name
        for folder in dict.fromkeys([*folders, *_PLUGIN_FOLDERS])
        for name in files.names(folder)
    )
