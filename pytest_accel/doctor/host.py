"""Checks of the host: processors, memory, disks, other load, installed software, and the network between GPUs and nodes."""

from __future__ import annotations

import os
import platform
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from pytest_accel.doctor.findings import Finding, Sheet
from pytest_accel.platforms import host
from pytest_accel.platforms.machine import find_cpu
from pytest_accel.stats.quantities import counted, gibibytes, percent
from pytest_accel.storage.files import nearest_folder

CPU, MEMORY, LOAD, DISK, SOFTWARE, NETWORK = (
    Sheet(group) for group in ("cpu", "memory", "load", "disk", "software", "network")
)
_CPUS = "sys/devices/system/cpu"

# torch with CUDA and a small model take about that much memory, compiled kernels and a checkpoint as much of a disk, a loader's
# batches of 256 images as much of the shared memory.
LITTLE_BYTES = 2 << 30
FULL_BYTES = 100 << 20  # a run, its JSON and its report take a few MiB; below this, writing fails soon
OBSERVED_S = 0.25  # 25 ticks of each CPU
BUSY = 0.10  # of the CPUs
TAKEN = 0.5  # of the CPUs: no measurement that involves the host is possible


def examine_cpus(files: host.HostFiles, cpus: frozenset[int]) -> list[Finding]:
    name = find_cpu(files).name
    online = host.parse_list(files.text(f"{_CPUS}/online"))
    rest = f" of the host's {len(online)}" if online - cpus else ""
    text = f"{counted(len(cpus), 'CPU')}{rest} ({host.format_list(cpus)}), {name}"
    return [CPU("CPUs").ok(text), _quota(files, len(cpus)), _governor(files, cpus)]


def _quota(files: host.HostFiles, visible: int) -> Finding:
    quota = host.cpu_quota(files)
    if quota is None:
        return CPU("quota").ok("none: no group limits CPU time")
    text = f"{quota:g} CPUs' worth of time, {visible} visible"
    if quota >= visible:
        return CPU("quota").ok(text)
    return CPU("quota").warning(
        text,
        f"Threads for all visible CPUs would stall: set OMP_NUM_THREADS={max(1, int(quota))} and no more loader "
        "workers, or raise the limit (Kubernetes: limits.cpu; docker: --cpus).",
    )


def _governor(files: host.HostFiles, cpus: frozenset[int]) -> Finding:
    paths = (f"{_CPUS}/cpu{cpu}/cpufreq/scaling_governor" for cpu in sorted(cpus))
    counts = Counter(governor for path in paths if (governor := files.text(path)))
    if not counts:
        return CPU("governor").unknown("no cpufreq here; a virtual machine or its host decides")
    if set(counts) == {"performance"}:
        return CPU("governor").ok("performance")
    words = ", ".join(f"{name} on {count}" for name, count in counts.most_common(3))
    remedy = "`cpupower frequency-set -g performance` as root, on the host."
    return CPU("governor").warning(f"{words}: clocks follow the load, and the first steps are slower", remedy)


def examine_memory(files: host.HostFiles) -> list[Finding]:
    words = (line.split() for line in files.lines("proc/meminfo"))  # MemTotal:  24682740 kB
    kib = {word[0].rstrip(":"): host.whole_number(word[1]) or 0 for word in words if len(word) >= 2}
    total, free = kib.get("MemTotal", 0) * 1024, kib.get("MemAvailable", 0) * 1024
    if not total or not free:
        return [MEMORY("host").unknown("/proc/meminfo has no MemAvailable")]
    findings = [_room("host", f"{gibibytes(free)} free of {gibibytes(total)}", free)]
    group = host.memory_limit(files)
    if group is None or group[0] >= total:
        return [*findings, MEMORY("limit").ok("none: no group limits memory")]
    limit, used = group
    left = max(0, limit - used)
    return [*findings, _room("limit", f"{gibibytes(left)} left of {gibibytes(limit)} for this group", left)]


def _room(subject: str, text: str, free: int) -> Finding:
    if free < LITTLE_BYTES:
        remedy = "A run may be killed or swap: end other processes, or request more memory."
        return MEMORY(subject).warning(text, remedy)
    return MEMORY(subject).ok(text)


def folders(
    files: host.HostFiles, environ: Mapping[str, str], *, data: Path | None, baselines: Path | None
) -> dict[str, Path]:
    """Return the folders that benchmarks use, by their purpose."""
    temporary = Path(environ.get("TMPDIR") or "/tmp")  # noqa: S108 -- torch stores compiled kernels there
    shared = files.root / "dev/shm"
    found = {"data": data, "baselines": baselines, "temporary": temporary}
    found["shared memory"] = shared if shared.is_dir() else None
    return {purpose: path for purpose, path in found.items() if path}


def examine_folder(purpose: str, path: Path) -> list[Finding]:
    """Check free space and permissions; a dead file server blocks this call."""
    present, sheet, is_written = nearest_folder(path), DISK(purpose), purpose != "data"
    if present != path and not is_written:
        return [sheet.warning(f"{path} does not exist", "Mount it, or name the folder of the data sets.")]
    try:
        state = os.statvfs(present)
    except OSError as error:
        text = f"{path}: {(error.strerror or str(error)).lower()}"
        return [sheet.problem(text, "Mount it, or name another folder.")]
    free = state.f_bavail * state.f_frsize
    text = f"{gibibytes(free)} free at {path}" + ("" if present == path else " (does not exist yet)")
    remedy = "Free some space, or name another folder."
    if purpose == "shared memory":
        remedy = "Loader workers die with a bus error when it is full: start the container with --shm-size=8g or --ipc=host."
    if is_written and free < FULL_BYTES:
        return [sheet.problem(f"{text}: full", remedy)]
    if is_written and not os.access(present, os.W_OK):
        remedy = "Judging works, recording does not: change its owner or its mount, or name another folder."
        return [sheet.warning(f"{text}; it cannot be written to", remedy)]
    return [sheet.warning(text, remedy) if is_written and free < LITTLE_BYTES else sheet.ok(text)]


