"""Energy, clocks, throttling and locks of a GPU, read from a fake NVML; steps run on the CPU."""

import fcntl
import json
import sys

import pytest

from tests.plugin.conftest import PLUGINS, QUICK
from tests.support.fake_nvml import COMPUTED_HERE, FakeGpu
from tests.support.processes import finished

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
def measured(pytester, fake_nvml, tmp_path):
    """Run the suite on a machine with this GPU; its result, and what its JSON says of the benchmark."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_suite=SUITE)
    locks = tmp_path / "locks"

    def run(gpu, *arguments, worker=False):
        environ = fake_nvml.environment(
            [gpu], PYTEST_ACCEL_LOCKS=str(locks), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"
        )
        command = [sys.executable, "-m", "pytest", *PLUGINS, *QUICK, "--accel-json=a.json", *arguments]
        done = finished(*command, *([] if worker else ["--accel-in-process"]), cwd=pytester.path, env=environ)
        content = json.loads((pytester.path / "a.json").read_text())
        return done, content["results"][0]

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


def test_energy_counter_that_samples_contradict_is_not_used(measured):
    gpu = FakeGpu(uuid=UUID, energy_mj="1000000|21000000", power_instant_mw=350_000)
    done, found = measured(gpu, "--accel-budget=400ms")
    metrics = found["runs"][0]["metrics"]
    assert metrics["power_mean_w"] == pytest.approx(350.0)
    assert metrics["energy_per_step_j"] == metrics["energy_sampled_per_step_j"], done.stdout


def test_gpu_that_another_session_holds_is_not_measured(measured):
    measured.locks.mkdir(mode=0o1777)
    with (measured.locks / f"{UUID}.lock").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        file.write("pid 4711 on node7 (ana, pytest nightly, since 2026-11-18 02:00)")
        file.flush()
        done, found = measured(FakeGpu(uuid=UUID), "-oaccel_lock=fail", worker=True)
    assert found["status"] == "failed"
    assert "GPU-8f3aab12 is held by pid 4711" in done.stdout
    assert "ana, pytest nightly" in done.stdout
