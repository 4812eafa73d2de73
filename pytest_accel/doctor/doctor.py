"""Examination of this machine: every check under a time limit, without importing torch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from pytest_accel.doctor import gpus, host, software
from pytest_accel.doctor.findings import Finding, Pending, Sheet, begin
from pytest_accel.platforms import amd, graphcore
from pytest_accel.platforms.host import HostFiles
from pytest_accel.platforms.numa import allowed_cpus
from pytest_accel.stats.quantities import gibibytes

T = TypeVar("T")

# Without persistence mode the driver initializes every GPU when it is queried: seconds for each of eight.
DEVICES_LIMIT_S = 30.0
FILES_LIMIT_S = 5.0
_DEVICES = Sheet(group=gpus.GROUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """The root of the host's files, and the folders that benchmarks use; None is not checked."""

    host: Path = Path("/")
    data: Path | None = None
    baselines: Path | None = None


def examine(
    roots: Roots, environ: Mapping[str, str] = os.environ, *, pause: Callable[[float], None] = time.sleep
) -> tuple[Finding, ...]:
    """Return all findings in the order of the screen; `pause` sleeps while the load is observed."""
    files, cpus = HostFiles(root=roots.host), allowed_cpus()
    folders = host.folders(roots.host, environ, data=roots.data, baselines=roots.baselines)
    # All begin at once, so that checks that hang cost their limit once.
    driver = begin(partial(gpus.examine, files, environ, cpus))
    others = begin(partial(_other_devices, files, environ))
    checks = [
        ("cpu", "/sys", begin(partial(host.examine_cpus, files, cpus))),
        ("memory", "/proc", begin(partial(host.examine_memory, files))),
        ("network", "a folder of LD_LIBRARY_PATH", begin(partial(software.examine_network, files, environ))),
        *((host.DISK, str(each.path), begin(partial(host.examine_folder, each))) for each in folders),
    ]
    devices, found = _waited(driver, DEVICES_LIMIT_S, _DEVICES, "NVIDIA's driver", gpus.NvidiaState())
    found += devices.findings
    (amd_gpus, listed), late = _waited(
        others, DEVICES_LIMIT_S, _DEVICES, "AMD's or Graphcore's driver", (0, ())
    )
    found += (*late, *listed)
    if not found:
        found += (_DEVICES.ok("device", "none: benchmarks of the platform cpu can run, others are skipped"),)
    installed = partial(
        software.examine, files, environ, nvidia=devices.gpus, amd=amd_gpus, cuda=devices.cuda
    )
    checks.insert(0, ("software", "the installed packages", begin(installed)))
    for group, what, pending in checks:
        checked, late = _waited(pending, FILES_LIMIT_S, Sheet(group=group), what, [])
        found += (*late, *checked)
    # Last, after our own threads have ended, so that it observes other processes only.
    load = begin(partial(host.examine_load, files, cpus, pause))
    observed, late = _waited(load, FILES_LIMIT_S, Sheet(group="load"), "/proc", [])
    return (*found, *late, *observed)


def _waited(
    pending: Pending[T], limit_s: float, sheet: Sheet, what: str, instead: T
) -> tuple[T, tuple[Finding, ...]]:
    """Return the result of a check; `instead` and a finding if it hangs or raises."""
    try:
        result = pending.wait(limit_s)
    except Exception as error:  # noqa: BLE001 -- one broken check must not cost the others
        text = f"this check failed: {type(error).__name__}: {error}"
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


def _other_devices(files: HostFiles, environ: Mapping[str, str]) -> tuple[int, tuple[Finding, ...]]:
    """Return the number of AMD GPUs, and findings on all devices of other vendors than NVIDIA."""
    sysfs = files.root / "sys/class"
    cards, problems = amd.find(environ, topology=sysfs / "kfd/kfd/topology/nodes", drm=sysfs / "drm")
    ipus, ipu_problems = graphcore.find()
    findings = []
    for device in (*cards, *ipus):
        memory = "" if device.memory_bytes is None else f", {gibibytes(device.memory_bytes)}"
        sheet = Sheet(group=gpus.GROUP, of=f"{device.vendor} {device.index}")
        findings.append(sheet.ok("device", f"{device.name}{memory} (its sensors are not checked)"))
    findings += [
        _DEVICES.warning("visible", problem, "Check the driver and *_VISIBLE_DEVICES.")
        for problem in (*problems, *ipu_problems)
    ]
    return len(cards), tuple(findings)
