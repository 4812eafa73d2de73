"""Checks of installed software: torch's build, slowing variables, container, NCCL's network, and the packages of an image."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pytest_accel.doctor.doctor import Finding, Sheet
from pytest_accel.platforms.environment import container
from pytest_accel.platforms.host import HostFiles, read_file
from pytest_accel.stats.quantities import counted

SOFTWARE, NETWORK, PACKAGES = (Sheet(group) for group in ("software", "network", "packages"))
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
        return SOFTWARE("torch").warning(text, "pip install 'pytest-accel[suites]'")
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


# --- an image, where it is built: no GPU is needed --------------------------------------------------

OURS = "pytest-accel"
IMPORT_LIMIT_S = 300.0  # importing torch from a cold disk of a cluster takes a minute

# Distribution: its module, and what does not work without it; empty where nothing would.
_USED = {
    "pytest": ("pytest", ""),
    "pytest-benchmark": ("pytest_benchmark", ""),
    "torch": (
        "torch",
        "train, infer, converge and the suites do not work; accel.measure with steps of your own does",
    ),
    "torchvision": (
        "torchvision",
        "models by a plain name ('resnet50') and JPEGs do not work; timm/..., zoo/... and your own do",
    ),
    "timm": ("timm", "models named timm/... and DINO on Swin-L do not work"),
    "segmentation-models-pytorch": ("segmentation_models_pytorch", "the segmentation suite does not work"),
    "transformers": ("transformers", "the bert suite does not work"),
    "scipy": ("scipy", "DINO cannot be trained: it matches boxes with it"),
    "nvidia-ml-py": (
        "pynvml",
        "no NVIDIA GPU is found, so that its benchmarks are skipped, and no energy is read",
    ),
    "scikit-learn": ("sklearn", "the data set 'digits' cannot be read"),
    "plotly": ("plotly", "--accel-report does not work"),
}


def examine_image(environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Check the packages of an image by their versions and by importing them, each in another process."""
    from packaging.requirements import Requirement  # pytest depends on it

    needed = {each.name: str(each.specifier) for each in map(Requirement, metadata.requires(OURS) or ())}
    torch = installed_torch()
    findings = [_package(name, needed.get(name, ""), torch) for name in _USED]
    findings.append(_plugin(environ))
    if torch is not None:
        findings += [judge_torch(torch, nvidia=0, amd=0, cuda=None), _compiler(environ)]
    return [*findings, slowing_variables(environ)]


def try_import(module: str, *, limit_s: float = IMPORT_LIMIT_S) -> str:
    """Import a module in another process; return the error in one line, empty if there is none."""
    try:
        done = subprocess.run(  # noqa: S603 -- our own program, in our own Python
            [sys.executable, "-c", f"import {module}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {limit_s:g} s"
    if done.returncode < 0:
        return f"signal {-done.returncode} ended the process that imported it"
    lines = done.stderr.decode("utf-8", "replace").splitlines() or [f"exit status {done.returncode}"]
    return lines[-1] if done.returncode else ""


def is_within(version: str, required: str) -> bool:
    """Whether a version meets a requirement; NVIDIA's builds (2.6.0a0+ecf3bae40a.nv25.01) count as their release."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(required).contains(Version(version).base_version)
    except InvalidVersion:
        return True  # a local build; importing it says more


def _package(name: str, required: str, torch: TorchBuild | None) -> Finding:
    module, without = _USED[name]
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        # A torch for CUDA that finds no GPU skips every benchmark.
        is_problem = not without or (name == "nvidia-ml-py" and torch is not None and torch.kind == "cuda")
        report = PACKAGES(name).problem if is_problem else PACKAGES(name).warning
        # torchvision and timm depend on torch: the image's own build must stay.
        pinned = f" 'torch=={torch.version}'" if torch and name in ("torchvision", "timm") else ""
        return report(f"missing{without and f': {without}'}", f"pip install {name}{pinned}")
    if error := try_import(module):
        remedy = f"Repair it{without and f': {without}'}. A library of the base image may be missing, or of another version."
        return PACKAGES(name).problem(f"{version} cannot be imported: {error}", remedy)
    if not is_within(version, required):
        report = PACKAGES(name).warning if without else PACKAGES(name).problem
        return report(f"{version}, and {required} is needed", f"pip install '{name}{required}'")
    return PACKAGES(name).ok(version)


def _plugin(environ: Mapping[str, str]) -> Finding:
    points = metadata.entry_points(group="pytest11")
    if not any(each.value == "pytest_accel.plugin" for each in points):
        text = "pytest does not find it: the package has no entry point here"
        return PACKAGES("plugin").problem(text, f"Install {OURS} again, with pip.")
    if environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        text = "PYTEST_DISABLE_PLUGIN_AUTOLOAD is set: pytest loads it only where it is named"
        return PACKAGES("plugin").warning(text, "Unset it, or run pytest with -p benchmark -p accel.")
    return PACKAGES("plugin").ok(f"{OURS} {metadata.version(OURS)}, found by pytest")


def _compiler(environ: Mapping[str, str]) -> Finding:
    """Check for a C compiler and Python's headers: Triton compiles its launchers with them."""
    candidates = [environ["CC"]] if environ.get("CC") else ["gcc", "cc", "clang"]
    paths = [path for each in candidates if (path := shutil.which(each, path=environ.get("PATH")))]
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    missing = [] if paths else [f"no C compiler ({', '.join(candidates)})"]
    missing += [] if headers.exists() else [f"no {headers}"]
    if missing:
        text = f"{', '.join(missing)}: torch.compile cannot build its kernels"
        remedy = "Install gcc, libc6-dev and Python's headers (python3-dev), or run with --accel-compile=off."
        return SOFTWARE("compiler").warning(text, remedy)
    return SOFTWARE("compiler").ok(f"{paths[0]}, {headers}")
