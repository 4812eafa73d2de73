"""A project that merely has the plugin installed pays next to nothing for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

HEAVY = {"torch", "numpy", "scipy", "torchvision", "timm", "transformers", "pynvml", "amdsmi", "rich"}

# What `pytest` imports of this package before any benchmark is collected. A module that joins it
# costs everybody: think twice, then add it here.
AT_START = {
    "pytest_accel",
    "pytest_accel._version",
    "pytest_accel.stats",
    "pytest_accel.platforms.names",
    "pytest_accel.stats.quantities",
    "pytest_accel.stats.run",
    "pytest_accel.fixtures",
    "pytest_accel.hookspecs",
    "pytest_accel.markers",
    "pytest_accel.options",
    "pytest_accel.platforms",
    "pytest_accel.platforms.catalogue",
    "pytest_accel.plugin",
}

MODULES_AFTER = """
import json, sys, pytest
status = int(pytest.main(sys.argv[1:]))
print(json.dumps([status, sorted(sys.modules)]))
"""


def modules_after(bench, *arguments: str) -> set[str]:
    """What is imported at the end of a run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", MODULES_AFTER, "-p", "benchmark", "-p", "accel", *arguments],
        cwd=bench.pytester.path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    status, modules = json.loads(done.stdout.splitlines()[-1])
    assert status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), done.stdout
    return set(modules)


@pytest.mark.parametrize("arguments", [("--help",), ("--collect-only",), ("--markers",)], ids=" ".join)
def test_starting_imports_nothing_heavy_and_only_what_is_listed(bench, arguments):
    modules = modules_after(bench, *arguments)
    assert not modules & HEAVY
    assert {name for name in modules if name.partition(".")[0] == "pytest_accel"} <= AT_START


def test_torch_free_benchmark_imports_nothing_heavy(bench):
    bench.benchmarks("test_step")
    bench.baseline(test_step=bench.SAME)
    modules = modules_after(bench, "--accel-budget=60ms", "-oaccel_warmup=50ms", bench.TOLERANT)
    assert "pytest_accel.session.session" in modules
    # Finding out whether there is an NVIDIA device takes pynvml, if it is installed.
    assert not modules & (HEAVY - {"pynvml"})


def test_plain_tests_probe_no_hardware(bench):
    bench.pytester.makepyfile("def test_plain(): pass")
    modules = modules_after(bench)
    assert "pytest_accel.platforms.nvidia" not in modules
    assert "pynvml" not in modules


def test_starting_starts_no_process(bench):
    """Not through this plugin; what others do is theirs."""
    bench.path("sitecustomize.py").write_text(
        textwrap.dedent(
            """
            import os, sys, traceback

            def watch(event, _):
                if event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"):
                    if any("/pytest_accel/" in frame.filename for frame in traceback.extract_stack()):
                        os.write(2, f"PROCESS {event}\\n".encode())

            sys.addaudithook(watch)
            """
        )
    )
    environ = {**os.environ, "PYTHONPATH": str(bench.pytester.path)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "benchmark", "-p", "accel", "--collect-only"],
        cwd=bench.pytester.path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stderr
    assert "PROCESS" not in done.stderr


COST = """
import json, sys, time
import importlib

# What pytest imports anyway is paid already.
import pytest, pytest_benchmark.plugin, tomllib, json, tempfile, subprocess, shlex

begin = time.process_time()
plugin = importlib.import_module("pytest_accel.plugin")
imported = time.process_time()


class Spent:
    def __init__(self):
        self.configure_s = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(self, early_config):
        configure, options = plugin.pytest_configure, plugin.pytest_addoption

        def timed(config):
            begin = time.process_time()
            configure(config)
            self.configure_s += time.process_time() - begin

        for impl in early_config.hook.pytest_configure.get_hookimpls():
            if impl.plugin is plugin:
                impl.function = timed
        return (yield)


spent = Spent()
begin_pytest = time.process_time()
pytest.main(["-p", "benchmark", "-p", "accel", "--collect-only", "-q"], plugins=[spent])
whole = time.process_time() - begin_pytest
print(json.dumps({"import_s": imported - begin, "configure_s": spent.configure_s, "rest_s": whole - spent.configure_s}))
"""


def test_cost_of_starting_is_shown(bench, record_property):
    """CPU time of import and configuration; shown, because this machine is shared: `pytest -rP`."""
    command = [sys.executable, "-c", COST]
    costs = []
    for _ in range(3):
        done = subprocess.run(command, cwd=bench.pytester.path, capture_output=True, text=True, check=True)
        costs.append(json.loads(done.stdout.splitlines()[-1]))
    best = min(costs, key=lambda cost: cost["import_s"] + cost["configure_s"])
    ours_s = best["import_s"] + best["configure_s"]
    for name, value in best.items():
        record_property(name, f"{value:.4f}")
    print(  # noqa: T201 - this is what the test is for
        f"pytest-accel: import {1e3 * best['import_s']:.0f} ms, configure {1e3 * best['configure_s']:.0f} ms; "
        f"the rest of an empty session {1e3 * best['rest_s']:.0f} ms ({ours_s / best['rest_s']:.2f} of it)"
    )
    assert best["configure_s"] > 0  # the wrapper really saw it
    assert ours_s < 1.0  # thirty times the aim: only an import of torch would be beyond
