"""Causes that are provoked on a real GPU: each loss fails, and its first cause is the one that was provoked."""

import contextlib
import math
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pytest_accel.stats.causes import lost
from pytest_accel.storage.results import read_results
from tests.support.processes import FOREIGN_LOAD, working_beside

SUITE = '''
import os, time
import pytest, torch
from torch.nn.attention import SDPBackend, sdpa_kernel

pytestmark = pytest.mark.{platform}
PROVOKED = os.environ.get("PROVOKED", "")


def learning(forward):
    def step():
        forward().float().sum().backward()

    return step


def test_convolutions(accel):
    as_stored = torch.contiguous_format if PROVOKED == "contiguous" else torch.channels_last
    layers = []
    for _ in range(3):
        layers += [torch.nn.Conv2d(128, 128, 3, padding=1), torch.nn.BatchNorm2d(128), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers).to(accel.device, torch.bfloat16, memory_format=as_stored)
    x = torch.randn(64, 128, 56, 56, device=accel.device, dtype=torch.bfloat16).to(memory_format=as_stored)
    accel.measure(learning(lambda: model(x)), work=64, unit="images")


def test_attention(accel):
    q = torch.randn(4, 16, 1024, 64, device=accel.device, dtype=torch.bfloat16, requires_grad=True)
    backend = SDPBackend.MATH if PROVOKED == "math" else SDPBackend.FLASH_ATTENTION

    def step():
        with sdpa_kernel(backend):
            torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()

    accel.measure(step, work=4, unit="sequences")


def test_product(accel):
    """Multiply in TF32 and in bf16; PROVOKED=hot: numbers that are not zero draw more power."""
    make = torch.randn if PROVOKED == "hot" else torch.zeros
    a = make(4096, 4096, device=accel.device)
    b = make(8192, 8192, device=accel.device, dtype=torch.bfloat16)
    accel.measure(lambda: (a @ a, b @ b, b @ b), work=3, unit="products")


def test_compiled(accel):
    def scaled(x):
        if PROVOKED == "breaks":
            torch._dynamo.graph_break()
        return 1.1 * x + 1

    def chain(x):
        return scaled(scaled(scaled(scaled(scaled(scaled(x))))))

    compiled = torch.compile(chain)
    x = torch.randn(16384, 4096, device=accel.device)
    accel.measure(lambda: compiled(x), work=1, unit="arrays")


def test_queue(accel):
    """Launch long before the device computes."""
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(40)])
    model.to(accel.device, torch.bfloat16)
    x = torch.randn(8192, 2048, device=accel.device, dtype=torch.bfloat16)

    def forward():
        y = x
        for layer in model:
            y = layer(y)
            if PROVOKED == "item":
                y[0, 0].item()
        if PROVOKED == "sleep":
            time.sleep(0.02)
        return y

    accel.measure(learning(forward), work=1, unit="batches")


def test_launches(accel):
    """Launch kernels that take less time than launching them."""
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(100)]).to(accel.device)
    x = torch.randn(64, 64, device=accel.device)
    accel.measure(learning(lambda: model(x)), work=1, unit="batches")


def test_loader(train):
    """Read batches in 0.1 s each; as many workers as there are CPUs are faster than the step."""
    from pytest_accel.workloads import input_pipeline
    from pytest_accel.workloads.data.loader import ArrayImages

    read = ArrayImages.__getitem__

    def slowly(self, wanted):
        time.sleep(0.6 if PROVOKED == "disk" else 0.1)
        return read(self, wanted)

    ArrayImages.__getitem__ = slowly
    if PROVOKED == "workers":
        input_pipeline.spare_cpus = lambda: 2
    train("resnet18", data="imagenet", source="loader", batch_size=128, precision="bf16", compile=None)
'''
CONFTEST = """
import os
import torch

torch.backends.cudnn.benchmark = True
torch.set_float32_matmul_precision("highest" if os.environ.get("PROVOKED") == "tf32" else "high")
torch.backends.cudnn.enabled = os.environ.get("PROVOKED") != "cudnn"
"""
# Of control groups version 2 and 1, for 0.6 CPUs
QUOTAS = (("/sys/fs/cgroup", "cpu.max", "60000 100000"), ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "60000"))
BUSY = "print('working', flush=True)\nwhile True: pass"


@dataclass(frozen=True, kw_only=True)
class Case:
    benchmark: str
    expected: str  # pattern of what its first cause says
    provoked: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    prefix: str = ""  # of the command
    beside: tuple[str, int] | None = None  # a program, and how many of it run
    outcome: str = "regressed"