def examine_load(
    files: host.HostFiles, cpus: frozenset[int], pause: Callable[[float], None]
) -> list[Finding]:
    """Observe the CPUs for a moment in which this process is idle."""
    before = files.text("proc/stat")
    pause(OBSERVED_S)
    busy = host.busy_share(before, files.text("proc/stat"), cpus)
    if busy is None:
        return [LOAD("other work").unknown("/proc/stat counts no time")]
    text = f"{percent(busy, 0)} of these CPUs busy with other work"
    remedy = "End it or wait (`top`; `st` is of other virtual machines): a run beside other work is noisier, and reports it."
    sheet = LOAD("other work")
    report = sheet.problem if busy >= TAKEN else sheet.warning
    return [report(text, remedy) if busy >= BUSY else sheet.ok(text)]


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
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """The installed torch, by its files."""

    version: str
    kind: Literal["cuda", "rocm", "cpu", "unknown"]
    cuda: tuple[int, int] | None = None


def examine_software(
    environ: Mapping[str, str], *, nvidia: int, amd: int, cuda: tuple[int, int] | None
) -> list[Finding]:
    """Check torch's build for the GPUs (`nvidia` and `amd` are their numbers, `cuda` the driver's newest)."""
    slowing = [name for name in _SLOWING if environ.get(name, "").lower() not in _OFF]
    variables = SOFTWARE("variables").ok("none that slows every step")
    if slowing:
        words = [f"{name} is set: {_SLOWING[name]}" for name in slowing]
        variables = SOFTWARE("variables").warning("; ".join(words), f"unset {' '.join(slowing)}")
    return [judge_torch(installed_torch(), nvidia=nvidia, amd=amd, cuda=cuda), variables]


def installed_torch() -> TorchBuild | None:
    """Return torch's build; PyPI's wheels have no +cu128 in their metadata, but torch/version.py has it."""
    try:
        found = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return None
    version = found.version or "version unknown"
    text, _ = host.read_file(Path(str(found.locate_file("torch/version.py"))))
    fields = dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *'([^'\n]*)'", text, re.MULTILINE))
    if fields.get("hip"):
        return TorchBuild(version=version, kind="rocm")
    if number := re.match(r"(\d+)\.(\d+)", fields.get("cuda", "")):
        return TorchBuild(version=version, kind="cuda", cuda=(int(number[1]), int(number[2])))
    return TorchBuild(version=version, kind="cpu" if text else "unknown")  # of a source tree


def judge_torch(torch: TorchBuild | None, *, nvidia: int, amd: int, cuda: tuple[int, int] | None) -> Finding:
    if torch is None:
        text = "not installed: only benchmarks of your own steps can run"
        return SOFTWARE("torch").warning(text, "pip install torch torchvision")
    if torch.kind == "unknown":
        return SOFTWARE("torch").ok(f"{torch.version}, build unknown")
    built = {"cuda": "CUDA", "rocm": "ROCm", "cpu": "the CPU only"}[torch.kind]
    version = f" {torch.cuda[0]}.{torch.cuda[1]}" if torch.cuda else ""
    text = f"{torch.version}, built for {built}{version}"
    needed = "CUDA" if nvidia else "ROCm" if amd else built
    if built != needed:
        remedy = f"Install a build of torch for {needed} (pytorch.org, 'Get started')."
        return SOFTWARE("torch").problem(f"{text}: it cannot use the GPU that is here", remedy)
    if torch.cuda and cuda and torch.cuda[0] > cuda[0]:
        remedy = f"Upgrade the driver, or install a build for CUDA {cuda[0]} or older."
        text += f"; the driver runs CUDA {cuda[0]}.{cuda[1]} at most"
        return SOFTWARE("torch").problem(text, remedy)
    return SOFTWARE("torch").ok(text)


def examine_network(files: host.HostFiles, environ: Mapping[str, str]) -> list[Finding]:
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
    paths = [folder.strip("/") for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    libraries = (name for folder in [*paths, *_PLUGIN_FOLDERS] for name in files.names(folder))
    # NCCL uses InfiniBand by itself; Slingshot only through a plugin.
    if slingshot and not any(name.startswith("libnccl-net") and ".so" in name for name in libraries):
        named = ", ".join(slingshot)
        text = f"Slingshot {named}, and no libnccl-net*.so is found: NCCL would use TCP over it"
        remedy = "Load the site's aws-ofi-nccl, and put its folder into LD_LIBRARY_PATH."
        return [sheet.warning(text, remedy)]
    if ports and not active and not slingshot:
        text = f"{counted(len(ports), 'InfiniBand port')}, and none is active"
        remedy = "Check cables and the subnet manager (`ibstat`): NCCL falls back to TCP between nodes."
        return [sheet.warning(text, remedy)]
    words = active[:4] + (["…"] if len(active) > 4 else [])
    words += [f"Slingshot {', '.join(slingshot)}"] if slingshot else []
    return [sheet.ok("; ".join(words) or "no InfiniBand or Slingshot: nodes would use TCP")]
