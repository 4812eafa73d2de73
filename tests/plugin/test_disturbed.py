"""Runs that the device was not fair to: replaced, never judged, and said. What disturbs them is chosen here."""

import pytest

# Which runs of a benchmark are disturbed: by their numbers, over all its processes.
DISTURBED = """
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_accel.session.observation import Observation

RUNS = {"test_replaced": {0}, "test_invalid": set(range(9)), "test_repeated": {1}, "test_alone": set(range(1, 9))}


@pytest.fixture(autouse=True)
def disturbed(request, monkeypatch):
    seen, name = Observation.observed, request.node.name

    def observed(self, steps):
        runs = Path(f"runs-{name}")
        number = len(runs.read_text()) if runs.exists() else 0
        runs.write_text("x" * (number + 1))
        invalid = ("throttled (HW thermal, 34 % of the window)",) if number in RUNS.get(name, ()) else ()
        return replace(seen(self, steps), invalid=invalid, notes=("the fan is loud",))

    monkeypatch.setattr(Observation, "observed", observed)
"""
WHY = "throttled (HW thermal, 34 % of the window)"
SUITE = """
    @pytest.mark.accel(tolerance="99%")
    def test_replaced(accel):
        measure(accel)

    @pytest.mark.accel(tolerance="99%")
    def test_fine(accel):
        measure(accel)

    def test_invalid(accel):
        measure(accel)

    def test_repeated(accel):
        measure(accel)

    def test_alone(accel):
        measure(accel)
    """


def runs_of(bench, name):
    return len(bench.path(f"runs-{name}").read_text())


@pytest.fixture(scope="module")
def night(shared):
    shared.write(SUITE)
    shared.path("conftest.py").write_text(DISTURBED)
    shared.baseline(
        test_replaced=shared.SAME,
        test_fine=shared.SAME,
        test_invalid=shared.SAME,
        test_repeated=shared.FASTER,  # regressed, which takes two runs to say
        test_alone=shared.FASTER,
    )
    return shared.run_apart("--accel-json=a.json", "--benchmark-json=out.json")


@pytest.fixture(scope="module")
def results(night, shared):
    return {each["benchmark"].partition("::")[2]: each for each in shared.json("a.json")["results"]}


def test_disturbed_run_is_replaced_with_a_note(night, shared, results):
    night.assert_outcomes(passed=2, failed=3)
    night.stdout.fnmatch_lines(
        ["test_replaced *NOT-GATED*", f"note: test_replaced (cpu): a disturbed run was replaced: {WHY}"]
    )
    assert runs_of(shared, "test_replaced") == 2
    found = results["test_replaced"]
    assert found["status"] == "not-gated"
    assert len(found["runs"]) == 1
    assert {"text": f"a disturbed run was replaced: {WHY}"} in found["lines"]
    assert shared.accel_info("test_replaced")["invalid"] == WHY


def test_three_disturbed_runs_are_invalid(night, shared, results):
    assert runs_of(shared, "test_invalid") == 3
    night.stdout.fnmatch_lines(
        [
            f"INVALID  test_invalid (cpu): {WHY}; 3 runs were disturbed",
            "Look at the machine with pytest-accel doctor; *",
            "test_invalid *INVALID*",
        ]
    )
    found = results["test_invalid"]
    assert (found["status"], found.get("runs"), found["failed"]) == ("invalid", None, True)


def test_disturbed_repeat_is_repeated(night, shared):
    assert runs_of(shared, "test_repeated") == 3
    night.stdout.fnmatch_lines(
        ["REGRESSED  test_repeated (cpu)*2 runs vs*", "note: a disturbed run was replaced: *"]
    )


def test_loss_that_only_disturbed_runs_confirm_is_invalid(night, shared):
    assert runs_of(shared, "test_alone") == 4  # a fair one, and three that were not
    night.stdout.fnmatch_lines([f"INVALID  test_alone (cpu): {WHY}; 3 runs were disturbed"])
    night.stdout.no_fnmatch_line("*test_alone*a disturbed run was replaced*")


def test_note_of_several_benchmarks_is_printed_once(night):
    night.stdout.fnmatch_lines(
        ["note: 2 benchmarks: the fan is loud"]
    )  # the others have it at their failures


def test_disturbed_runs_are_not_recorded(bench):
    bench.write(SUITE)
    bench.path("conftest.py").write_text(DISTURBED)
    bench.run("--accel-record=1", "-k", "test_replaced").assert_outcomes(passed=1, deselected=4)
    assert runs_of(bench, "test_replaced") == 2
    (stored,) = bench.load_baseline()["benchmarks"].values()
    assert len(stored["runs"]) == 1
