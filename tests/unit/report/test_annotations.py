"""Annotations: what the runner reads is what was meant, and no name is a command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_accel.report.github import SHOWN, annotations
from pytest_accel.stats.results import Ending
from pytest_accel.stats.verdict import Outcome
from tests.support.results import hostile, make_result, make_session

GITHUB = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": "/home/runner/work/x/x"}


def read(line: str) -> tuple[str, dict[str, str], str]:
    """As the runner reads a line of output: command, properties, message."""
    assert line.lstrip().startswith("::")
    info, separator, data = line.lstrip()[2:].partition("::")
    assert separator
    command, _, rest = info.partition(" ")
    pairs = [each.partition("=") for each in rest.strip().split(",") if each]
    return command, {key: unescaped(value, ":,") for key, _, value in pairs}, unescaped(data)


def unescaped(text: str, signs: str = "") -> str:
    for sign in "\r\n" + signs + "%":
        text = text.replace(f"%{ord(sign):02X}", sign)
    return text


def of(*results, **more):
    return [read(line) for line in annotations(make_session(results), GITHUB, **more)]


def test_a_regression():
    [(command, properties, message)] = of(make_result(Outcome.REGRESSED))
    assert command == "error"
    assert properties == {
        "file": "bench_suites/test_cnn.py",
        "line": "37",
        "title": "REGRESSED test_cnn[resnet50-bf16-256] (gh200)",
    }
    first, second = message.splitlines()
    assert " % slower (at least " in first
    assert second.startswith("changed since the baseline: driver 570.124.06 -> 580.159.04, cuDNN ")


@pytest.mark.parametrize("environ", [{}, {"GITHUB_ACTIONS": "false"}, {"GITLAB_CI": "true"}])
def test_nothing_where_nobody_reads_it(environ):
    assert annotations(make_session(), environ) == []


@pytest.mark.parametrize("status", [*Outcome, *Ending], ids=lambda status: status.value)
def test_levels(status):
    result = make_result(status)
    told = {Ending.SKIPPED, Ending.RECORDED, Ending.NOT_MEASURED}
    silent = {Outcome.OK, Outcome.DOES_NOT_FIT, *told}
    expected = [] if result.status in silent else ["warning"]
    assert [command for command, *_ in of(replace(result, failed=False))] == expected
    assert [command for command, *_ in of(replace(result, failed=True))] == ["error"]


def test_errors_come_before_warnings():
    assert [command for command, *_ in of(make_result(Outcome.IMPROVED), make_result(Outcome.REGRESSED))] == [
        "error",
        "warning",
    ]


@pytest.mark.parametrize(("count", "left_out"), [(SHOWN, 0), (SHOWN + 1, 2), (SHOWN + 30, 31)])
def test_as_many_as_github_shows_and_the_last_counts_the_others(count, left_out):
    template = make_result(Outcome.REGRESSED)
    found = of(*(replace(template, benchmark=f"a.py::test_{n}") for n in range(count)))
    assert len(found) == SHOWN
    titles = [properties["title"] for _, properties, _ in found]
    assert len([each for each in titles if each.startswith("REGRESSED")]) == count - left_out
    if left_out:
        assert titles[-1] == "pytest-accel"
        assert found[-1][2].startswith(f"{left_out} more benchmarks failed: ")


def test_warnings_have_ten_of_their_own():
    failed, open_ = make_result(Outcome.REGRESSED), make_result(Outcome.NO_BASELINE)
    found = of(*[failed] * 20, *[open_] * 20)
    assert [command for command, *_ in found] == ["error"] * SHOWN + ["warning"] * SHOWN
    assert found[-1][2].startswith("11 more benchmarks need attention: ")


@pytest.mark.parametrize(
    ("rootdir", "file"),
    [
        (None, "bench_suites/test_cnn.py"),
        (Path("/home/runner/work/x/x"), "bench_suites/test_cnn.py"),
        (Path("/home/runner/work/x/x/python"), "python/bench_suites/test_cnn.py"),
        (Path("/somewhere/else"), "bench_suites/test_cnn.py"),
    ],
)
def test_files_are_relative_to_the_repository(rootdir, file):
    [(_, properties, _)] = of(make_result(Outcome.REGRESSED), rootdir=rootdir)
    assert properties["file"] == file


def test_a_place_that_is_not_known_is_not_invented():
    [(_, properties, _)] = of(make_result(Outcome.VANISHED, line=0))
    assert "line" not in properties
    [(_, properties, _)] = of(make_result(Outcome.VANISHED, line=3, file="", platform=""))
    assert list(properties) == ["title"]


def test_a_long_message_keeps_within_what_the_runner_takes():
    [(_, properties, message)] = of(make_result(Ending.FAILED, name="x" * 5000, text="y" * 9000))
    assert len(message) <= 4096
    assert len(properties["title"]) <= 200


def test_details_are_lines_of_the_message():
    [(*_, message)] = of(make_result(Ending.FAILED, text="boom", details=("E  a", "E  100%0A b")))
    assert message == "boom\nE  a\nE  100%0A b"


def test_a_property_ends_where_it_ends():
    name = "test_x[a::add-mask::b,file=c,%3A]"
    failed = make_result(Ending.FAILED, name=name, text="::error::x")
    [(command, properties, message)] = of(replace(failed, file="a::b,c.py"))
    assert command == "error"
    assert properties == {"file": "a::b,c.py", "line": "37", "title": f"FAILED {name} (gh200)"}
    assert message == "::error::x"


def test_hostile_names():
    session = make_session(hostile())
    lines = annotations(session, GITHUB)
    assert len(lines) == len(session.failures) <= SHOWN
    assert {read(line)[0] for line in lines} == {"error"}


anything = st.text(max_size=30) | st.text(alphabet="%:,=\n\r]#[0ADa \u2028\x85", max_size=20)


@settings(max_examples=60)
@given(anything, anything, anything)
def test_no_name_is_a_command(name, platform, text):
    result = replace(
        make_result(Ending.FAILED),
        benchmark=f"{text}.py::{name}",
        file=f"a/{text}.py",
        platform=platform,
        text=f"{name}\n::add-mask::{text}",
        details=(f"\r::stop-commands::{platform}",),
    )
    [line] = annotations(make_session([result]), GITHUB)
    assert len(line.splitlines()) == 1
    command, properties, message = read(line)
    assert command == "error"
    assert list(properties) == ["file", "line", "title"]
    assert properties["line"] == "37"
    assert "::add-mask::" in message  # as text, inside the one message
