"""The history: two writers lose nothing, kill -9 costs at most its own session, and every fault has one clear error."""

import math
import multiprocessing
import os
import signal
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pytest_accel.stats.environment import Environment
from pytest_accel.stats.gate import Estimate, Outcome, Verdict
from pytest_accel.stats.results import Ending, Result, SessionResults
from pytest_accel.stats.run import Run
from pytest_accel.storage.history import History, HistoryError
from tests.support.stored import H200, KEY, as_nobody, results_of, runs
from tests.support.stored import result as stored_result

fork = multiprocessing.get_context("fork")  # children share the imported modules: dozens start in a second
BEGIN = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)


def run(step_time_s=0.04, **more) -> Run:
    return Run(session="s0", rounds_s=(step_time_s,) * 6, steps_per_round=10, environment=H200.key, **more)


def result(key=KEY, *, measured=None, status=Outcome.OK, **more) -> Result:
    measured = (run(),) if measured is None else measured
    return stored_result(key, measured=measured, environment=H200.key, status=status, **more)


def session(night=0, *results, name="", **more) -> SessionResults:
    at = (BEGIN + timedelta(days=night)).isoformat()
    return replace(results_of(*(results or (result(),))), session=name or f"s{night}", at=at, **more)


def bulky(night: int, benchmarks=40) -> SessionResults:
    """One that needs many pages, and does not compress well: about 50 KiB of document."""
    return session(
        night,
        *(
            result(
                f"{KEY}-{number}",
                measured=tuple(run(0.04 + math.sin(night * 1000 + number + each) / 100) for each in range(5)),
                traceback=(os.urandom(400).hex(),),
            )
            for number in range(benchmarks)
        ),
    )


@pytest.fixture
def history(tmp_path) -> History:
    return History(tmp_path / ".accel" / "history.sqlite")


def names(history) -> list[str]:
    return [each.session for each in history.sessions()]


def in_child(function, *arguments) -> multiprocessing.Process:
    child = fork.Process(target=function, args=arguments)
    child.start()
    return child


