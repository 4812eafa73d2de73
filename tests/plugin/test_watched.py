"""A GPU that is watched while it is measured: the real driver package over a driver without a GPU; steps run on the CPU."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import time

import pytest

from pytest_accel.stats.quantities import parse_seconds
from tests.plugin.conftest import LONG_S, PLUGINS, QUICK
from tests.support.fake_nvml import COMPUTED_HERE, FakeGpu

pytest_plugins = ("tests.support.fake_nvml",)

UUID = "GPU-8f3aab12-0000-0000-0000-000000000001"
HW_THERMAL, POWER_CAP = 0x40, 0x4

CONFTEST = f"""
import pytest_accel.session.repeats
import pytest_accel.session.case
{COMPUTED_HERE}
pytest_accel.session.case.MOST_REPLACED = pytest_accel.session.repeats.MOST_REPLACED = 0
"""
SUITE = """
import pytest


@pytest.mark.h200
def test_step(accel):
    accel.measure(lambda: sum(range(2000)), work=2000, unit="numbers")
"""


@pytest.fixture
def measured(pytester, fake_nvml, tmp_path, request):
    """Run the suite on a machine with this GPU; its result, and what its JSON says of the benchmark."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_suite=SUITE)
    locks = tmp_path / "locks"

    def start(gpu, *arguments):
        environ = fake_nvml.environment(
            [gpu], PYTEST_ACCEL_LOCKS=str(locks), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"
        )
        command = [sys.executable, "-m", "pytest", *PLUGINS, *QUICK, "--accel-json=a.json", *arguments]
        process = subprocess.Popen(
            command,
            cwd=pytester.path,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        request.addfinalizer(process.kill)
        return process

    def run(gpu, *arguments):
        process = start(gpu, *arguments)
        stdout, _ = process.communicate(timeout=LONG_S)
        content = json.loads((pytester.path / "a.json").read_text())
        return subprocess.CompletedProcess(process.args, process.returncode, stdout), content["results"][0]

    run.start = start
    run.locks = locks
    return run


def test_energy_power_and_clocks_are_those_of_the_gpu(measured):
    gpu = FakeGpu(
        uuid=UUID,
        energy_mj="clock*300000",
        power_instant_mw=350_000,
        clock_sm_mhz=1755,
        temperature_c=61,
        clock_event_reasons=POWER_CAP,
    )
    done, found = measured(gpu, "--accel-budget=400ms")
    assert found["status"] == "no-baseline", done.stdout
    metrics = found["runs"][0]["metrics"]
    assert metrics["power_mean_w"] == pytest.approx(300.0, rel=0.1)  # of the counter, and not of the samples
    steps = sum(len(each["rounds_s"]) * each["steps_per_round"] for each in found["runs"])
    assert metrics["energy_j"] == pytest.approx(metrics["energy_per_step_j"] * steps, rel=0.01)
    assert metrics["power_peak_w"] == 350.0
    assert metrics["sm_clock_mhz"] == 1755
    assert metrics["temperature_c"] == 61
    assert metrics["power_capped_share"] == 1.0
    assert metrics["tdp_share"] == pytest.approx(metrics["power_mean_w"] / 700)


def test_a_counter_that_the_samples_do_not_bear_out_is_not_believed(measured):
    gpu = FakeGpu(uuid=UUID, energy_mj="1000000|21000000", power_instant_mw=350_000)
    done, found = measured(gpu, "--accel-budget=400ms")
    metrics = found["runs"][0]["metrics"]
    assert metrics["power_mean_w"] == pytest.approx(350.0)
    assert metrics["energy_per_step_j"] == metrics["energy_sampled_per_step_j"], done.stdout


def test_a_throttled_gpu_is_not_judged(measured):
    done, found = measured(FakeGpu(uuid=UUID, clock_event_reasons=HW_THERMAL | 0x8))
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert found["status"] == "invalid"
    assert found["text"] == "throttled (HW thermal, 100 % of the window)"


@pytest.fixture
def held(measured):
    """The GPU, held by another session until the block ends or it is released."""
    measured.locks.mkdir(mode=0o1777)
    with (measured.locks / f"{UUID}.lock").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        file.write(
            json.dumps({"pid": 4711, "host": "", "user": "ana", "command": "pytest nightly", "since_s": 0})
        )
        file.flush()
        yield file


FRESH = ("--accel-record=1",)  # measures in a process of its own


@pytest.mark.parametrize("arguments", [(), FRESH], ids=["here", "fresh process"])
def test_a_gpu_that_is_held_by_another_session_is_not_measured_on(measured, held, arguments):
    done, found = measured(FakeGpu(uuid=UUID), "-oaccel_lock=fail", *arguments)
    assert found["status"] == "failed"
    assert "GPU-8f3aab12 is held by pid 4711" in done.stdout
    assert "ana, pytest nightly" in done.stdout


@pytest.mark.parametrize("arguments", [(), FRESH], ids=["here", "fresh process"])
def test_a_log_says_for_whom_it_waits_while_it_does(measured, held, arguments):
    waiting = measured.start(FakeGpu(uuid=UUID), "--accel-timeout=60s", *arguments)
    lines = []
    for line in waiting.stdout:
        lines.append(line)
        if "waiting for GPU-8f3aab12: held by pid 4711" in line:
            fcntl.lockf(held, fcntl.LOCK_UN)
    assert waiting.wait(LONG_S) == 0, "".join(lines)
    assert sum("waiting for" in line for line in lines) == 1
    assert any("1 passed" in line for line in lines)


def test_what_it_waited_for_others_is_no_cost_of_a_verdict(measured, held, pytester):
    waiting = measured.start(FakeGpu(uuid=UUID), "--accel-timeout=60s")
    lines = []
    for line in waiting.stdout:
        lines.append(line)
        if "waiting for GPU-8f3aab12" in line:
            time.sleep(3.0)
            fcntl.lockf(held, fcntl.LOCK_UN)
    assert waiting.wait(LONG_S) == 0, "".join(lines)
    (cost_s,) = (
        parse_seconds(line.split(" in ")[1].split(",")[0]) for line in lines if "device-seconds" in line
    )
    session_s = json.loads((pytester.path / "a.json").read_text())["duration_s"]
    assert session_s - cost_s > 2.0  # only the session has the three seconds in it
