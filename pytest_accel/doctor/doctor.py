"""Examination of this machine: every check under a time limit, without importing torch."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from pytest_accel.doctor import gpus, host
from pytest_accel.doctor.findings import DEVICES, Finding, Sheet
from pytest_accel.platforms.host import HOST, HostFiles, allowed_cpus
from pytest_accel.platforms.machine import find_amd, find_ipus
from pytest_accel.stats.quantities import gibibytes

T = TypeVar("T")

# Without persistence mode the driver initializes every GPU when it is queried: seconds for each of eight.
DEVICES_LIMIT_S = 30.0
FILES_LIMIT_S = 5.0


def examine(
    environ: Mapping[str, str] = os.environ,
    *,
    data: Path | None = None,
    baselines: Path | None = None,
    files: HostFiles = HOST,
    pause: Callable[[float], None] = time.sleep,
) -> tuple[Finding, ...]:
    """Return all findings in the order of the screen.

    `data` and `baselines` are folders that benchmarks use; `pause` sleeps while the load is observed.
    """
    cpus = allowed_cpus()
    folders = host.folders(files, environ, data=data, baselines=baselines)
    # All begin at once, so that checks that hang cost their limit once.
    nvidia = Check(DEVICES, "NVIDIA's driver", partial(gpus.examine, files, environ, cpus))
    others = Check(DEVICES, "AMD's or Graphcore's driver", partial(_other_devices, files, environ))
    checks = [
        Check(host.CPU, "/sys", partial(host.examine_cpus, files, cpus)),
        Check(host.MEMORY, "/proc", partial(host.examine_memory, files)),
        Check(host.NETWORK, "a folder of LD_LIBRARY_PATH", partial(host.examine_network, files, environ)),
        *(Check(host.DISK, str(each[1]), partial(host.examine_folder, *each)) for each in folders.items()),
    ]
    (listed_gpus, count, cuda), found = nvidia.wait(DEVICES_LIMIT_S, ([], 0, None))
    (amd_gpus, listed), late = others.wait(DEVICES_LIMIT_S, (0, []))
    found += [*listed_gpus, *late, *listed]
    if not found:
        found = [DEVICES("device").ok("none: benchmarks of the platform cpu can run, others are skipped")]
    installed = partial(host.examine_software, environ, nvidia=count, amd=amd_gpus, cuda=cuda)
    checks.insert(0, Check(host.SOFTWARE, "the installed packages", installed))
    for check in checks:
        checked, late = check.wait(FILES_LIMIT_S, [])
        found += [*late, *checked]
    # Last, after our own threads have ended, so that it observes other processes only.
    load = Check(host.LOAD, "/proc", partial(host.examine_load, files, cpus, pause))
    observed, late = load.wait(FILES_LIMIT_S, [])
    return (*found, *late, *observed)


class Check(Generic[T]):
    """A call in a daemon thread, begun at once: a lost GPU or a dead file server may block it forever."""

    def __init__(self, sheet: Sheet, what: str, call: Callable[[], T]) -> None:
        self._sheet, self._what = sheet, what  # what does not answer, if it hangs
        self._started_s = time.monotonic()
        self._answer: Future[T] = Future()
        threading.Thread(target=self._run, args=(call,), daemon=True).start()

    def wait(self, limit_s: float, instead: T) -> tuple[T, list[Finding]]:
        """Return the result; `instead` and a finding if the call raises or takes longer than that since its start."""
        try:
            return self._answer.result(max(0.0, self._started_s + limit_s - time.monotonic())), []
        except TimeoutError:
            text = f"{self._what} did not answer within {limit_s:g} s"
            remedy = (
                "Benchmarks would hang there as well: `dmesg` says why a driver or a file server is stuck."
            )
            return instead, [self._sheet("hangs").problem(text, remedy)]
        except Exception as error:  # noqa: BLE001 -- one broken check must not cost the others
            text = f"this check failed: {type(error).__name__}: {error}"
            remedy = "Please report it, with this line and `--json`."
            return instead, [self._sheet("doctor").warning(text, remedy)]

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self._answer.set_result(call())
        except Exception as error:  # noqa: BLE001 -- raised again by `wait`
            self._answer.set_exception(error)


def _other_devices(files: HostFiles, environ: Mapping[str, str]) -> tuple[int, list[Finding]]:
    """Return the number of AMD GPUs, and findings on all devices of other vendors than NVIDIA."""
    cards, problems = find_amd(environ, files)
    ipus, ipu_problems = find_ipus()
    findings = []
    for device in (*cards, *ipus):
        memory = "" if device.memory_bytes is None else f", {gibibytes(device.memory_bytes)}"
        sheet = Sheet(DEVICES.group, of=f"{device.vendor} {device.index}")
        findings.append(sheet("device").ok(f"{device.name}{memory} (its sensors are not checked)"))
    findings += [
        DEVICES("visible").warning(problem, "Check the driver and *_VISIBLE_DEVICES.")
        for problem in (*problems, *ipu_problems)
    ]
    return len(cards), findings
