"""`pytest-accel report`: the page of results in a file, or of a session that the history keeps."""

from __future__ import annotations

import pytest

from pytest_accel.cli import main
from pytest_accel.store.history import History
from pytest_accel.store.results import write_results
from tests.support.results import SESSION, make_result, make_session


@pytest.fixture(autouse=True)
def _small_library_and_own_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("pytest_accel.report.page.writing.read_plotly_js", lambda: b"window.Plotly = {};")
    monkeypatch.chdir(tmp_path)


def test_results_in_a_file_become_a_page(tmp_path, capsys):
    write_results(tmp_path / "results.json", make_session())
    assert main(["report", "results.json"]) == 0
    assert capsys.readouterr().out == f"report.html: 23 benchmarks of session {SESSION}\n"
    assert "4 of 23 benchmarks failed" in (tmp_path / "report.html").read_text()


def test_the_newest_session_of_the_history_is_shown_with_its_past(tmp_path, capsys):
    history = History(tmp_path / ".accel" / "history.sqlite")
    history.append(make_session([make_result()], session="first", at="2026-11-13T03:00:00+00:00"))
    history.append(make_session([make_result()], session="second", at="2026-11-14T03:00:00+00:00"))
    assert main(["report", "-o", "out/page.html"]) == 0
    assert "session second" in capsys.readouterr().out
    page = (tmp_path / "out" / "page.html").read_text()
    assert '"2026-11-13T03:00:00+00:00","first"' in page
    assert main(["report", "--session", "fir"]) == 0
    assert "session first" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem", "remedy"),
    [
        ([], "there is no history here", "--history"),
        (["nothing.json"], "cannot be read", "--accel-json"),
        (["results.json", "--session", "x"], "two sessions", "Name one"),
        (["results.json", "-o", "."], "is a folder", "-o report.html"),
        (["results.json", "-o", "results.json/x.html"], "cannot be written", "-o"),
    ],
)
def test_what_cannot_be_shown_is_one_error_with_its_remedy(arguments, problem, remedy, tmp_path, capsys):
    write_results(tmp_path / "results.json", make_session([make_result()]))
    assert main(["report", *arguments]) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert remedy in said
    assert not (tmp_path / "report.html").exists()
