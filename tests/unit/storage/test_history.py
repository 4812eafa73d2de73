"""The history: two writers lose nothing, kill -9 costs at most its own session, and every fault has one clear error."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sqlite3
import time
import tracemalloc
import zlib
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_accel.stats.environment import Change, Environment
from pytest_accel.stats.results import Ending, ReferenceFigure, Result, ScalingFigure, SessionResults
from pytest_accel.stats.run import Run
from pytest_accel.stats.verdict import Estimate, Outcome, Verdict
from pytest_accel.storage import history_file
from pytest_accel.storage.history import History, HistoryError, belongs_to_series

fork = multiprocessing.get_context("fork")  # children share the imported modules: dozens start in a second
NOBODY = 65534
BEGIN = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
H200 = Environment(identity={"device_name": "NVIDIA H200"}, context={"torch": "2.10.0"})
UPGRADED = Environment(identity={"device_name": "NVIDIA H200"}, context={"torch": "2.11.0"})
KEY = "bench_suites/test_cnn.py::test_training[resnet50]"


def run(step_time_s=0.04, *, session="s0", environment=H200, **more) -> Run:
    return Run(
        session=session,
        rounds_s=(step_time_s,) * 6,
        steps_per_round=10,
        environment=environment.key,
        **more,
    )


def result(key=KEY, *, runs=None, environment=H200, **more) -> Result:
    facts = {
        "benchmark": key,
        "suite": "cnn",
        "platform": "h200",
        "disk_name": "h200",
        "status": Outcome.OK,
        "key": key,
        "unit": "images",
        "work_per_step": 256.0,
        "runs": (run(environment=environment),) if runs is None else runs,
        "environment": environment.key,
    }
    return Result(**facts | more)


def session(night=0, *results, name="", **more) -> SessionResults:
    return SessionResults(
        session=name or f"s{night}",
        at=(BEGIN + timedelta(days=night)).isoformat(),
        duration_s=12.5,
        exit_status=0,
        version="0.1.0",
        environments={H200.key: H200, UPGRADED.key: UPGRADED},
        results=results or (result(),),
        **more,
    )


def bulky(night: int, benchmarks=40) -> SessionResults:
    """One that needs many pages, and does not compress well."""
    # 40 x 6 digits that differ: about 50 KiB of document.
    return session(
        night,
        *(
            result(
                f"{KEY}-{number}",
                runs=tuple(run(0.04 + math.sin(night * 1000 + number + each) / 100) for each in range(5)),
                details=(os.urandom(400).hex(),),
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


class TestSessions:
    def test_what_was_appended_comes_back_whole(self, history):
        kept = session(0, result(), result("t.py::test_b", runs=(), status=Ending.SKIPPED, text="needs 4"))
        assert history.append(kept)
        assert history.session("s0") == kept
        assert history.latest() == kept

    def test_the_newest_session_comes_first_whenever_it_was_written(self, history):
        for night in (1, 3, 0, 2):
            history.append(session(night))
        assert names(history) == ["s3", "s2", "s1", "s0"]
        assert [each.session for each in history.sessions(limit=2)] == ["s3", "s2"]
        assert history.latest().session == "s3"

    def test_a_beginning_of_the_id_is_enough_where_it_is_unambiguous(self, history):
        history.append(session(0, name="20260301T020000Z-aaaa"))
        history.append(session(1, name="20260302T020000Z-bbbb"))
        assert history.session("20260302").session.endswith("bbbb")
        with pytest.raises(HistoryError, match=r"begins 2 sessions: .*bbbb, .*aaaa"):
            history.session("2026")
        with pytest.raises(HistoryError, match=r"no session 'x' is here\n.*history` lists"):
            history.session("x")

    def test_a_session_is_kept_once(self, history):
        assert history.append(session(0))
        assert not history.append(session(0))
        assert len(history.series(KEY, "h200")) == 1
        with pytest.raises(HistoryError, match="here already, with other results"):
            history.append(session(0, result(work_per_step=512.0)))
        assert history.latest() == session(0)

    @pytest.mark.parametrize(
        ("bad", "words"),
        [
            (session(0, result(runs=(run(loss=math.inf),))), "not a finite number"),
            (session(0, result(environment=Environment(identity={}, context={}))), "not among"),
            (session(0, result(configuration={"model": object()})), "not JSON serializable"),
            (replace(session(0), at="yesterday"), "not a time in UTC"),
        ],
    )
    def test_what_could_not_be_read_back_is_never_written(self, history, bad, words):
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
    def test_a_point_is_what_a_session_measured(self, history):
        runs = (
            run(0.05),
            run(0.04, metrics={"mfu": 0.3}, peak_memory_bytes=7),
            run(0.03, metrics={"mfu": 0.4}),
        )
        verdict = Verdict(
            outcome=Outcome.REGRESSED, tolerance=0.05, slowdown=Estimate(point=0.071, low=0.05, high=0.09)
        )
        regressed = result(runs=runs, status=Outcome.REGRESSED, verdicts=(verdict,))
        history.append(session(0, regressed, revision="abc", host="node-7"))
        (point,) = history.series(KEY, "h200")
        assert [each.step_time_s for each in point.runs] == [each.step_time_s for each in runs]
        assert point.step_time_s == pytest.approx(regressed.step_time_s)
        assert point.throughput == pytest.approx(regressed.throughput)
        assert (point.session, point.revision, point.host) == ("s0", "abc", "node-7")
        assert (point.status, point.loss, point.unit) == ("regressed", 0.071, "images")
        assert [each.metrics for each in point.runs] == [{}, {"mfu": 0.3}, {"mfu": 0.4}]
        assert [each.peak_memory_bytes for each in point.runs] == [None, 7, None]
        assert point.metrics == {"mfu": 0.4}
        assert history.environment(point.environment) == H200
        assert history.environment("unheard-of") is None

    def test_oldest_first_and_limited_to_the_newest(self, history):
        for night in (2, 0, 3, 1):
            history.append(session(night))
        assert [point.session for point in history.series(KEY, "h200")] == ["s0", "s1", "s2", "s3"]
        assert [point.session for point in history.series(KEY, "h200", limit=2)] == ["s2", "s3"]

    def test_platforms_and_keys_are_apart(self, history):
        history.append(session(0, result(), result(disk_name="a100-sxm4-80gb"), result(KEY + " (data)")))
        assert len(history.series(KEY, "h200")) == 1
        assert len(history.series(KEY, "a100-sxm4-80gb")) == 1
        assert history.series(KEY, "a100") == ()
        assert history.series("t.py::test_other", "h200") == ()
        assert [(each.platform, each.key) for each in history.benchmarks()] == [
            ("a100-sxm4-80gb", KEY),
            ("h200", KEY),
            ("h200", KEY + " (data)"),
        ]

    @pytest.mark.parametrize(
        "outside",
        [
            result(status=Outcome.INVALID),
            result(status=Ending.NOT_MEASURED),
            result(status=Ending.FAILED),
            result(runs=(run(metrics={"slowdown_felt": 0.1}),)),
            result(runs=(run(), run(metrics={"slowdown_felt": 0.0}))),
        ],
        ids=["invalid", "not told", "failed", "slowed", "partly slowed"],
    )
    def test_a_run_that_says_nothing_of_the_speed_is_kept_but_in_no_series(self, history, outside):
        history.append(session(0))
        history.append(session(1, outside))
        assert [point.session for point in history.series(KEY, "h200")] == ["s0"]
        assert len(history.benchmarks()) == 1
        assert history.session("s1").results == (outside,)

    @pytest.mark.parametrize(
        "status", [Outcome.NO_BASELINE, Outcome.STALE_BASELINE, Ending.RECORDED, Outcome.IMPROVED]
    )
    def test_a_valid_run_is_in_the_series_whatever_the_gate_says(self, history, status):
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

    def test_a_writer_that_waits_too_long_says_so(self, history):
        history.append(session(0))
        with closing(sqlite3.connect(history.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(HistoryError, match=r"other processes have been writing.*\n.*do it again"):
                History(history.path, lock_timeout_s=0.05).append(session(1))
            assert names(history) == ["s0"]  # readers need not wait for it
        history.append(session(1))
        assert names(history) == ["s1", "s0"]

    def test_a_reader_writes_nothing(self, history):
        history.append(session(0))
        before, files = history.path.read_bytes(), sorted(history.path.parent.iterdir())
        history.sessions()
        history.series(KEY, "h200")
        history.latest()
        assert history.path.read_bytes() == before
        assert sorted(history.path.parent.iterdir()) == files == [history.path]

    def test_no_write_ahead_log_which_network_file_systems_cannot_share(self, history):
        history.append(session(0))
        with closing(sqlite3.connect(history.path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        history.append(session(1))
        with closing(sqlite3.connect(history.path)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


class TestKilledWriters:
    """SIGKILL, at many points: before, inside and after the transaction, with and without pages on the disk already."""

    def killed_inside(self, history, steps, monkeypatch) -> None:
        """A child that appends s1 is killed after so many hundred instructions of SQLite's machine."""
        connect = history_file._connect

        def connect_and_die(path, mode, timeout_s):
            connection = connect(path, mode, timeout_s)
            connection.execute("PRAGMA cache_size = 10")  # pages reach the file long before the commit
            count = iter(range(steps))
            connection.set_progress_handler(
                lambda: os.kill(os.getpid(), signal.SIGKILL) if next(count, None) is None else 0, 100
            )
            return connection

        def write():
            history_file._connect = connect_and_die
            history.append(bulky(1))

        child = in_child(write)
        child.join(60)
        self.exit_codes.append(child.exitcode)

    @pytest.fixture(autouse=True)
    def _counted(self):
        self.exit_codes: list[int] = []

    def test_at_most_its_own_session_is_lost(self, history, monkeypatch):
        history.append(bulky(0))
        whole, journals = history.session("s0"), 0
        for steps in range(0, 200, 8):
            self.killed_inside(history, steps, monkeypatch)
            journals += Path(f"{history.path}-journal").exists()
            assert history.session("s0") == whole
            assert [point.session for point in history.series(f"{KEY}-7", "h200")] == names(history)[::-1]
            if "s1" in names(history):
                history.prune(keep_days=0.5, now=BEGIN + timedelta(days=2), dry_run=True)
                break
        assert -signal.SIGKILL in self.exit_codes
        assert journals, "no kill left pages behind that had to be undone"
        assert history.append(bulky(2))
        with closing(sqlite3.connect(history.path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]

    def test_at_any_moment(self, history):
        """Also between the statements, and in the middle of the commit."""
        history.append(bulky(0))
        for number in range(1, 25):
            child = in_child(history.append, bulky(number, 10))
            time.sleep(number * 0.0007)
            os.kill(child.pid, signal.SIGKILL)
            child.join(60)
            kept = names(history)
            assert kept[-1] == "s0"
            for name in kept[:-1]:
                assert len(history.session(name).results) == 10
        assert history.append(session(99))

    def test_a_reader_that_may_not_undo_it_says_who_may(self, history, monkeypatch):
        history.append(bulky(0))
        for steps in range(40, 400, 10):
            self.killed_inside(history, steps, monkeypatch)
            if Path(f"{history.path}-journal").exists():
                break
            assert names(history) == ["s0"]
        history.path.chmod(0o444)
        open_the_way_to(history.path.parent)
        Path(f"{history.path}-journal").chmod(0o444)
        with AsNobody(), pytest.raises(HistoryError, match=r"a writer was killed here|cannot be opened"):
            history.sessions()
        history.path.chmod(0o644)
        assert names(history) == ["s0"]


class AsNobody:
    def __enter__(self):
        if os.geteuid() != 0:
            pytest.skip("only root can become another user")
        os.seteuid(NOBODY)

    def __exit__(self, *exception):
        os.seteuid(0)


def open_the_way_to(folder: Path) -> None:
    for each in (folder, *folder.parents):
        if each != Path("/tmp") and each.stat().st_mode & 0o011 != 0o011:
            each.chmod(each.stat().st_mode | 0o011)


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

    def test_a_text_file(self, history):
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

    def test_a_damaged_document_costs_that_document(self, history):
        history.append(session(0))
        history.append(session(1))
        with closing(sqlite3.connect(history.path)) as connection, connection:
            connection.execute("UPDATE documents SET content = zeroblob(10) WHERE session = 1")
        with pytest.raises(HistoryError, match="the document of session s0 is damaged"):
            history.session("s0")
        assert history.latest() == session(1)
        assert len(history.series(KEY, "h200")) == 2

    def test_what_is_whole_of_a_damaged_file_can_be_saved(self, history, tmp_path):
        for night in range(12):
            history.append(bulky(night, 6))
        size = history.path.stat().st_size
        with history.path.open("r+b") as stream:
            stream.seek(size // 2 // 4096 * 4096)
            stream.write(b"\xa5" * 8192)
        saved = list(history.salvaged())
        assert len(saved) == 12
        assert 1 <= saved.count(None) <= 6
        new = History(tmp_path / "new.sqlite")
        assert all(new.append(each) for each in saved if each)
        assert new.latest().session == "s11"

    @pytest.mark.parametrize("table", ["sessions", "documents"])
    def test_what_one_list_of_sessions_lost_another_has(self, history, table):
        for night in range(4):
            history.append(session(night))
        with closing(sqlite3.connect(history.path)) as connection:
            (page,) = connection.execute(
                "SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)
            ).fetchone()
        with history.path.open("r+b") as stream:
            stream.seek((page - 1) * 4096)
            stream.write(b"\xa5" * 4096)
        expected = [session(night) for night in range(4)] if table == "sessions" else [None] * 4
        assert list(history.salvaged()) == expected

    def test_a_document_is_not_unpacked_without_bounds(self, history, monkeypatch):
        history.append(session(0))
        history.append(session(1))
        monkeypatch.setattr("pytest_accel.storage.history.MAX_BYTES", 2**20)
        packed = zlib.compress(b" " * 2**26, 1)
        with closing(sqlite3.connect(history.path)) as connection, connection:
            connection.execute("UPDATE documents SET content = ? WHERE session = 1", (packed,))
        tracemalloc.start()
        with pytest.raises(HistoryError, match="has more than 1048576 bytes"):
            history.session("s0")
        assert list(history.salvaged()) == [None, session(1)]
        assert tracemalloc.get_traced_memory()[1] < 2**25
        tracemalloc.stop()

    def test_results_too_large_to_be_read_back_are_not_written(self, history, monkeypatch):
        monkeypatch.setattr("pytest_accel.storage.history.MAX_BYTES", 100)
        with pytest.raises(HistoryError, match="at most 100 bytes can be read back"):
            history.append(session(0))
        assert not history.path.exists()

    def test_another_programs_database(self, history):
        history.path.parent.mkdir()
        with closing(sqlite3.connect(history.path)) as connection:
            connection.execute("CREATE TABLE bookmarks (url TEXT)")
        error = self.refused(history, "an SQLite file, but no history")
        assert "untouched" in error.remedy

    def test_a_newer_schema(self, history):
        history.append(session(0))
        with closing(sqlite3.connect(history.path)) as connection:
            connection.execute("PRAGMA user_version = 7")
        error = self.refused(history, r"its schema 7 is newer than this pytest-accel knows \(1\)")
        assert "pip install --upgrade pytest-accel" in error.remedy

    def test_nothing_there(self, history):
        with pytest.raises(HistoryError, match=r"there is no history here yet\n.*history --import"):
            history.series(KEY, "h200")
        with pytest.raises(HistoryError, match="there is no history here yet"):
            history.prune(keep_sessions=1)
        assert not history.path.exists()

    def test_a_folder_and_a_fifo(self, history):
        history.path.mkdir(parents=True)
        self.refused(history, "is a folder")
        history.path.rmdir()
        os.mkfifo(history.path)
        self.refused(history, "is not a regular file")

    def test_a_folder_that_may_not_be_written(self, history):
        history.append(session(0))
        open_the_way_to(history.path.parent)
        with AsNobody():
            assert names(history) == ["s0"]  # reading needs no more than reading
            with pytest.raises(HistoryError, match=r"cannot be opened or written.*\n.*writable"):
                history.append(session(1))
        assert names(history) == ["s0"]

    def test_a_full_disk(self, history, monkeypatch):
        history.append(session(0))
        connect = history_file._connect

        def on_a_full_disk(*arguments):
            connection = connect(*arguments)
            connection.execute("PRAGMA max_page_count = 1")  # never below what it has
            return connection

        monkeypatch.setattr(history_file, "_connect", on_a_full_disk)
        with pytest.raises(
            HistoryError, match=r"the disk is full\nMake room.*what was stored before is intact"
        ):
            history.append(bulky(1))
        monkeypatch.undo()
        assert names(history) == ["s0"]
        assert history.append(bulky(1))


class TestMigration:
    STEP = ("ALTER TABLE sessions ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm'",)

    def version(self, history) -> int:
        with closing(sqlite3.connect(history.path)) as connection:
            return connection.execute("PRAGMA user_version").fetchone()[0]

    def test_an_older_file_is_taken_along_by_the_first_who_opens_it(self, history, monkeypatch):
        history.append(session(0))
        assert self.version(history) == 1
        monkeypatch.setattr(history_file, "MIGRATIONS", (*history_file.MIGRATIONS, self.STEP))
        assert history.latest() == session(0)
        assert self.version(history) == 2
        history.append(session(1))
        assert names(history) == ["s1", "s0"]

    def test_a_step_that_fails_leaves_the_file_as_it_was(self, history, monkeypatch):
        history.append(session(0))
        bad = (*self.STEP, "CREATE TABLE sessions (a)")
        with monkeypatch.context() as patched:
            patched.setattr(history_file, "MIGRATIONS", (*history_file.MIGRATIONS, bad))
            with pytest.raises(HistoryError, match="already exists"):
                history.append(session(1))
        assert self.version(history) == 1
        assert names(history) == ["s0"]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> bytes:
    """The file of ten sessions."""
    history = History(tmp_path_factory.mktemp("ten") / "history.sqlite")
    for night in range(10):
        history.append(bulky(night, 20))
    return history.path.read_bytes()


class TestRetention:
    @pytest.fixture
    def ten(self, history, written) -> History:
        history.path.parent.mkdir()
        history.path.write_bytes(written)
        return history

    def test_by_count(self, ten):
        pruned = ten.prune(keep_sessions=3)
        assert pruned.sessions == tuple(f"s{night}" for night in range(7))
        assert pruned.left == 3
        assert names(ten) == ["s9", "s8", "s7"]
        assert [point.session for point in ten.series(f"{KEY}-1", "h200")] == ["s7", "s8", "s9"]

    def test_by_age(self, ten):
        assert ten.prune(keep_days=2, now=BEGIN + timedelta(days=9, hours=1)).left == 2
        assert names(ten) == ["s9", "s8"]

    def test_by_bytes_the_file_itself_shrinks(self, ten):
        size = ten.path.stat().st_size
        pruned = ten.prune(max_bytes=size // 2)
        assert pruned.bytes_before == size
        assert ten.path.stat().st_size == pruned.bytes_after <= size // 2
        assert names(ten)[0] == "s9"
        assert 3 <= pruned.left <= 5
        assert ten.prune(max_bytes=1).left == 1, "the newest stays"

    def test_a_dry_run_says_the_same_and_takes_nothing(self, ten):
        before = ten.path.read_bytes()
        said = ten.prune(max_bytes=len(before) // 3, dry_run=True)
        assert ten.path.read_bytes() == before
        assert ten.prune(max_bytes=len(before) // 3) == said

    def test_what_nobody_refers_to_any_more_goes_too(self, history):
        history.append(session(0, result("t.py::test_gone")))
        history.append(session(1, result(environment=UPGRADED)))
        history.prune(keep_sessions=1)
        assert [each.key for each in history.benchmarks()] == [KEY]
        assert history.environment(H200.key) is None
        assert history.environment(UPGRADED.key) == UPGRADED


class TestForeignColumns:
    """SQLite keeps any type in any column; a file may have come from elsewhere."""

    @pytest.mark.parametrize("value", ["'x'", "x'00ff'", "1e300", "-1", "0"])
    @pytest.mark.parametrize(
        ("table", "column"),
        [
            ("sessions", "at"),
            ("sessions", "duration_s"),
            ("sessions", "benchmarks"),
            ("results", "loss"),
            ("results", "work_per_step"),
            ("results", "unit"),
            ("runs", "step_time_s"),
            ("runs", "peak_memory_bytes"),
            ("runs", "metrics"),
            ("benchmarks", "key"),
            ("environments", "content"),
        ],
    )
    def test_column_of_a_wrong_type_is_one_error(self, history, table, column, value):
        history.append(session(0))
        with closing(sqlite3.connect(history.path)) as connection:
            connection.execute(f"UPDATE {table} SET {column} = {value}")
            connection.commit()
        for read in (
            history.sessions,
            history.benchmarks,
            lambda: [point.throughput for point in history.series(KEY, "h200")],
            lambda: history.environment(H200.key),
        ):
            with suppress(HistoryError):
                read()


# --- what was appended comes back equal -------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
words = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)
figures = st.floats(1e-8, 9e6)
scalars = st.one_of(st.none(), st.booleans(), st.integers(-(10**9), 10**9), figures, texts)
runs_ = st.builds(
    Run,
    session=words,
    rounds_s=st.lists(figures, min_size=1, max_size=8).map(tuple),
    steps_per_round=st.integers(1, 100),
    environment=st.sampled_from([H200.key, UPGRADED.key]),
    first_step_s=st.none() | figures,
    peak_memory_bytes=st.none() | st.integers(0, 2**40),
    loss=st.none() | figures,
    metrics=st.dictionaries(words, figures, max_size=3),
)
verdicts = st.builds(
    Verdict,
    outcome=st.sampled_from(Outcome),
    tolerance=st.floats(0.01, 0.9),
    slowdown=st.none() | st.builds(Estimate, point=figures, low=figures, high=figures),
    runs=st.integers(0, 5),
    wants_another_run=st.booleans(),
    reason=texts,
)
results_ = st.builds(
    Result,
    benchmark=words,
    suite=texts,
    platform=words,
    disk_name=words,
    status=st.sampled_from([*Outcome, *Ending]),
    failed=st.booleans(),
    text=texts,
    details=st.lists(texts, max_size=2).map(tuple),
    key=texts,
    unit=texts,
    work_per_step=figures,
    steady=st.booleans(),
    tolerance=st.none() | st.floats(0.01, 0.9),
    configuration=st.dictionaries(words, scalars, max_size=3),
    runs=st.lists(runs_, max_size=3).map(tuple),
    verdicts=st.lists(verdicts, max_size=2).map(tuple),
    environment=st.just(H200.key),
    changes=st.lists(st.builds(Change, name=words, old=texts, new=st.none() | texts), max_size=2).map(tuple),
    scaling=st.none()
    | st.builds(ScalingFigure, against=words, speedup=figures, efficiency=figures, kind=words),
    references=st.lists(
        st.builds(
            ReferenceFigure, id=words, source=texts, platform=texts, metric=texts, unit=texts, value=figures
        ),
        max_size=1,
    ).map(tuple),
)


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(found=st.lists(results_, max_size=4).map(tuple), host=texts, name=words)
def test_what_was_appended_comes_back_equal(tmp_path, found, host, name):
    path = tmp_path / "history.sqlite"
    path.unlink(missing_ok=True)
    history = History(path)
    kept = session(0, *(found or (result(),)), host=host, name=name)
    history.append(kept)
    assert history.session(name) == kept
    for each in kept.results:
        key = each.key or each.benchmark
        points = history.series(key, each.disk_name)
        stored = [[run.step_time_s for run in point.runs] for point in points]
        assert ([run.step_time_s for run in each.runs] in stored) == (
            bool(each.runs) and belongs_to_series(each)
        )
