"""Results as a file: what is written comes back, and what is not ours is refused with its place."""

import json
import os
import time
from dataclasses import replace
from unittest.mock import Mock

import pytest

from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.results import Ending
from pytest_accel.storage.results import ResultsError, parse, read_results, render, write_results
from tests.support.damage import damaged
from tests.support.results import make_result, make_session


def test_what_was_stored_comes_back():
    session = make_session(make_result(status, name=f"test_{status}[ä\n]") for status in (*Outcome, *Ending))
    session = replace(session, remarks=("\x00\u202e",), findings=({"level": "ok", "count": 3},))
    assert parse(render(session), "results.json") == session


def test_next_write_removes_what_a_killed_writer_left(tmp_path):
    path, left = tmp_path / "results.json", tmp_path / ".results.json.1-a.tmp"
    alive = tmp_path / ".results.json.2-b.tmp"
    for temporary in (left, alive):
        temporary.touch()
    os.utime(left, (0, time.time() - 2 * 3600))
    write_results(path, make_session([]))
    assert sorted(tmp_path.iterdir()) == [alive, path]


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        ("schema_version", 99, "99 is not the schema"),
        ("at", "yesterday", "not a time in UTC"),
        ("results[0].status", "splendid", "splendid"),
        ("results[0].tolerance", 5, "between 0 and 1"),
        ("results[0].runs[0].rounds_s[1]", -1, "is not between"),
        ("results[0].runs[0].environment", "nowhere", "not among the environments"),
        ("results[0].work_per_step", 0, "is not in 0 < work"),
    ],
)
def test_fault_is_reported_with_its_place_and_a_remedy(place, value, problem):
    content = json.loads(render(make_session([make_result(Outcome.OK)])))
    with pytest.raises(ResultsError) as caught:
        parse(json.dumps(damaged(content, place, value)), "results.json")
    assert caught.value.place == place
    assert problem in caught.value.problem
    assert "git checkout" not in caught.value.remedy  # results are nowhere in git


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"kind": "pytest-accel results"}', "{"])
def test_what_is_no_result_is_refused(text):
    with pytest.raises(ResultsError) as caught:
        parse(text, "results.json")
    assert caught.value.remedy


def test_written_and_read(tmp_path):
    path = tmp_path / "deep" / "results.json"
    write_results(path, make_session([make_result(Outcome.OK)]))
    assert read_results(path).results[0].status is Outcome.OK
    assert [each.name for each in path.parent.iterdir()] == ["results.json"]


def test_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    path.write_text("before")
    monkeypatch.setattr("pathlib.Path.replace", Mock(side_effect=OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space"):
        write_results(path, make_session([make_result()]))
    assert path.read_text() == "before"
    assert [each.name for each in tmp_path.iterdir()] == ["results.json"]


def test_path_without_a_file_says_what_writes_one(tmp_path):
    with pytest.raises(ResultsError, match="--accel-json"):
        read_results(tmp_path / "absent.json")
