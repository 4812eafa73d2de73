"""`pytest-accel history`: what it prints, what it writes, and how it ends."""

import json
import random
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import pytest

from pytest_accel import cli
from pytest_accel.stats.gate import Estimate, Outcome, Verdict
from pytest_accel.stats.results import SessionResults
from pytest_accel.storage.history import History
from pytest_accel.storage.results import write_results
from tests.support.results import AT, NOW, THEN, make_result, make_runs, make_session


def night(number: int, *, slower_from: int = 15) -> SessionResults:
    """ResNet-50 becomes slower with another environment; Swin-T does not."""
    source = random.Random(number)
    is_new = number >= slower_from
    name = f"night-{number:03d}"

    def measured(model: str, throughput: float):
        result = make_result(name=f"test_cnn[{model}]", throughput=throughput)
        environment = NOW if is_new else THEN
        runs = make_runs(source, 256 / throughput, runs=2, noise=0.003, session=name, environment=environment)
        return replace(result, runs=runs, baseline=(), environment=environment.key)

    return make_session(
        [measured("resnet50", 6000 if is_new else 6600), measured("swin_t", 4400)],
        session=name,
        at=(AT + timedelta(days=number)).isoformat(),
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> bytes:
    history = History(tmp_path_factory.mktemp("nights") / "history.sqlite")
    for number in range(24):
        history.append(night(number))
    return history.path.read_bytes()


@pytest.fixture
def project(tmp_path, written, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ACCEL_HISTORY", raising=False)
    (tmp_path / ".accel").mkdir()
    (tmp_path / ".accel" / "history.sqlite").write_bytes(written)
    return tmp_path


@pytest.fixture
def ask(project, capsys):
    def run(*words, status=0) -> str:
        assert cli.main(["history", *words]) == status
        captured = capsys.readouterr()
        assert bool(captured.err) == (status == 2)
        return captured.out + captured.err

    return run


class TestLooking:
    def test_sessions_the_newest_first(self, ask):
        lines = ask("--limit", "2").splitlines()
        assert [line.split()[2] for line in lines[1:]] == ["night-023", "night-022"]
        assert json.loads(ask("--json"))[19]["session"] == "night-004"

    def test_all_benchmarks_at_a_glance(self, ask):
        text = ask("test")
        assert "test_cnn[resnet50]" in text
        assert "test_cnn[swin_t]" in text
        assert "24 sessions" in text
        assert "verdict" not in text

    def test_one_benchmark_with_its_sessions(self, ask):
        text = ask("resnet50", "--limit", "3")
        assert "verdict" in text
        assert re.findall(r"night-\d+", text) == ["night-021", "night-022", "night-023"]
        (point,) = json.loads(ask("swin_t", "--limit", "1", "--json"))
        assert (point["session"], len(point["step_times_s"])) == ("night-023", 2)
        assert point["throughput"] == pytest.approx(4400, rel=0.02)

    def test_show_and_list_are_understood(self, ask):
        assert ask("show", "resnet50", "--limit", "3") == ask("resnet50", "--limit", "3")
        assert ask("list") == ask("show") == ask()

    def test_another_file(self, ask, project):
        (project / ".accel" / "history.sqlite").rename(project / "other.sqlite")
        assert "there is no history here yet" in ask(status=2)
        assert "night-023" in ask("--history", "other.sqlite")

    @pytest.mark.parametrize("choice", [("nowhere",), ("--platform", "a100")])
    def test_a_choice_of_nothing_is_an_error_that_says_what_there_is(self, ask, choice):
        assert "it has 2 series, on: gh200; none is selected" in ask(*choice, status=2)

    def test_a_bad_expression(self, ask):
        assert "is no expression" in ask("a and", status=2)


class TestChanges:
    def test_what_became_slower_with_its_suspects(self, ask):
        text = ask("--changes")
        assert "slower since" in text
        assert "session night-015" in text
        assert "torch 2.10.0 -> 2.11.0" in text
        assert "swin_t" not in text
        assert text.splitlines()[-1] == "1 of 2 benchmarks changed"

    def test_series_that_is_too_short_is_not_called_unchanged(self, ask):
        said = "0 of 2 benchmarks changed\n2 too short to say: change points need 12 sessions\n"
        assert ask("--changes", "--limit", "11") == said

    def test_it_is_an_advisory_unless_asked_to_fail(self, ask):
        assert "slower since" in ask("--changes", status=0)
        assert "slower since" in ask("--changes", "--fail", status=1)
        ask("--changes", "--fail", "swin_t")


class TestSlowRuns:
    def test_new_and_frequent_ones_are_said_beside_the_series_and_with_the_changes(self, ask, project):
        for number in range(24, 30):
            session = night(number, slower_from=15)
            fast, *rest = session.results
            slow = 1.6 if number in (25, 27, 29) else 1.0
            run = replace(fast.runs[0], rounds_s=tuple(slow * each for each in fast.runs[0].rounds_s))
            runs = (run, *fast.runs[1:], *(replace(each, metrics={}) for each in fast.runs))
            verdict = Verdict(
                outcome=Outcome.OK, tolerance=0.05, slowdown=Estimate(point=0.0, low=0.0, high=0.0)
            )
            changed = replace(fast, runs=runs, verdicts=(verdict,), status=Outcome.OK)
            History(project / ".accel" / "history.sqlite").append(replace(session, results=(changed, *rest)))
        said = "slow runs in 3 of the last 6 sessions, in none of the 12 before"
        assert said in ask("resnet50")
        assert said in ask("--changes")
        assert said not in ask("swin_t")


class TestKeeping:
    def test_results_of_another_machine_are_added_once(self, ask, project):
        write_results(project / "a.json", night(40))
        write_results(project / "b.json", night(41))
        assert ask("--import", "a.json", "b.json") == "night-040  added\nnight-041  added\n"
        assert "was there already" in ask("--import", "a.json")
        assert "night-041" in ask("--limit", "1")

    def test_a_session_cannot_speak_to_the_terminal(self, ask, project):
        names = ("::error::a\x1b[31m", "b\n::error::c")
        for name in names:
            write_results(project / f"{names.index(name)}.json", replace(night(40), session=name))
        for _ in range(2):
            lines = ask("--import", "0.json", "1.json").splitlines()
            assert len(lines) == 2
            assert all(line.isprintable() for line in lines)

    def test_a_bad_file_adds_nothing(self, ask, project):
        write_results(project / "a.json", night(40))
        (project / "bad.json").write_text("{}")
        ask("--import", "a.json", "bad.json", status=2)
        assert "night-040" not in ask()

    def test_fail_without_changes_is_refused(self, ask):
        assert "--fail goes with --changes" in ask("--fail", status=2)


def test_help_imports_nothing_heavy():
    code = "import sys, pytest_accel.cli; sys.exit(bool({'sqlite3', 'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("column", "value", "named"),
    [
        ("sessions.facts", "x'00ff'", "sessions"),
        ("sessions.facts", "CAST(x'ff' AS TEXT)", "UTF-8"),
        ("sessions.facts", f"'{'[' * 3000}'", "nested too deep"),
        ("sessions.document", "5", "is damaged"),
        ("points.platform", "x'00ff'", "points"),
        ("points.key", "x'00ff'", "points"),
        ("points.content", "'{\"session\": 1e300}'", "points"),
        ("points.content", "json_set(content, '$.step_times_s', json('[0]'))", "step_times_s"),
        ("points.content", "json_set(content, '$.work_per_step', -1)", "work_per_step"),
    ],
)
def test_column_of_a_wrong_type_is_one_error(project, capsys, column, value, named):
    table, name = column.split(".")
    with closing(sqlite3.connect(".accel/history.sqlite")) as connection, connection:
        connection.execute(f"UPDATE {table} SET {name} = {value}")
    commands = (["history"], ["history", "test"], ["history", "--changes"], ["report", "-o", "report.html"])
    assert 2 in [cli.main(command) for command in commands]
    assert all(named in each for each in capsys.readouterr().err.split("pytest-accel ")[1:])
