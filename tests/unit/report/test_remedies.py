"""Commands to copy: what measures a result again, looks for its cause, or moves its baseline."""

from dataclasses import replace

import pytest

from pytest_accel.report.terminal import vanished_text
from pytest_accel.report.verdicts import kept_options, next_commands, remedy, rerun
from pytest_accel.stats.gate import Outcome
from tests.support.results import a_platform_shift, make_result

DOCTOR = "pytest-accel doctor"
UPDATE = " --accel-update --accel-reason='why it may stay so'"


@pytest.mark.parametrize(
    ("status", "ends"),
    [
        (Outcome.OK, [""]),
        (Outcome.REGRESSED, ["", DOCTOR, UPDATE]),
        (Outcome.IMPROVED, ["", DOCTOR, UPDATE]),
        (Outcome.STALE_BASELINE, ["", UPDATE]),
        (Outcome.NO_BASELINE, ["", " --accel-record"]),
        (Outcome.INCONCLUSIVE, ["", DOCTOR]),  # noise that no more baseline runs outweigh
        (Outcome.INVALID, ["", DOCTOR]),
    ],
)
def test_next_commands_follow_from_the_status(status, ends):
    result = make_result(status, name="test_x[it's]", changes=())
    again = "pytest 'bench_suites/test_cnn.py::test_x[it'\"'\"'s]' -m 'a or b'"
    found = next_commands(result, ["bench_suites", "-m", "a or b", "-x"])
    assert [text for _, text in found] == [end if end == DOCTOR else again + end for end in ends]


def test_what_cannot_be_measured_by_its_name_is_not_measured_again():
    found = next_commands(make_result(Outcome.VANISHED, name="test_x[1]"), [])
    assert [text for _, text in found] == [
        "pytest-accel baseline edit --remove 'bench_suites/test_cnn.py::test_x[1]'"
    ]
    assert [text for _, text in next_commands(a_platform_shift(), [])] == [DOCTOR]


def test_history_is_searched_with_the_name_of_the_function():
    result = make_result(Outcome.REGRESSED, name="test_x[a, b not c]")
    found = dict(next_commands(result, [], has_past=True))
    assert found["See since when"] == "pytest-accel history --changes test_x"
    assert "See since when" not in dict(next_commands(result, []))


@pytest.mark.parametrize("command", [["-m", "gh200"], ["-mgh200"]])
def test_rerun_keeps_the_platform(command):
    assert rerun([make_result(name="test_a")], command).endswith(" -m gh200")
    assert rerun([make_result(name="test_a")], ["--maxfail=1", "-m"]).endswith("::test_a")


def test_suites_of_the_wheel_are_named_by_their_modules():
    command = ["--pyargs", "pytest_accel.suites", "-m", "gh200"]
    found = rerun([make_result(name="test_a"), make_result(name="test_b")], command)
    module = "pytest_accel.suites.test_cnn"
    assert found == f"pytest --pyargs {module}::test_a {module}::test_b -m gh200"
    assert "--pyargs" not in rerun([make_result(name="test_a")], ["--pyargs", "mine.suites"])


def test_all_of_a_session_are_named_by_its_own_arguments():
    command = ["bench", "-m", "gh200", "--accel-json=a.json", "--accel-record=2", "-k", "cnn", "--", "more"]
    first, second, third = (make_result(Outcome.NO_BASELINE, name=f"test_{name}") for name in "abc")
    found = remedy([first, second], command, [first, second, replace(third, runs=())])
    assert found == ("Record a baseline", "pytest bench -m gh200 -k cnn more --accel-record")
    assert "::test_a " in remedy([first, second], command, [first, second, third])[1]
    assert "::test_a " in remedy([first], command, [first])[1]


def test_removal_names_the_folder_of_the_session():
    result = make_result(Outcome.VANISHED, name="test_a")
    ((_, text),) = next_commands(result, ["--accel-baselines", "kept"])
    assert text == "pytest-accel baseline edit --remove bench_suites/test_cnn.py::test_a --baselines=kept"
    assert vanished_text(result.benchmark, ["--accel-baselines=kept"]).endswith(text)


def test_options_of_the_measurement_are_kept():
    command = ["bench", "-x", "--accel-budget", "3s", "--accel-json=a.json", "-p", "mine", "--accel-require"]
    strict = ["--accel-tolerance=2%", "--accel-inconclusive=fail", "--accel-stale-baseline=warn"]
    expected = ["--accel-budget=3s", "-p", "mine", "--accel-require", *strict]
    assert kept_options([*command, *strict]) == expected
    assert kept_options(["-vv", "-oaccel_warmup=20ms", "-pmine"]) == ["-o", "accel_warmup=20ms", "-p", "mine"]
