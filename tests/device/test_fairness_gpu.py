"""Fairness on a real GPU: energy, clocks, MFU, foreign load and the device lock."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.support.processes import FOREIGN_LOAD, working_beside

FLOPS = 2 * 8192**3
SUITE = """
    import pytest
    import torch

    @pytest.mark.{platform}
    def test_product(accel):
        a = torch.randn(8192, 8192, device=accel.device, dtype=torch.bfloat16)
        accel.measure(lambda: a @ a, work=1, unit="products", flops={flops}, precision="bf16")
"""


@pytest.fixture
def suite(pytester, platform, monkeypatch):
    monkeypatch.setenv("PYTEST_ACCEL_LOCKS", str(pytester.path / "locks"))
    pytester.makepyfile(test_bench=SUITE.format(platform=platform, flops=FLOPS))
    return [sys.executable, "-m", "pytest", "-q", "-m", platform, "--accel-json=a.json"]


def run(pytester, command, *arguments):
    done = subprocess.run(
        [*command, *arguments], cwd=pytester.path, capture_output=True, text=True, timeout=300, check=False
    )
    sys.stdout.write(done.stdout + done.stderr)
    return done, json.loads((pytester.path / "a.json").read_text())["results"][0]


def test_energy_counter_agrees_with_sampled_power_and_mfu_is_plausible(pytester, suite):
    done, found = run(pytester, suite, "--accel-budget=5s")
    assert found["status"] == "no-baseline", done.stdout
    metrics = found["runs"][0]["metrics"]
    sys.stdout.write(json.dumps(metrics, indent=1))
    assert metrics["energy_sampled_per_step_j"] == pytest.approx(metrics["energy_per_step_j"], rel=0.05)
    assert 0.3 < metrics["tdp_share"] < 1.1
    assert metrics["power_peak_w"] >= 0.9 * metrics["power_mean_w"]
    assert 300 < metrics["sm_clock_mhz"] < 3000
    assert 20 < metrics["temperature_c"] < 100
    assert 0 <= metrics["power_capped_share"] <= 1
    assert 0.3 < metrics["mfu"] < 1  # an H200 reaches .8


def test_ten_times_the_operations_are_impossible(pytester, suite, platform):
    pytester.makepyfile(test_bench=SUITE.format(platform=platform, flops=10 * FLOPS))
    done, found = run(pytester, suite, "--accel-budget=2s")
    assert found["failed"], done.stdout
    assert "impossible: " in done.stdout


def test_foreign_load_makes_a_run_invalid(pytester, suite):
    with working_beside(FOREIGN_LOAD):
        done, found = run(pytester, suite, "--accel-budget=2s")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert found["status"] == "invalid"
    assert found["text"].startswith("foreign load")


def test_lock_is_held_while_measuring_and_free_after_a_kill(pytester, suite):
    lock = pytester.path / "locks"
    first = subprocess.Popen(
        [*suite[:-1], "--accel-budget=200s"], cwd=pytester.path, stdout=subprocess.DEVNULL
    )
    try:
        while first.poll() is None and not any(
            file.read_text() for file in (lock.iterdir() if lock.exists() else ())
        ):
            time.sleep(0.2)
        refused, found = run(pytester, suite, "-oaccel_lock=fail", "--accel-budget=1s")
        holder = re.search(r"held by pid (\d+)", refused.stdout)
        assert holder, refused.stdout
        assert int(holder[1]) == first.pid
        assert found["status"] == "failed"
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    after, found = run(pytester, suite, "-oaccel_lock=fail", "--accel-budget=1s")
    assert found["status"] == "no-baseline", after.stdout
