"""GitHub: annotations are read as they were meant, no name is a command; the step summary never costs the session."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_accel.report.github import SHOWN, STEP_BYTES, append_step_summary, workflow_commands
from pytest_accel.report.markdown import render_summary
from pytest_accel.report.verdicts import VERDICTS
from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.results import Ending
from tests.support.results import make_result, make_session, many

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
    return [read(line) for line in workflow_commands(make_session(results), GITHUB, **more)]


def test_regression_is_an_error_at_its_line():
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
def test_nothing_is_annotated_outside_github(environ):
    assert workflow_commands(make_session(), environ) == []


@pytest.mark.parametrize("status", [*Outcome, *Ending], ids=lambda status: status.value)
def test_level_follows_from_failure_and_table(status):
    result = make_result(status)
    expected = ["warning"] if VERDICTS[status].annotated else []
    assert [command for command, *_ in of(replace(result, failed=False))] == expected
    assert [command for command, *_ in of(replace(result, failed=True))] == ["error"]


@pytest.mark.parametrize(("count", "left_out"), [(SHOWN, 0), (SHOWN + 1, 2), (SHOWN + 30, 31)])
def test_last_annotation_counts_those_that_github_would_not_show(count, left_out):
    template = make_result(Outcome.REGRESSED)
    found = of(*(replace(template, benchmark=f"a.py::test_{n}") for n in range(count)))
    assert len(found) == SHOWN
    titles = [properties["title"] for _, properties, _ in found]
    assert len([each for each in titles if each.startswith("REGRESSED")]) == count - left_out
    if left_out:
        assert titles[-1] == "pytest-accel"
        assert found[-1][2].startswith(f"{left_out} more benchmarks failed: ")


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


def test_unknown_place_is_left_out():
    [(_, properties, _)] = of(make_result(Outcome.VANISHED, line=0))
    assert "line" not in properties
    [(_, properties, _)] = of(make_result(Outcome.VANISHED, line=3, file="", platform=""))
    assert list(properties) == ["title"]


def test_long_message_stays_within_the_runners_limit():
    [(_, properties, message)] = of(make_result(Ending.FAILED, name="x" * 5000, text="y" * 9000))
    assert len(message) <= 4096
    assert len(properties["title"]) <= 200


anything = st.text(max_size=30) | st.text(alphabet="%:,=\n\r]#[0ADa \u2028\x85", max_size=20)


@settings(max_examples=60)
@given(anything, anything, anything)
def test_no_name_is_a_command(name, platform, text):
    result = make_result(
        Ending.FAILED,
        benchmark=f"{text}.py::{name}",
        file=f"a/{text}.py",
        platform=platform,
        text=f"{name}\n::add-mask::{text}",
        traceback=(f"\r::stop-commands::{platform}",),
    )
    [line] = workflow_commands(make_session([result]), GITHUB)
    assert len(line.splitlines()) == 1
    command, properties, message = read(line)
    assert command == "error"
    assert list(properties) == ["file", "line", "title"]
    assert properties["line"] == "37"
    assert "::add-mask::" in message  # as text, inside the one message


# --- the summary of a step --------------------------------------------------------------------------


def step(path):
    return {"GITHUB_STEP_SUMMARY": str(path)}


def test_step_summary_is_appended(tmp_path):
    path = tmp_path / "step.md"
    path.write_text("before")
    assert append_step_summary(step(path), "## ours\n") == ""
    assert append_step_summary(step(path), "## again \udc80\n") == ""
    assert path.read_text() == "before\n\n## ours\n\n\n## again \\udc80\n"


def test_step_summary_that_has_no_room_is_its_headline(tmp_path):
    path = tmp_path / "step.md"
    path.write_text("x" * (STEP_BYTES - 20_000))
    text = render_summary(make_session(many(300, rounds=6)))
    warning = append_step_summary(step(path), text)
    assert path.stat().st_size <= STEP_BYTES
    headline, _, note, *_ = path.read_text().lstrip("x\n").splitlines()
    assert headline == text.splitlines()[0]
    assert "GitHub shows 1 MiB a step" in note
    assert "--accel-report writes all of it" in warning


def test_full_step_is_left_as_it_is(tmp_path):
    path = tmp_path / "step.md"
    path.write_text("x" * STEP_BYTES)
    assert "is left out" in append_step_summary(step(path), "ours")
    assert path.stat().st_size == STEP_BYTES


@pytest.mark.parametrize("what", ["missing", "folder", "fifo", "null"])
def test_step_summary_that_cannot_be_written_is_a_warning(tmp_path, what):
    path = tmp_path / "step.md"
    if what == "folder":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)  # that nobody reads: must not wait
    name = f"{path}\0" if what == "null" else str(path)
    warning = append_step_summary({"GITHUB_STEP_SUMMARY": name}, "x")
    assert warning.startswith(f"GITHUB_STEP_SUMMARY={name}: the summary cannot be written: ")
    assert warning.endswith("--accel-report writes it elsewhere.")
