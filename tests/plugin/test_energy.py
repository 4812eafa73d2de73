"""Energy from a power source of a conftest, and its gate: every step takes a chosen energy."""

import json

import pytest

ENERGY = "energy_per_step_j"
BASELINE_J = 0.036

# It counts steps, so that the energy of one is exact whatever the time of it.
METER = """
from pytest_accel.stats.energy import Rail

STEPS = []


class Meter:
    name = "step meter"
    problem = ""
    rails = (Rail(name="node0", scope="node", kind="cpu"),)

    def joules(self):
        return {{"node0": len(STEPS) * {step_j}}}

    def watts(self):
        return {{}}

    def close(self):
        pass


def pytest_accel_power_sources(config):
    return [Meter()]
"""
STEP = """
def test_step(accel):
    from conftest import STEPS
    measure(accel, step=lambda: STEPS.append(sum(range(2000))))
"""


@pytest.fixture
def metered(bench):
    """A benchmark on a machine that counts energy: 36 mJ a step in the baseline, and now as much as is said."""

    def write(now_j):
        meter = METER.format(step_j=now_j) if now_j else "STEPS = []\n"
        bench.path("conftest.py").write_text(meter)
        bench.write(STEP)
        bench.baseline(test_step=bench.SAME)
        content = bench.load_baseline()
        for run in content["benchmarks"]["test_suite.py::test_step"]["runs"]:
            run["metrics"][ENERGY] = BASELINE_J
        bench.save_baseline(content)
        return bench

    return write


def metrics_of(bench):
    return bench.accel_info()["run"]["metrics"]


def test_energy_of_a_user_source_is_reported_and_not_gated_by_default(metered):
    bench = metered(BASELINE_J * 1.5)
    bench.run(bench.TOLERANT, "--benchmark-json=out.json").assert_outcomes(passed=1)
    found = metrics_of(bench)
    assert found[ENERGY] == pytest.approx(1.5 * BASELINE_J)
    assert found["energy_j"] > 6 * BASELINE_J
    assert found["power_mean_w"] > 0
    assert "power_peak_w" not in found  # nobody told its power


def test_eight_percent_more_energy_at_equal_speed_is_a_regression(metered):
    bench = metered(BASELINE_J * 1.08)
    result = bench.run(
        bench.TOLERANT,
        "--accel-gate=throughput,energy=5%",
        "--benchmark-json=out.json",
        "--accel-json=a.json",
    )
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [
            r"^REGRESSED  test_step \(cpu\) energy: 8\.0 % more \(at least \d\.\d %; tolerance 5\.0 %\), 2 runs vs 3 ",
            r"^benchmark +verdict .* units/Wh",
            r"^test_step +REGRESSED energy 8\.0 % more ",
        ]
    )
    verdicts = bench.verdicts()
    assert verdicts["throughput"]["outcome"] in {"ok", "improved"}
    assert verdicts[ENERGY]["slowdown"]["point"] == pytest.approx(0.08)
    assert bench.accel_info()["gates"] == {ENERGY: 0.05}


def test_gated_energy_that_was_not_measured_fails_and_keeps_the_run(metered):
    bench = metered(None)
    result = bench.run(bench.TOLERANT, "--accel-gate=throughput,energy", "--accel-json=a.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*energy is gated (from --accel-gate) and was not measured: *"])
    (found,) = json.loads(bench.path("a.json").read_text())["results"]
    assert found["status"] == "failed"
    assert "energy is gated" in found["text"]
    assert len(found["runs"]) == 1


def test_broken_power_source_loses_energy_and_not_the_measurement(metered):
    bench = metered(BASELINE_J)
    conftest = bench.path("conftest.py")
    conftest.write_text(
        conftest.read_text().replace(
            'return {"node0"', "raise OSError('unplugged')\n        return {\"node0\""
        )
    )
    result = bench.run(bench.TOLERANT, "--benchmark-json=out.json")
    result.assert_outcomes(passed=1)
    assert "unplugged" in bench.accel_info()["no_energy"]
    assert ENERGY not in metrics_of(bench)
