"""`--accel-calibrate` through the plugin."""

from __future__ import annotations

import json

import pytest

from pytest_accel.stats.calibration import Conditions
from pytest_accel.stats.environment import Environment
from tests.support.calibrated import calibration

HERE = Environment(identity={}, context={})


def calibrated(bench, name="test_step", **more):
    return calibration(
        bench.path("baselines"),
        f"test_suite.py::{name}",
        platform=bench.template.platform,
        suite="suite",
        environment=HERE,
        **{"conditions": Conditions(budget_s=0.03, threads=1)} | more,  # as these sessions measure
    )


def test_measures_fresh_processes_and_stores_what_they_say(bench):
    bench.benchmarks("test_step")
    result = bench.run("--accel-calibrate=7", "--accel-json=out.json")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "test_step: run 7 of 7 in a fresh process, about * left",
            "test_step * calibrated",
            (
                "CALIBRATED  test_step (cpu): 7 runs, noise * %, smallest detectable loss * %, "
                "21 draws: * ok, * undecided, * false alarm*; pytest-benchmark's mean:5% would have failed * %"
            ),
            "Stored in baselines/*/calibration/suite.json: *",
        ]
    )
    assert "no baseline" not in result.stdout.str().lower()
    assert len(set(bench.processes("test_step"))) == 7
    path = bench.path("baselines") / bench.template.platform / "calibration" / "suite.json"
    (entry,) = json.loads(path.read_text())["benchmarks"].values()
    assert len(entry["runs"]) == 7
    assert entry["conditions"] == {"budget_s": 0.03, "threads": 1}
    assert not bench.baseline_path.exists()
    (left,) = bench.json()["results"]
    assert left["status"] == "calibrated"
    assert left["text"].startswith("7 runs, noise ")
    assert len(left["runs"]) == 7


def test_a_benchmark_that_fails_is_not_calibrated(bench):
    bench.write("def test_step(accel):\n    raise RuntimeError('broken')\n")
    result = bench.run("--accel-calibrate=6")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*test_step (cpu) failed in a fresh process: *broken*"])
    assert not bench.path("baselines").exists()


class TestTolerance:
    def test_below_is_refused_before_anything_is_measured(self, bench):
        bench.benchmarks("test_step")
        calibrated(bench)
        result = bench.run("--accel-tolerance=1%")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(
            ["ERROR: test_step (cpu): a tolerance of 1.0 % (from --accel-tolerance) is less than *"]
        )
        assert bench.processes("test_step") == []

    def test_of_a_mark_is_refused_by_its_own_name(self, bench):
        bench.write(
            "@pytest.mark.accel(tolerance='2%')\ndef test_step(accel):\n    measure(accel)\n\n\n"
            "def test_other(accel):\n    measure(accel)\n"
        )
        calibrated(bench)
        result = bench.run("--accel-tolerance=1%")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(
            ["ERROR: * 2.0 % (from @pytest.mark.accel of test_suite.py::test_step) is *"]
        )
        assert "test_other" not in result.stderr.str()

    def test_that_was_calibrated_with_another_budget_only_earns_a_remark(self, bench):
        bench.benchmarks("test_step")
        calibrated(bench, conditions=Conditions(budget_s=5.0, threads=1))
        result = bench.run("--accel-tolerance=1%")
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["calibrated on * a budget of 5 s *This session has a budget of 30 ms *"])

    def test_that_holds_is_judged_as_ever(self, bench):
        bench.benchmarks("test_step")
        bench.baseline(test_step=bench.SAME)
        calibrated(bench)
        bench.run(bench.TOLERANT).assert_outcomes(passed=1)

    def test_by_default_only_earns_a_remark(self, bench):
        bench.benchmarks("test_step")
        calibrated(bench)
        result = bench.run()
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(
            [
                (
                    "calibrated on 2026-02-01 for * with a budget of *: noise * % resolves * % for test_step (cpu): the "
                    "default tolerance of 5.0 % does not hold here.*"
                )
            ]
        )

    def test_a_list_of_tests_is_not_refused(self, bench):
        bench.benchmarks("test_step")
        calibrated(bench)
        assert bench.run("--accel-tolerance=1%", "--collect-only").ret == pytest.ExitCode.OK


def test_a_torn_file_is_known_before_anything_is_measured(bench):
    bench.benchmarks("test_step")
    calibrated(bench)
    (path,) = bench.path("baselines").glob("*/calibration/suite.json")
    path.write_text("{")
    result = bench.run("--accel-calibrate=6")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*delete it and calibrate again with --accel-calibrate=12."])
    assert bench.processes("test_step") == []
    bench.run("--benchmark-disable").assert_outcomes(passed=1)


@pytest.mark.parametrize("number", ["5", "41", "many"])
def test_takes_a_number_of_runs_that_can_tell(bench, number):
    bench.benchmarks("test_step")
    result = bench.run(f"--accel-calibrate={number}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: accel_calibrate: '{number}' * whole number from 6 to 40.*"])


def test_what_is_switched_off_cannot_be_calibrated(bench):
    bench.benchmarks("test_step")
    result = bench.run("--accel-calibrate=6", "--benchmark-disable")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --benchmark-disable switches off what --accel-calibrate measures*"])