def change_file(history, *statements) -> None:
    with closing(sqlite3.connect(history.path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


class TestSessions:
    def test_appended_session_comes_back_complete(self, history):
        kept = session(0, result(), result("t.py::test_b", measured=(), status=Ending.SKIPPED))
        assert history.append(kept)
        assert history.session("s0") == kept
        assert history.latest() == kept

    def test_newest_session_comes_first_whenever_it_was_written(self, history):
        for night in (1, 3, 0, 2):
            history.append(session(night))
        assert names(history) == ["s3", "s2", "s1", "s0"]
        assert [each.session for each in history.sessions(limit=2)] == ["s3", "s2"]
        assert history.latest().session == "s3"
        assert [point.session for point in history.series(KEY, "h200")] == ["s0", "s1", "s2", "s3"]
        assert [point.session for point in history.series(KEY, "h200", limit=2)] == ["s2", "s3"]

    def test_unambiguous_beginning_of_the_id_is_enough(self, history):
        for night, name in enumerate(("20260301T020000Z-aaaa", "20260302T020000Z-bbbb", "20260302T02")):
            history.append(session(night, name=name))
        assert history.session("20260302T020").session.endswith("bbbb")
        assert history.session("20260302T02").session == "20260302T02"
        with pytest.raises(HistoryError, match=r"begins several sessions: .*bbbb, .*aaaa"):
            history.session("2026")
        with pytest.raises(
            HistoryError,
            match=r"no session 'x' is here\n.*history` lists them; write an id, or so much of its beginning",
        ):
            history.session("x")

    def test_session_is_kept_once(self, history):
        assert history.append(session(0))
        assert not history.append(session(0))
        assert len(history.series(KEY, "h200")) == 1
        assert history.latest() == session(0)

    @pytest.mark.parametrize(
        ("bad", "words"),
        [
            (session(0, result(measured=(run(loss=math.inf),))), "not a finite number"),
            (
                session(0, result(measured=runs(environment=Environment(identity={}, context={})))),
                "not among",
            ),
            (session(0, replace(result(), configuration={"model": object()})), "not JSON serializable"),
            (replace(session(0), at="yesterday"), "not a time in UTC"),
        ],
    )
    def test_values_that_could_not_be_read_back_are_never_written(self, history, bad, words):
        history.append(session(1))
        with pytest.raises(HistoryError, match=words) as caught:
            history.append(bad)
        assert "Nothing was written" in caught.value.remedy
        assert names(history) == ["s1"]

    @pytest.mark.parametrize("name", ["a b.sqlite", "what?mode=memory", "x#y", "50%41", "é.sqlite"])
    def test_any_name_of_a_file_will_do(self, tmp_path, name):
        History(tmp_path / name).append(session(0))
        assert [each.name for each in tmp_path.iterdir()] == [name]
        assert names(History(tmp_path / name)) == ["s0"]


class TestSeries:
    def test_point_is_what_a_session_measured(self, history):
        measured = (run(0.05), run(0.04), run(0.03, metrics={"mfu": 0.4}, peak_memory_bytes=7))
        verdict = Verdict(
            outcome=Outcome.REGRESSED, tolerance=0.05, slowdown=Estimate(point=0.071, low=0.05, high=0.09)
        )
        regressed = result(measured=measured, status=Outcome.REGRESSED, verdicts=(verdict,))
        history.append(session(0, regressed, revision="abc", host="node-7"))
        (point,) = history.series(KEY, "h200")
        assert point.step_times_s == tuple(each.step_time_s for each in measured)
        assert point.throughput == pytest.approx(regressed.throughput)
        assert (point.session, point.revision, point.host) == ("s0", "abc", "node-7")
        assert (point.status, point.loss, point.unit) == ("regressed", 0.071, "images")
        assert point.metrics == {"mfu": 0.4, "peak_memory_bytes": 7}
        assert point.environment == H200.key

    def test_platforms_and_keys_are_apart(self, history):
        history.append(session(0, result(), result(platform="a100-sxm4-80gb"), result(KEY + " (data)")))
        assert len(history.series(KEY, "h200")) == 1
        assert history.series(KEY, "a100") == ()
        assert history.benchmarks() == (("a100-sxm4-80gb", KEY), ("h200", KEY), ("h200", KEY + " (data)"))

    @pytest.mark.parametrize(
        "outside",
        [
            result(status=Outcome.INVALID),
            result(status=Ending.NOT_MEASURED),
            result(status=Ending.FAILED),
            result(measured=(run(), run(metrics={"slowdown_felt": 0.1}))),
        ],
        ids=["invalid", "not measured", "failed", "slowed"],
    )
    def test_run_that_says_nothing_about_speed_is_kept_but_in_no_series(self, history, outside):
        history.append(session(0))
        history.append(session(1, outside))
        assert [point.session for point in history.series(KEY, "h200")] == ["s0"]
        assert history.session("s1").results == (outside,)

    @pytest.mark.parametrize(
        "status", [Outcome.NO_BASELINE, Outcome.STALE_BASELINE, Ending.RECORDED, Outcome.IMPROVED]
    )
    def test_valid_run_is_in_the_series_whatever_the_gate_says(self, history, status):
        history.append(session(0, result(status=status)))
        assert len(history.series(KEY, "h200")) == 1


class TestWriters:
    def test_processes_that_write_at_once_lose_nothing(self, history):
        def write(first):
            for night in range(first, first + 8):
                History(history.path).append(bulky(night, 5))

        children = [in_child(write, 8 * number) for number in range(4)]  # the file does not exist yet, either
        for child in children:
            child.join(60)
        assert [child.exitcode for child in children] == [0] * 4
        assert sorted(names(history)) == sorted(f"s{night}" for night in range(32))
        assert len(history.series(f"{KEY}-0", "h200")) == 32

    def test_writer_that_waits_too_long_says_so(self, history):
        history.append(session(0))
        with closing(sqlite3.connect(history.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(HistoryError, match=r"database is locked\n.*do it again"):
                History(history.path, lock_timeout_s=0.05).append(session(1))
            assert names(history) == ["s0"]  # readers need not wait for it
        history.append(session(1))
        assert names(history) == ["s1", "s0"]

    def test_reader_writes_nothing(self, history):
        history.append(session(0))
        before = history.path.read_bytes()
        history.series(KEY, "h200")
        history.latest()
        assert history.path.read_bytes() == before
        assert list(history.path.parent.iterdir()) == [history.path]

    def test_no_write_ahead_log_which_network_file_systems_cannot_share(self, history):
        history.append(session(0))
        change_file(history, "PRAGMA journal_mode = WAL")
        history.append(session(1))
        with closing(sqlite3.connect(history.path)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


class TestKilledWriters:
    """SIGKILL, at many points: before, inside and after the transaction, with and without pages on the disk already."""

    def killed_inside(self, history, steps) -> int:
        """Append s1 in a child that is killed after so many hundred instructions of SQLite's machine."""
        connect = History._connect

        def connect_and_die(self, mode):
            connection = connect(self, mode)
            connection.execute("PRAGMA cache_size = 10")  # pages reach the file long before the commit
            count = iter(range(steps))
            connection.set_progress_handler(
                lambda: os.kill(os.getpid(), signal.SIGKILL) if next(count, None) is None else 0, 100
            )
            return connection

        def write():
            History._connect = connect_and_die
            history.append(bulky(1))

        child = in_child(write)
        child.join(60)
        return child.exitcode

    def test_at_most_its_own_session_is_lost(self, history):
        history.append(bulky(0))
        whole, journals, exit_codes = history.session("s0"), 0, set()
        for steps in range(0, 200, 8):
            exit_codes.add(self.killed_inside(history, steps))
            journals += Path(f"{history.path}-journal").exists()
            assert history.session("s0") == whole
            assert [point.session for point in history.series(f"{KEY}-7", "h200")] == names(history)[::-1]
            if "s1" in names(history):
                break
        assert -signal.SIGKILL in exit_codes
        assert journals, "no kill left pages behind that had to be undone"
        assert history.append(bulky(2))
        with closing(sqlite3.connect(history.path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


class TestBadFiles:
    def refused(self, history, words) -> HistoryError:
        """Both by a reader and by a writer, and nothing is touched."""
        before = history.path.read_bytes() if history.path.is_file() else None
        for use in (history.sessions, lambda: history.append(session(9))):
            with pytest.raises(HistoryError, match=words) as caught:
                use()
            assert caught.value.file == str(history.path)
        assert before is None or history.path.read_bytes() == before
        return caught.value

    def test_text_file(self, history):
        history.path.parent.mkdir()
        history.path.write_text("no database\n" * 1000)
        error = self.refused(history, "is damaged, or no history at all")
        assert f"mv {history.path} {history.path}.damaged" in error.remedy

    def test_pages_of_rubbish(self, history):
        for night in range(4):
            history.append(bulky(night))
        with history.path.open("r+b") as stream:
            stream.seek(4096)
            stream.write(b"\xa5" * (history.path.stat().st_size - 4096))
        self.refused(history, "is damaged")

    def test_damaged_document_costs_that_document(self, history):
        history.append(session(0))
        history.append(session(1))
        change_file(history, "UPDATE sessions SET document = zeroblob(10) WHERE session = 's0'")
        with pytest.raises(HistoryError, match="the document of session s0 is damaged"):
            history.session("s0")
        assert history.latest() == session(1)
        assert len(history.series(KEY, "h200")) == 2

    def test_another_schema(self, history):
        history.append(session(0))
        change_file(history, "PRAGMA user_version = 7")
        assert "history --import" in self.refused(history, "is no history of the schema").remedy

    def test_nothing_there(self, history):
        with pytest.raises(HistoryError, match=r"there is no history here yet\n.*history --import"):
            history.series(KEY, "h200")
        assert not history.path.exists()

    def test_folder_that_may_not_be_written(self, history):
        history.append(session(0))
        with as_nobody(history.path.parent):
            assert names(history) == ["s0"]  # reading needs no more than reading
            with pytest.raises(HistoryError, match=r"cannot be read or written.*\n.*writable"):
                history.append(session(1))
        assert names(history) == ["s0"]

    def test_full_disk(self, history, monkeypatch):
        history.append(session(0))
        connect = History._connect

        def on_a_full_disk(self, mode):
            connection = connect(self, mode)
            connection.execute("PRAGMA max_page_count = 1")  # never below what it has
            return connection

        monkeypatch.setattr(History, "_connect", on_a_full_disk)
        with pytest.raises(HistoryError, match=r"disk is full\nMake room.*stored before is intact"):
            history.append(bulky(1))
        monkeypatch.undo()
        assert names(history) == ["s0"]
        assert history.append(bulky(1))
