"""Cost of the plugin for projects without benchmarks: imports, hardware probes, processes."""

import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "numpy", "scipy", "torchvision", "timm", "transformers", "pynvml", "amdsmi", "rich"}

# Imported from this package before any benchmark is collected, in every project that has the plugin installed.
AT_START = {
    "pytest_accel",
    "pytest_accel.stats",
    "pytest_accel.platforms.catalogue",
    "pytest_accel.stats.quantities",
    "pytest_accel.stats.kernels",
    "pytest_accel.stats.run",
    "pytest_accel.fixtures",
    "pytest_accel.hookspecs",
    "pytest_accel.markers",
    "pytest_accel.options",
    "pytest_accel.platforms",
    "pytest_accel.plugin",
}

# What other plugins start is theirs.
MODULES_AFTER = """
import json, os, sys, traceback, pytest

def watch(event, _):
    if event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"):
        if any("/pytest_accel/" in frame.filename for frame in traceback.extract_stack()):
            os.write(2, f"PROCESS {event}\\n".encode())

sys.addaudithook(watch)
status = int(pytest.main(sys.argv[1:]))
print(json.dumps([status, sorted(sys.modules)]))
"""


def modules_after(bench, *arguments: str) -> tuple[set[str], str]:
    """Return what is imported at the end of a run in a process of its own, and its errors."""
    command = [sys.executable, "-c", MODULES_AFTER, "-p", "benchmark", "-p", "accel", *arguments]
    done = subprocess.run(command, cwd=bench.folder, capture_output=True, text=True, check=True, timeout=120)
    status, modules = json.loads(done.stdout.splitlines()[-1])
    assert status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), done.stdout
    return set(modules), done.stderr


@pytest.mark.parametrize("arguments", [("--help",), ()], ids=["help", "plain tests"])
def test_project_without_benchmarks_imports_only_what_is_listed_and_starts_no_process(bench, arguments):
    bench.pytester.makepyfile("def test_plain(): pass")
    modules, errors = modules_after(bench, *arguments)
    assert not modules & HEAVY
    assert {name for name in modules if name.partition(".")[0] == "pytest_accel"} <= AT_START
    assert "PROCESS" not in errors


def test_torch_free_benchmark_imports_nothing_heavy(bench):
    bench.benchmarks("test_step")
    bench.baseline(test_step=bench.SAME)
    modules, _ = modules_after(bench, "--accel-budget=60ms", "-oaccel_warmup=50ms", bench.TOLERANT)
    assert "pytest_accel.session.session" in modules
    # Finding out whether there is an NVIDIA device takes pynvml, if it is installed.
    assert not modules & (HEAVY - {"pynvml"})
