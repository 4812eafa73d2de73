"""`pytest-accel report`: the page of results in a file, or of a session that the history keeps."""

import json
import os
import random
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pytest_accel.cli import main
from pytest_accel.storage.history import History
from pytest_accel.storage.results import write_results
from tests.support.results import NOW, SESSION, make_result, make_runs, make_session


@pytest.fixture(autouse=True)
def _small_library_and_own_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("pytest_accel.report.page.read_plotly_js", lambda: b"window.Plotly = {};")
    monkeypatch.chdir(tmp_path)


def test_results_in_a_file_become_a_page(tmp_path, capsys):
    write_results(tmp_path / "results.json", make_session())
    assert main(["report", "results.json"]) == 0
    assert capsys.readouterr().out == f"report.html: 23 benchmarks of session {SESSION}\n"
    assert "4 of 23 benchmarks failed" in (tmp_path / "report.html").read_text()


def test_name_that_ends_in_md_becomes_markdown(tmp_path, capsys):
    write_results(tmp_path / "results.json", make_session())
    assert main(["report", "results.json", "-o", "summary.md"]) == 0
    assert (tmp_path / "summary.md").read_text().startswith("## ")


def test_the_newest_session_of_the_history_is_shown_with_its_past(tmp_path, capsys):
    history = History(tmp_path / ".accel" / "history.sqlite")
    history.append(make_session([make_result()], session="first", at="2026-11-13T03:00:00+00:00"))
    history.append(make_session([make_result()], session="second", at="2026-11-14T03:00:00+00:00"))
    assert main(["report", "-o", "out/page.html"]) == 0
    assert "1 benchmark of session second" in capsys.readouterr().out
    page = (tmp_path / "out" / "page.html").read_text()
    assert '"2026-11-13T03:00:00+00:00","first"' in page
    assert main(["report", "--session", "fir"]) == 0
    assert "session first" in capsys.readouterr().out


@pytest.fixture
def long_past(tmp_path) -> History:
    """100 nights, slower by 10 % after six of them and by 10 % more after sixty."""
    history = History(tmp_path / ".accel" / "history.sqlite")
    source, began = random.Random(1), datetime(2026, 3, 1, 3, tzinfo=UTC)
    for number in range(100):
        level = 6000 * 0.9 ** ((number >= 6) + (number >= 60))
        name = f"night-{number:03d}"
        runs = make_runs(source, 256 / level, runs=1, noise=0.003, session=name)
        result = replace(make_result(), runs=runs, baseline=(), environment=NOW.key)
        history.append(make_session([result], session=name, at=(began + timedelta(days=number)).isoformat()))
    return history


def test_the_page_and_the_command_find_the_same_changes(long_past, tmp_path, capsys):
    assert main(["report"]) == 0
    text = (tmp_path / "report.html").read_text()
    data = json.loads(re.search(r'id="data"[^>]*>(.*?)</script>', text, re.DOTALL)[1])
    (past,) = data["past"]
    of_page = [
        (each["text"], data["nights"][past["nights"][each["index"]]][0][:10]) for each in past["changes"]
    ]
    assert [day for _, day in of_page] == ["2026-04-30"]
    assert main(["history", "--changes"]) == 0
    said = capsys.readouterr().out
    assert re.findall(r"^  (\S+ % \w+) since (\S+) ", said, re.MULTILINE) == of_page


@pytest.mark.parametrize(
    ("arguments", "problem", "remedy"),
    [
        ([], "there is no history here yet", "--accel-history"),
        (["nothing.json"], "cannot be read", "--accel-json"),
        (["results.json", "--session", "x"], "two sessions", "Name one"),
        (["results.json", "-o", "pipe.html"], ": No such device", "report"),
        (["results.json", "-o", "."], ": Is a directory", "report"),
    ],
)
def test_what_cannot_be_shown_is_one_error_with_its_remedy(arguments, problem, remedy, tmp_path, capsys):
    write_results(tmp_path / "results.json", make_session([make_result()]))
    os.mkfifo(tmp_path / "pipe.html")
    assert main(["report", *arguments]) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert remedy in said
    assert not (tmp_path / "report.html").exists()