CASES = {
    "cuDNN off": Case(benchmark="convolutions", provoked="cudnn", expected="cuDNN enabled"),
    "channels-last lost": Case(
        benchmark="convolutions", provoked="contiguous", expected="^(convolution|batch norm)"
    ),
    "attention by math": Case(benchmark="attention", provoked="math", expected="^attention"),
    "TF32 off": Case(benchmark="product", provoked="tf32", expected="matmul"),
    "power limit": Case(benchmark="product", provoked="hot", expected="^SM clock"),
    "TORCHDYNAMO_DISABLE": Case(
        benchmark="compiled", variables={"TORCHDYNAMO_DISABLE": "1"}, expected="TORCHDYNAMO_DISABLE"
    ),
    "graph breaks": Case(benchmark="compiled", provoked="breaks", expected="graph breaks"),
    "item()": Case(benchmark="queue", provoked="item", expected="the host|without a kernel"),
    "sleep": Case(benchmark="queue", provoked="sleep", expected="the host|without a kernel"),
    "CUDA_LAUNCH_BLOCKING": Case(
        benchmark="launches", variables={"CUDA_LAUNCH_BLOCKING": "1"}, expected="CUDA_LAUNCH_BLOCKING"
    ),
    "busy host": Case(benchmark="launches", beside=(BUSY, 64), expected="waiting for a CPU|other processes"),
    "foreign load": Case(benchmark="product", beside=(FOREIGN_LOAD, 1), expected="pid", outcome="invalid"),
    "slow disk": Case(benchmark="loader", provoked="disk", expected="^(the loader|data loader)"),
    "fewer workers": Case(benchmark="loader", provoked="workers", expected="^(the loader|data loader)"),
    "one CPU": Case(benchmark="loader", prefix="taskset -c 0", expected="the loader|waiting for a CPU"),
    "CPU quota": Case(benchmark="launches", prefix="QUOTA", expected="waiting for a CPU"),
}


@dataclass(frozen=True)
class Project:
    root: Path
    platform: str
    recorded: set[str] = field(default_factory=set)

    def record(self, benchmark):
        """Store two runs of a benchmark, once."""
        if benchmark not in self.recorded:
            done, _ = self.measure(f"-k=test_{benchmark}", "--accel-record=2")
            assert done.returncode == 0, done.stdout
            self.recorded.add(benchmark)

    def judge(self, case):
        command = (f"-k=test_{case.benchmark}", "--accel-tolerance=5%", "--accel-repeats=2")
        return self.measure(*command, prefix=case.prefix, PROVOKED=case.provoked, **case.variables)

    def measure(self, *arguments, prefix="", **variables):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", self.platform]
        command += ["--accel-budget=1s", "--accel-json=found.json", *arguments]
        done = subprocess.run(
            ["sh", "-c", f'{prefix} "$@"', "sh", *command],
            cwd=self.root,
            env={**os.environ, "PYTEST_ACCEL_LOCKS": str(self.root / "locks"), **variables},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return done, read_results(self.root / "found.json").results


@pytest.fixture(scope="module")
def project(platform):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "test_bench.py").write_text(SUITE.replace("{platform}", platform))
        (root / "conftest.py").write_text(CONFTEST)
        yield Project(root, platform)


def said(done):
    """Return what is printed of a result, for the table of docs/guide/causes.md."""
    lines = done.stdout.splitlines()
    first = next((at for at, line in enumerate(lines) if re.match(r"[A-Z][A-Z-]+ +test_", line)), None)
    return "\n".join(lines[-30:] if first is None else lines[first : first + 9])


def limited_group():
    for root, name, quota in QUOTAS:
        group = Path(root, "pytest-accel-test")
        with contextlib.suppress(OSError):
            group.mkdir(exist_ok=True)
            if (group / name).exists():  # not where version 1 is mounted below a tmpfs
                (group / name).write_text(quota)
                return group
    return pytest.skip("no control group with a CPU quota can be made here")


@pytest.mark.parametrize("name", CASES)
def test_provoked_cause_is_the_first(project, name):
    case = CASES[name]
    project.record(case.benchmark)
    if case.prefix == "QUOTA":
        case = replace(case, prefix=f"echo $$ > {limited_group()}/cgroup.procs && exec")
    with working_beside(*case.beside) if case.beside else contextlib.nullcontext():
        done, (result,) = project.judge(case)
    sys.stdout.write(f"\n--- {name}: {case.benchmark}\n{said(done)}\n")
    expected = {case.outcome, "invalid"} if case.beside else {case.outcome}
    for cause in result.causes:
        sys.stdout.write(f"{cause}\n")
    assert result.status.value in expected, done.stdout
    if result.status.value != "regressed":
        assert re.search(case.expected, done.stdout), done.stdout
        return
    assert result.causes, done.stdout
    assert re.search(case.expected, result.causes[0].text), done.stdout
    named = math.fsum(each.explained or 0 for each in result.causes if re.search(case.expected, each.text))
    assert 0.75 <= named / lost(result.verdict) <= 1.25


def test_equal_sessions_name_nothing(project):
    project.record("product")
    done, found = project.measure(f"-k={' or '.join(sorted(project.recorded))}", "--accel-tolerance=5%")
    sys.stdout.write(done.stdout)
    assert {result.status.value for result in found} <= {"ok", "improved", "inconclusive"}
    assert not [result.causes for result in found if result.causes]
