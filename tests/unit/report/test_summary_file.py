"""The summary of a step: appended, within GitHub's limit, and never at the price of the session."""

from __future__ import annotations

import os

import pytest

from pytest_accel.report.github import STEP_BYTES, append_step_summary
from pytest_accel.report.markdown import render_summary
from tests.support.markdown_page import Page
from tests.support.results import make_session, many


def step(path):
    return {"GITHUB_STEP_SUMMARY": str(path)}


def test_step_summary_is_appended(tmp_path):
    path = tmp_path / "step.md"
    path.write_text("before")
    assert append_step_summary(step(path), "## ours\n") == ""
    assert append_step_summary(step(path), "## again \udc80\n") == ""
    assert path.read_text() == "before\n\n## ours\n\n\n## again \\udc80\n"


def test_no_step_summary_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert append_step_summary({}, "x") == append_step_summary({"GITHUB_STEP_SUMMARY": ""}, "x") == ""
    assert list(tmp_path.iterdir()) == []


def test_step_summary_stays_below_what_github_takes(tmp_path):
    path = tmp_path / "step.md"
    path.write_text("x" * (STEP_BYTES - 20_000))
    text = render_summary(make_session(many(300, rounds=6)))
    warning = append_step_summary(step(path), text)
    assert path.stat().st_size <= STEP_BYTES
    said = path.read_text().lstrip("x")
    assert "**The rest is left out: GitHub shows 1 MiB a step.**" in said
    assert said.count("<details>") == said.count("</details>")
    assert said.lstrip().splitlines()[0] == text.splitlines()[0]
    assert "the rest was left out. --accel-report writes all of it" in warning


def test_a_cut_inside_a_fence_closes_it(tmp_path):
    path = tmp_path / "step.md"
    path.touch()
    append_step_summary(step(path), "````text\n" + "line\n" * (STEP_BYTES // 4))
    assert Page(path.read_text()).tags == ["pre", "code", "p", "strong", "code"]


def test_a_full_step_is_left_as_it_is(tmp_path):
    path = tmp_path / "step.md"
    path.write_text("x" * STEP_BYTES)
    assert "0 were left" in append_step_summary(step(path), "ours")
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
