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

from pytest_accel.doctor.findings import Finding, Sheet
from pytest_accel.platforms import host
from pytest_accel.platforms.environment import container
from pytest_accel.platforms.machine import find_cpu
from pytest_accel.stats.quantities import counted, gibibytes, percent
from pytest_accel.storage.files import nearest_folder

CPU, MEMORY, LOAD, DISK, SOFTWARE, NETWORK = (
    Sheet(group) for group in ("cpu", "memory", "load", "disk", "software", "network")
)
_CPUS = "sys/devices/system/cpu"

LITTLE_MEMORY_BYTES = 2 << 30  # torch with CUDA and a small model take about that much of the host
FULL_BYTES = 100 << 20  # a run, its JSON and its report take a few MiB; below this, writing fails soon
LITTLE_DISK_BYTES = 2 << 30  # compiled kernels and a checkpoint take some GiB
# Each batch of a loader's worker is stored there: 256 images of 224 px in float32 are 150 MiB.
LITTLE_SHARED_BYTES = 1 << 30

OBSERVED_S = 0.25  # 25 ticks of each CPU
BUSY = 0.10  # of the CPUs
TAKEN = 0.5  # of the CPUs: no measurement that involves the host is possible
STOLEN = 0.02


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
    threads = max(1, int(quota))
    remedy = (
        f"Threads for all visible CPUs would stall: set OMP_NUM_THREADS={threads} and at most {threads} loader "
        "workers, or raise the limit (Kubernetes: limits.cpu; docker: --cpus)."
    )
    return CPU("quota").warning(text, remedy)


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
    if free < LITTLE_MEMORY_BYTES:
        remedy = "A run may be killed or swap: end other processes, or request more memory."
        return MEMORY(subject).warning(text, remedy)
    return MEMORY(subject).ok(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    purpose: str
    path: Path
    written: bool = True  # whether benchmarks write there
    little_bytes: int = LITTLE_DISK_BYTES
    remedy: str = "Free some space, or name another folder."


def folders(
    files: host.HostFiles, environ: Mapping[str, str], *, data: Path | None, baselines: Path | None
) -> list[Folder]:
    temporary = Path(environ.get("TMPDIR") or "/tmp")  # noqa: S108 -- torch stores compiled kernels there
    shared = Folder(
        purpose="shared memory",
        path=files.root / "dev/shm",
        little_bytes=LITTLE_SHARED_BYTES,
        remedy="Loader workers die with a bus error when it is full: start the container with --shm-size=8g or --ipc=host.",
    )
    return [
        *([Folder(purpose="data", path=data, written=False)] if data else []),
        *([Folder(purpose="baselines", path=baselines)] if baselines else []),
        Folder(purpose="temporary", path=temporary),
        *([shared] if shared.path.is_dir() else []),
    ]


def examine_folder(folder: Folder) -> list[Finding]:
    """Check free space and permissions; a dead file server blocks this call."""
    present, sheet = nearest_folder(folder.path), DISK(folder.purpose)
    if present != folder.path and not folder.written:
        remedy = "Mount it, or name the folder that holds the data sets."
        return [sheet.warning(f"{folder.path} does not exist", remedy)]
    try:
        state = os.statvfs(present)
    except OSError as error:
        text = f"{folder.path}: {(error.strerror or str(error)).lower()}"
        return [sheet.problem(text, "Mount it, or name another folder.")]
    free = state.f_bavail * state.f_frsize
    text = f"{gibibytes(free)} free at {folder.path}"
    text += "" if present == folder.path else " (does not exist yet)"
    if folder.written and (free < FULL_BYTES or (state.f_files > 0 and state.f_favail == 0)):
        what = "full" if free < FULL_BYTES else "no file can be added (no inode is left)"
        return [sheet.problem(f"{text}: {what}", folder.remedy)]
    if folder.written and not os.access(present, os.W_OK):
        remedy = "Judging works, recording does not: change its owner or its mount, or name another folder."
        return [sheet.warning(f"{text}; it cannot be written to", remedy)]
    if folder.written and free < folder.little_bytes:
        return [sheet.warning(text, folder.remedy)]
    return [sheet.ok(text)]


def examine_load(
    files: host.HostFiles, cpus: frozenset[int], pause: Callable[[float], None]
) -> list[Finding]:
    """Observe the CPUs for a moment in which this process is idle."""
    before = files.text("proc/stat")
    pause(OBSERVED_S)
    shares = host.cpu_shares(before, files.text("proc/stat"), cpus)
    if shares is None:
        return [LOAD("other work").unknown("/proc/stat counts no time")]
    busy, stolen = shares
    text = f"{percent(busy, 0)} of these CPUs busy with other work"
    remedy = "End it or wait (`top`): a run beside other work is noisier, and reports how busy the host was."
    sheet = LOAD("other work")
    report = sheet.problem if busy >= TAKEN else sheet.warning
    findings = [report(text, remedy) if busy >= BUSY else sheet.ok(text)]
    if stolen >= STOLEN:
        text = f"{percent(stolen, 0)} of these CPUs went to other virtual machines"
        remedy = "Request dedicated CPUs, or measure when the host is quiet."
        findings.append(LOAD("stolen time").warning(text, remedy))
    return findings


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


def examine_software(
    files: host.HostFiles, environ: Mapping[str, str], *, nvidia: int, amd: int, cuda: tuple[int, int] | None
) -> list[Finding]:
    """Check torch's build for the GPUs (`nvidia` and `amd` are their numbers, `cuda` the driver's newest)."""
    facts = container(files, environ)
    names = ("image_name", "container_image", "container_name", "nvidia_container")
    named = [facts["container_runtime"]] if "container_runtime" in facts else []
    named += [facts[name] for name in names if name in facts][:1]
    slowing = [name for name in _SLOWING if environ.get(name, "").lower() not in _OFF]
    words = [f"{name} is set: {_SLOWING[name]}" for name in slowing]
    if environ.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE"):
        slowing.append("NCCL_DEBUG")
        words.append("NCCL_DEBUG is set: NCCL prints while it measures")
    variables = SOFTWARE("variables").ok("none that slows every step")
    if slowing:
        variables = SOFTWARE("variables").warning("; ".join(words), f"unset {' '.join(slowing)}")
    container_finding = SOFTWARE("container").ok(", ".join(named) or "none found")
    return [judge_torch(installed_torch(), nvidia=nvidia, amd=amd, cuda=cuda), variables, container_finding]


def installed_torch() -> TorchBuild | None:
    """Return torch's build; PyPI's wheels have no +cu128 in their metadata, but torch/version.py has it."""
    try:
        found = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return None
    version = found.version or "version unknown"
    text, _ = host.read_file(Path(str(found.locate_file("torch/version.py"))))
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
