"""The examination of this machine: every check in its turn, none of which can raise, hang or import torch."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pytest_accel.doctor import cpu, disk, gpus, load, memory, network, nvidia, software
from pytest_accel.doctor.deadline import Pending, begin
from pytest_accel.doctor.finding import to_plain
from pytest_accel.doctor.findings import Sheet
from pytest_accel.platforms import amd, graphcore
from pytest_accel.platforms.host import Files
from pytest_accel.platforms.numa import allowed_cpus
from pytest_accel.stats.quantities import gibibytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_accel.doctor.finding import Finding

__all__ = ["Roots", "examine", "to_plain"]

T = TypeVar("T")

# Without persistence a driver starts every GPU anew when it is asked: seconds for each of a node's eight.
DEVICES_LIMIT_S = 30.0
FILES_LIMIT_S = 5.0
_DEVICES = Sheet(group=gpus.GROUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Where to look: the host's own files, and the folders that benchmarks use; None is not looked at."""

    host: Path = Path("/")
    data: Path | None = None
    baselines: Path | None = None


def examine(
    roots: Roots, environ: Mapping[str, str] = os.environ, *, pause: Callable[[float], None] = time.sleep
) -> tuple[Finding, ...]:
    """All findings, in the order of the screen; `pause` lets time pass while the load is watched."""
    files, cpus = Files(root=roots.host), allowed_cpus()
    folders = _folders(roots, environ)
    # All begin at once, so that those which hang cost their limit once, not one after the other.
    driver = begin(partial(nvidia.examine, files, environ, cpus))
    others = begin(partial(_others, files, environ))
    cores = begin(partial(cpu.examine, files, cpus))
    room = begin(partial(memory.examine, files))
    wires = begin(partial(network.examine, files, environ))
    disks = [begin(partial(disk.examine, folder)) for folder in folders]

    devices, found = _waited(driver, DEVICES_LIMIT_S, _DEVICES, "NVIDIA's driver", nvidia.Devices())
    found += devices.findings
    (amd_gpus, listed), late = _waited(
        others, DEVICES_LIMIT_S, _DEVICES, "AMD's or Graphcore's driver", (0, ())
    )
    found += (*late, *listed)
    if not found:
        found += (_DEVICES.ok("device", "none: benchmarks of the platform cpu can run, others are skipped"),)
    installed = begin(
        lambda: software.examine(
            files,
            environ,
            nvidia=devices.gpus,
            amd=amd_gpus,
            cuda=devices.cuda,
            torch=software.installed_torch(),
        )
    )
    for pending, group, what in (
        (installed, "software", "the installed packages"),
        (cores, "cpu", "/sys"),
        (room, "memory", "/proc"),
        (wires, "network", "a folder of LD_LIBRARY_PATH"),
    ):
        checked, late = _waited(pending, FILES_LIMIT_S, Sheet(group=group), what, [])
        found += (*late, *checked)
    for folder, each in zip(folders, disks, strict=True):
        state, late = _waited(each, FILES_LIMIT_S, Sheet(group=disk.GROUP), str(folder.path), [])
        found += (*late, *state)
    # Last, when our own threads have ended: it watches what others do.
    watched, late = _waited(
        begin(partial(load.examine, files, cpus, pause)), FILES_LIMIT_S, load.SHEET, "/proc", []
    )
    return (*found, *late, *watched)


def _waited(
    pending: Pending[T], limit_s: float, sheet: Sheet, what: str, instead: T
) -> tuple[T, tuple[Finding, ...]]:
    """What a check found; `instead` and a finding that says so where it hangs or breaks."""
    try:
        result = pending.wait(limit_s)
    except Exception as error:  # noqa: BLE001 -- one broken check must not cost the operator the others
        text = f"this check broke: {type(error).__name__}: {error}"
        return instead, (sheet.warning("doctor", text, "Please report it, with this line and `--json`."),)
    if result is None:
        return instead, (
            sheet.problem(
                "hangs",
                f"{what} did not answer within {limit_s:g} s",
                "Benchmarks would hang there as well: `dmesg` says why a driver or a file server is stuck.",
            ),
        )
    return result, ()


def _folders(roots: Roots, environ: Mapping[str, str]) -> list[disk.Folder]:
    temporary = Path(environ.get("TMPDIR") or "/tmp")  # noqa: S108 -- where torch puts compiled kernels
    return [
        *([disk.Folder(purpose="data", path=roots.data, written=False)] if roots.data else []),
        *([disk.Folder(purpose="baselines", path=roots.baselines)] if roots.baselines else []),
        disk.Folder(purpose="temporary", path=temporary),
        *([disk.shared_memory(roots.host / "dev/shm")] if (roots.host / "dev/shm").is_dir() else []),
    ]


def _others(files: Files, environ: Mapping[str, str]) -> tuple[int, tuple[Finding, ...]]:
    """How many GPUs of AMD's there are, and all devices that are not NVIDIA's, by name only."""
    sysfs = files.root / "sys/class"
    cards, said = amd.find(environ, topology=sysfs / "kfd/kfd/topology/nodes", drm=sysfs / "drm")
    ipus, said_too = graphcore.find()
    findings = [
        Sheet(group=gpus.GROUP, of=f"{device.vendor} {device.index}").ok(
            "device",
            f"{device.name}"
            + ("" if device.memory_bytes is None else f", {gibibytes(device.memory_bytes)}")
            + " (its sensors are not looked at)",
        )
        for device in (*cards, *ipus)
    ]
    findings += [
        _DEVICES.warning("visible", problem, "Look at the driver and at *_VISIBLE_DEVICES.")
        for problem in (*said, *said_too)
    ]
    return len(cards), tuple(findings)
