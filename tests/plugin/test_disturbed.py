"""Runs that the device was not fair to: replaced, never judged, and said. What disturbs them is chosen here."""

from __future__ import annotations

import json

import pytest

# Which runs of the session are disturbed: by their numbers, over all its processes.
DISTURBED = """
from dataclasses import replace
from pathlib import Path

from pytest_accel.session.observation import Observation

seen = Observation.observed


def observed(self, steps):
    runs = Path(__file__).with_name("runs")
    number = len(runs.read_text()) if runs.exists() else 0
    runs.write_text("x" * (number + 1))
    invalid = "throttled (HW thermal, 34 % of the window)" if number in {numbers} else ""
    return replace(seen(self, steps), invalid=invalid, notes=("the fan is loud",))


Observation.observed = observed


def pytest_unconfigure():  # other tests of this process want the real one
    Observation.observed = seen
"""
WHY = "throttled (HW thermal, 34 % of the window)"
STEP = "def test_step(accel):\n    measure(accel)\n"


@pytest.fixture
def disturbed(bench):
    def write(*numbers, baseline=True):
        bench.write(STEP)
        if baseline:
            bench.baseline(test_step=bench.SAME)
        bench.path("conftest.py").write_text(DISTURBED.format(numbers=set(numbers)))
        return bench

    return write


def runs_of(bench):
    return len(bench.path("runs").read_text())


def test_disturbed_run_is_replaced_with_a_note(disturbed):
    bench = disturbed(0)
    result = bench.run(bench.TOLERANT, "--accel-json=a.json", "--benchmark-json=out.json")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["test_step *ok*", f"note: test_step (cpu): a disturbed run was replaced: {WHY}"]
    )
    assert runs_of(bench) == 2
    (found,) = json.loads(bench.path("a.json").read_text())["results"]
    assert found["status"] == "ok"
    assert len(found["runs"]) == 1
    assert {"text": f"a disturbed run was replaced: {WHY}"} in found["lines"]
    info = bench.accel_info()
    assert info["invalid"] == WHY
    assert len(info["further_runs"]) == 1  # what was judged


def test_three_disturbed_runs_are_invalid(disturbed):
    bench = disturbed(*range(9))
    result = bench.run(bench.TOLERANT, "--accel-json=a.json")
    result.assert_outcomes(failed=1)
    assert runs_of(bench) == 3
    result.stdout.fnmatch_lines(
        [
            f"INVALID  test_step (cpu): {WHY}; 3 runs were disturbed",
            "Look at the device with pytest-accel doctor; *",
            "test_step *INVALID*",
        ]
    )
    (found,) = json.loads(bench.path("a.json").read_text())["results"]
    assert (found["status"], found.get("runs"), found["failed"]) == ("invalid", None, True)


def test_disturbed_repeat_is_repeated(disturbed):
    bench = disturbed(1)
    bench.baseline(test_step=bench.FASTER)  # regressed, which takes two looks to say
    result = bench.run("--accel-repeats=2")
    result.assert_outcomes(failed=1)
    assert runs_of(bench) == 3
    result.stdout.fnmatch_lines(
        ["REGRESSED  test_step (cpu)*2 runs vs*", "note: a disturbed run was replaced: *"]
    )


def test_loss_that_only_disturbed_runs_confirm_is_invalid(disturbed):
    bench = disturbed(*range(1, 9))
    bench.baseline(test_step=bench.FASTER)
    result = bench.run()
    result.assert_outcomes(failed=1)
    assert runs_of(bench) == 4  # a fair one, and three that were not
    result.stdout.fnmatch_lines([f"INVALID  test_step (cpu): {WHY}; 3 runs were disturbed"])
    result.stdout.no_fnmatch_line("*a disturbed run was replaced*")


def test_disturbed_runs_are_not_recorded(disturbed):
    bench = disturbed(0, baseline=False)
    bench.run("--accel-record=1").assert_outcomes(passed=1)
    assert runs_of(bench) == 2
    (stored,) = bench.load_baseline()["benchmarks"].values()
    assert len(stored["runs"]) == 1


def test_note_of_several_benchmarks_is_printed_once(disturbed):
    bench = disturbed()
    bench.write(STEP + STEP.replace("test_step", "test_other"))
    result = bench.run(bench.TOLERANT)
    result.stdout.fnmatch_lines(["note: 2 benchmarks: the fan is loud"])
