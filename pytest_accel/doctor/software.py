"""Whether the software here can use the devices here; torch is never imported, its files are read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_accel.doctor.findings import Sheet
from pytest_accel.platforms.environment import container
from pytest_accel.platforms.host import Files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_accel.doctor.finding import Finding

SHEET = Sheet(group="software")
_OFF = frozenset({"", "0", "n", "no", "false"})
# Set to find a fault once and left behind; each makes every step slower.
_SLOWING = {
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for",
    "HIP_LAUNCH_BLOCKING": "every kernel is waited for",
    "AMD_SERIALIZE_KERNEL": "every kernel is waited for",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is a call to the driver",
    "PYTHONDEVMODE": "Python checks itself",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """The installed torch, by its files: `kind` is cuda, rocm, cpu, or empty where they do not say."""

    version: str
    kind: str = ""
    cuda: tuple[int, int] | None = None


def examine(
    files: Files,
    environ: Mapping[str, str],
    *,
    nvidia: int,
    amd: int,
    cuda: tuple[int, int] | None,
    torch: Torch | None,
) -> list[Finding]:
    """`nvidia` and `amd` are numbers of GPUs, `cuda` the newest that the driver can run."""
    return [
        _torch(torch, nvidia=nvidia, amd=amd, cuda=cuda),
        _variables(environ),
        _container(files, environ),
    ]


def installed_torch(
    distribution: Callable[[str], metadata.Distribution] = metadata.distribution,
) -> Torch | None:
    """PyPI's wheels have no +cu128 in the version of their metadata; torch/version.py knows."""
    try:
        found = distribution("torch")
        version = found.version or "version not told"
        place = Path(str(found.locate_file("torch/version.py")))
    except metadata.PackageNotFoundError:
        return None
    text = Files(root=place.parent).text(place.name)
    local = version.partition("+")[2]
    told = dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *'([^'\n]*)'", text, re.MULTILINE))
    if told.get("hip") or local.startswith("rocm"):
        return Torch(version=version, kind="rocm")
    number = re.match(r"(\d+)\.(\d+)", told.get("cuda", "")) or re.match(r"cu(\d+)(\d)$", local)
    if number:
        return Torch(version=version, kind="cuda", cuda=(int(number[1]), int(number[2])))
    return Torch(version=version, kind="cpu" if text or local == "cpu" else "")


def _torch(torch: Torch | None, *, nvidia: int, amd: int, cuda: tuple[int, int] | None) -> Finding:
    if torch is None:
        return SHEET.warning(
            "torch",
            "not installed: only benchmarks of your own steps can run",
            "pip install 'pytest-accel[suites]'",
        )
    built = {"cuda": "for CUDA", "rocm": "for ROCm", "cpu": "for the CPU only"}.get(torch.kind, "")
    version = f" {torch.cuda[0]}.{torch.cuda[1]}" if torch.cuda else ""
    text = f"{torch.version}, built {built}{version}" if built else f"{torch.version}, build not told"
    needed = {"CUDA": "cuda"} if nvidia else {"ROCm": "rocm"} if amd else {}
    for name, kind in needed.items():
        if torch.kind and torch.kind != kind:
            return SHEET.problem(
                "torch",
                f"{text}: it cannot use the GPU that is here",
                f"Install a build of torch for {name} (pytorch.org, 'Get started').",
            )
    if torch.cuda and cuda and torch.cuda[0] > cuda[0]:
        return SHEET.problem(
            "torch",
            f"{text}; the driver runs CUDA {cuda[0]}.{cuda[1]} at most",
            f"Upgrade the driver, or install a build for CUDA {cuda[0]} or older.",
        )
    return SHEET.ok("torch", text)


def _variables(environ: Mapping[str, str]) -> Finding:
    slowing = [name for name in _SLOWING if environ.get(name, "").lower() not in _OFF]
    if slowing:
        words = "; ".join(f"{name} is set: {_SLOWING[name]}" for name in slowing)
        return SHEET.warning("variables", words, f"unset {' '.join(slowing)}")
    return SHEET.ok("variables", "none that slows every step")


def _container(files: Files, environ: Mapping[str, str]) -> Finding:
    told = container(files, environ)
    runtime = told.get("container_runtime", "")
    fields = ("image_name", "container_image", "container_name", "nvidia_container")
    named = next((told[field] for field in fields if field in told), "")
    if not runtime and not named:
        return SHEET.ok("container", "none found")
    return SHEET.ok("container", f"{runtime or 'image'}{f', {named}' if named else ''}")
