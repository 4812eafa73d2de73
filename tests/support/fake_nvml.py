"""A driver without a GPU: a libnvidia-ml.so.1 in C that answers the real pynvml from a description.

    pytest_plugins = ("tests.support.fake_nvml",)

    def test_something(fake_nvml):
        environment = fake_nvml.environment([FakeGpu(name="NVIDIA H200")])
        subprocess.run([sys.executable, "-c", "..."], env=environment)

The library is found through LD_LIBRARY_PATH, which a running process reads no more: use a subprocess
(`fake_nvml.run` is one). A field that is None answers "not supported", as NVML does.

PYTEST_DONT_REWRITE: tests import the values before they name the module as a plugin.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from tests.support.processes import inherited

SOURCE = Path(__file__).with_name("fake_nvml.c")
MIB = 1 << 20

# For a conftest.py: the GPU is the driver's, and what it would compute is computed here.
COMPUTED_HERE = """
from pytest_accel.measure.device import CpuDevice
from pytest_accel.session import device
from pytest_accel.session.selection import SELECTION


def open_device(item, settings):
    selection = item.config.stash[SELECTION]
    platform = selection.choose(item)
    return platform, CpuDevice(threads=1), device.hardware_of(selection.machine, platform, 0)


device.open_device = open_device
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeGpu:
    """A GPU and its settings; None where the device does not support the question.

    A number may be a text of several, "345|1980|lost": answers call by call, the last one for good. "clock*300" is one that grows
    by so much a second.
    """

    name: str = "NVIDIA H200"
    uuid: str = "GPU-00000000-0000-0000-0000-000000000000"
    memory_mib: int | None = 143771
    memory_used_mib: int = 0
    power_limit_mw: int | None = 700_000
    power_limit_default_mw: int | None = 700_000
    power_mw: int | None = 75_000
    power_instant_mw: int | str | None = None  # NVML_FI_DEV_POWER_INSTANT
    energy_mj: int | str | None = 1_000_000
    clock_sm_mhz: int | None = 345
    clock_mem_mhz: int | None = 3201
    clock_sm_max_mhz: int | None = 1980
    clock_mem_max_mhz: int | None = 3201
    clock_event_reasons: int | None = 1  # idle
    ecc: int | None = 1
    persistence: int | None = 1
    mig: int | None = 0
    temperature_c: int | None = 30
    utilization: int | None = 0
    pcie_generation: int | None = 5
    pcie_width: int | None = 16
    pci_bus_id: str | None = None  # as NVML spells it: 00000000:17:00.0
    ecc_uncorrected: int | None = 0  # since the driver was loaded
    processes: str | None = ""  # of others, as pid:MiB: "4711:512,4712:0"
    process_utilization: str | None = ""  # as pid:percent, or pid:percent:seconds ago: "4711:38,4712:2:60"
    pcie_generation_max: int | None = None  # None: what it is now
    pcie_width_max: int | None = None
    lost: int = 0  # 1: every question about it fails with "GPU is lost"


@dataclass(frozen=True, slots=True)
class FakeNvml:
    """The built library; `environment` describes a machine to it."""

    directory: Path
    scratch: Path

    def environment(
        self, gpus: Sequence[FakeGpu], *, init_error: int = 0, **variables: str
    ) -> dict[str, str]:
        """Variables for a subprocess that sees these GPUs; `init_error` is what nvmlInit returns."""
        description = self.scratch / f"machine-{len(list(self.scratch.iterdir()))}.txt"
        description.write_text(describe(gpus, init_error))
        environ = inherited("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
        path = os.pathsep.join(filter(None, [str(self.directory), environ.get("LD_LIBRARY_PATH")]))
        return environ | {"LD_LIBRARY_PATH": path, "FAKE_NVML": str(description)} | variables

    def run(self, code: str, gpus: Sequence[FakeGpu], **options: str | int) -> str:
        """What Python code prints on such a machine."""
        environ = self.environment(gpus, **options)  # type: ignore[arg-type]
        result = subprocess.run(
            [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        if result.returncode != 0:
            pytest.fail(result.stderr)
        return result.stdout


def describe(gpus: Sequence[FakeGpu], init_error: int) -> str:
    lines = ["driver=580.65.06", "cuda=13000", f"init_error={init_error}"]
    for gpu in gpus:
        settings = ((each.name, getattr(gpu, each.name)) for each in fields(gpu))
        lines += ["[gpu]", *(f"{name}={'none' if value is None else value}" for name, value in settings)]
    return "\n".join(lines) + "\n"


def build(directory: Path) -> Path:
    """Compile the library into `directory`; a fraction of a second."""
    target = directory / "libnvidia-ml.so.1"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O0", "-Wall", "-Werror", "-o", str(target), str(SOURCE)], check=True
    )
    return target


@pytest.fixture(scope="session")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> FakeNvml:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, to build a fake NVML library")
    directory = tmp_path_factory.mktemp("nvml")
    build(directory)
    return FakeNvml(directory, tmp_path_factory.mktemp("machines"))
