"""Baselines on disk: two writers lose nothing, and neither a full disk nor kill -9 harms a file."""

import dataclasses
import errno
import fcntl
import multiprocessing
import os
import resource
import signal
import stat
from pathlib import Path

import pytest

from pytest_accel.stats.run import Run
from pytest_accel.storage.baselines import (
    MAX_RUNS,
    BaselineEntry,
    BaselineError,
    BaselineStore,
    LedgerEntry,
    parse,
)
from tests.support.stored import CAPPED, H200, UPGRADED, as_nobody

# Forked children share the imported modules: hundreds of writers start in a second.
fork = multiprocessing.get_context("fork")


def entry(
    *, runs=1, session="s1", environment=H200, batch_size=32, rounds=6, tolerance=None, action="record"
) -> BaselineEntry:
    run = Run(
        session=session,
        rounds_s=tuple(0.01 + i * 1e-5 for i in range(rounds)),
        steps_per_round=10,
        environment=environment.key,
    )
    line = LedgerEntry(
        at="2026-01-31T09:30:00+00:00", action=action, reason="because", runs=runs, session=session
    )
    return BaselineEntry(
        configuration={"batch_size": batch_size},
        work_per_step=batch_size,
        unit="images",
        tolerance=tolerance,
        runs=(run,) * runs,
        ledger=(line,),
    )


@pytest.fixture
def store(tmp_path) -> BaselineStore:
    return BaselineStore(tmp_path / "baselines")


def append(store, node_id="test_a", environments=(H200,), **changes):
    return store.record("h200", "images", node_id, entry(**changes), environments)


def replace(store, node_id="test_a", environments=(H200,), **changes):
    new = entry(action="update", **changes)
    return store.record("h200", "images", node_id, new, environments, replace=True)


def read(store):
    return store.read("h200", "images")


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


class TestAppend:
    def test_what_was_appended_is_read(self, store):
        written = append(store, runs=5)
        assert read(store) == written
        assert read(store).environments == {H200.key: H200}
        assert names(store.root / "h200") == ["images.json"]

    def test_runs_and_ledger_grow(self, store):
        append(store, runs=5, session="s1")
        append(store, runs=5, session="s2")
        stored = read(store).benchmarks["test_a"]
        assert [run.session for run in stored.runs] == ["s1"] * 5 + ["s2"] * 5
        assert [line.session for line in stored.ledger] == ["s1", "s2"]

    def test_the_tolerance_stays_frozen_and_may_be_given_later(self, store):
        append(store)
        append(store, tolerance=0.03)
        append(store, tolerance=0.5)
        assert read(store).benchmarks["test_a"].tolerance == 0.03

    def test_the_eleventh_run_is_refused_and_nothing_is_dropped(self, store):
        append(store, runs=8)
        with pytest.raises(BaselineError, match="has 8 runs and would get 3 more") as caught:
            append(store, runs=3)
        assert "--accel-record=2" in caught.value.remedy
        assert "--accel-update --accel-reason" in caught.value.remedy
        assert len(read(store).benchmarks["test_a"].runs) == 8

    def test_another_configuration_is_refused_as_stale(self, store):
        append(store)
        with pytest.raises(BaselineError, match="stale") as caught:
            append(store, batch_size=64)
        assert caught.value.place == 'benchmarks["test_a"]'
        assert "--accel-update --accel-reason" in caught.value.remedy

    def test_runs_of_another_machine_are_refused(self, store):
        append(store)
        with pytest.raises(BaselineError, match=r"another machine \(.*power limit \(W\) 500"):
            append(store, environment=CAPPED, environments=(CAPPED,))

    @pytest.mark.parametrize(
        ("changes", "place", "words"),
        [
            ({"metrics": {"x": float("nan")}}, "metrics", "not a finite number"),
            ({"environment": "unheard-of"}, "environment", "not among"),
            ({"loss": float("inf")}, "loss", "not a finite number"),
        ],
    )
    def test_what_could_not_be_read_back_is_never_written(self, store, changes, place, words):
        before = append(store)
        bad = entry()
        bad = dataclasses.replace(bad, runs=(dataclasses.replace(bad.runs[0], **changes),))
        with pytest.raises(BaselineError) as caught:
            store.record("h200", "images", "test_b", bad, [H200])
        assert place in caught.value.place
        assert words in caught.value.problem
        assert "Nothing was written" in caught.value.remedy
        assert read(store) == before

    def test_a_configuration_that_is_no_json_is_never_written(self, store):
        bad = dataclasses.replace(entry(), configuration={"model": object()})
        with pytest.raises(BaselineError, match="not JSON serializable"):
            store.record("h200", "images", "test_a", bad, [H200])
        assert read(store) is None


class TestReplace:
    def test_runs_are_replaced_and_the_ledger_remembers(self, store):
        append(store, runs=5)
        replace(store, runs=2, session="s2", batch_size=64)
        stored = read(store).benchmarks["test_a"]
        assert [run.session for run in stored.runs] == ["s2", "s2"]
        assert stored.configuration == {"batch_size": 64}
        assert [line.action for line in stored.ledger] == ["record", "update"]

    def test_an_environment_that_no_run_uses_is_pruned(self, store):
        append(store, "test_a")
        append(store, "test_b")
        replace(store, "test_a", environment=CAPPED, environments=(CAPPED, UPGRADED))
        assert set(read(store).environments) == {H200.key, CAPPED.key}
        replace(store, "test_b", environment=CAPPED, environments=(CAPPED,))
        assert set(read(store).environments) == {CAPPED.key}

    @pytest.mark.parametrize(
        "name", ["", ".", "..", "a/b", "../x", "/etc", "a\\b", "a\0b", "a\nb", "-rf", ".x", "x" * 201]
    )
    def test_a_name_cannot_lead_out_of_the_folder(self, store, name):
        for platform, suite in ((name, "images"), ("h200", name)):
            with pytest.raises(BaselineError, match="cannot name a"):
                store.path(platform, suite)

    def test_published_references_are_no_platform(self, store):
        with pytest.raises(BaselineError, match="cannot name a platform"):
            store.path("published", "images")


def of_another_platform(path: Path) -> None:
    other = BaselineStore(path.parent.parent)
    other.record("a100", "images", "test_a", entry(), [H200])
    path.write_bytes(other.path("a100", "images").read_bytes())


# What may stand where a baseline is expected: how it gets there, what the error says, the remedy.
DISK_FAULTS = {
    "folder": (lambda path: path.mkdir(), "is no regular file", "Move it away"),
    "link to itself": (lambda path: path.symlink_to(path), "cannot be read", "Make it a file"),
    "dangling link": (lambda path: path.symlink_to("none.json"), "which does not exist", "git checkout"),
    "not UTF-8": (lambda path: path.write_bytes(b'{"platform": "\xb0"}'), "not UTF-8", "git checkout"),
    "torn": (
        lambda path: path.write_text('{"schema_version": 1, "platf'),
        "Unterminated string",
        "git checkout",
    ),
    "other platform": (of_another_platform, "'a100' in the file of 'h200'", "git checkout"),
}


class TestFaultsOnDisk:
    @pytest.mark.parametrize(("make", "words", "remedy"), DISK_FAULTS.values(), ids=DISK_FAULTS)
    def test_reading_and_writing_name_the_file_and_the_remedy(self, store, make, words, remedy):
        path = store.path("h200", "images")
        path.parent.mkdir(parents=True)
        make(path)
        before = path.lstat()
        for use in (read, append, replace):
            with pytest.raises(BaselineError) as caught:
                use(store)
            assert caught.value.file == str(path)
            assert words in caught.value.problem
            assert remedy in caught.value.remedy
        assert path.lstat().st_ino == before.st_ino
        assert path.lstat().st_mtime_ns == before.st_mtime_ns
        assert names(path.parent) == ["images.json"]

    def test_a_file_in_the_place_of_the_platform_folder(self, store):
        store.root.mkdir()
        (store.root / "h200").write_text("", encoding="utf-8")
        for use in (read, append):
            with pytest.raises(BaselineError) as caught:
                use(store)
            assert "that user" in caught.value.remedy

    def test_a_file_that_may_not_be_read_or_written(self, store):
        append(store)
        path = store.path("h200", "images")
        path.chmod(0o600)
        path.parent.chmod(0o755)
        with as_nobody(path.parent):
            with pytest.raises(BaselineError, match="cannot be read: Permission denied") as caught:
                read(store)
            assert caught.value.remedy == f"Make it a file that user {os.geteuid()} can read."
        path.chmod(0o644)
        before = path.read_bytes()
        with as_nobody(path.parent):
            with pytest.raises(BaselineError, match="cannot be written: Permission denied") as caught:
                append(store)
            assert "What was stored before is intact" in caught.value.remedy
        assert path.read_bytes() == before
        assert names(path.parent) == ["images.json"]


class TestFailingWrites:
    def assert_intact(self, store, before):
        path = store.path("h200", "images")
        assert path.read_bytes() == before
        assert names(path.parent) == ["images.json"]

    def test_a_limit_on_file_sizes_leaves_the_old_file(self, store):
        append(store)
        before = store.path("h200", "images").read_bytes()

        def write(pipe):
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
            try:
                append(store, rounds=5000)
            except BaselineError as error:
                pipe.send(error)

        here, there = fork.Pipe()
        process = fork.Process(target=write, args=(there,))
        process.start()
        assert here.poll(20)
        error = here.recv()
        process.join()
        assert "cannot be written: File too large" in error.problem
        assert error.remedy.startswith("Make room")
        self.assert_intact(store, before)

    @pytest.mark.parametrize("function", ["os.fsync", "os.fchmod", "pathlib.Path.replace"])
    @pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
    def test_an_error_at_any_step_leaves_the_old_file(self, store, monkeypatch, function, error):
        append(store)
        before = store.path("h200", "images").read_bytes()

        def fail(*args):
            raise error

        monkeypatch.setattr(function, fail)
        with pytest.raises((BaselineError, KeyboardInterrupt)):
            append(store)
        self.assert_intact(store, before)


class TestFiles:
    def test_a_new_file_follows_the_umask_and_an_old_one_keeps_its_mode(self, store):
        previous = os.umask(0o027)
        try:
            append(store)
        finally:
            os.umask(previous)
        path = store.path("h200", "images")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o664)
        append(store)
        assert stat.S_IMODE(path.stat().st_mode) == 0o664

    def test_a_link_to_shared_storage_stays_a_link(self, store, tmp_path):
        append(store)
        path = store.path("h200", "images")
        shared = tmp_path / "shared" / "h200.json"
        shared.parent.mkdir()
        path.rename(shared)
        path.symlink_to(shared)
        append(store)
        assert path.is_symlink()
        assert len(parse(shared.read_text(encoding="utf-8"), "").benchmarks["test_a"].runs) == 2


def run_all(*targets):
    processes = [fork.Process(target=target) for target in targets]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    return [process.exitcode for process in processes]


class TestTwoWriters:
    def test_writers_of_different_benchmarks_lose_nothing(self, store):
        def writer(name):
            def write():
                for i in range(8):
                    append(store, f"test_{name}_{i}", session=name)

            return write

        assert run_all(*(writer(f"w{i}") for i in range(6))) == [0] * 6
        assert set(read(store).benchmarks) == {f"test_w{i}_{j}" for i in range(6) for j in range(8)}
        assert names(store.root / "h200") == ["images.json"]

    def test_writers_of_the_same_benchmark_lose_nothing(self, store):
        def writer(name):
            return lambda: append(store, session=name)

        assert run_all(*(writer(f"w{i}") for i in range(MAX_RUNS))) == [0] * MAX_RUNS
        stored = read(store).benchmarks["test_a"]
        assert {run.session for run in stored.runs} == {f"w{i}" for i in range(MAX_RUNS)}
        assert len(stored.ledger) == MAX_RUNS

    def test_a_reader_always_finds_a_whole_file(self, store):
        append(store)

        def write():
            for i in range(30):
                replace(store, rounds=6 + i * 20)

        process = fork.Process(target=write)
        process.start()
        seen = 0
        while process.is_alive():
            assert read(store) is not None
            seen += 1
        process.join()
        assert process.exitcode == 0
        assert seen > 5

    def test_a_stuck_writer_is_named_after_the_timeout(self, store, monkeypatch):
        append(store)
        folder = os.open(store.root / "h200", os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX)
        try:
            monkeypatch.setattr("pytest_accel.storage.files.LOCK_TIMEOUT_S", 0.05)
            with pytest.raises(BaselineError, match="another writer") as caught:
                append(store)
        finally:
            os.close(folder)
        assert "more than 0.05 s" in caught.value.problem
        assert "nothing was written" in caught.value.remedy
        append(store)  # and free again

    def test_a_file_system_that_cannot_lock_folders_gets_a_lock_file(self, store, monkeypatch):
        real = fcntl.flock

        def nfs(fd, operation):
            if operation != fcntl.LOCK_UN and stat.S_ISDIR(os.fstat(fd).st_mode):
                raise OSError(errno.EBADF, "Bad file descriptor")
            real(fd, operation)

        monkeypatch.setattr(fcntl, "flock", nfs)

        def writer(name):
            return lambda: append(store, session=name)

        assert run_all(*(writer(f"w{i}") for i in range(6))) == [0] * 6
        assert len(read(store).benchmarks["test_a"].runs) == 6
        assert names(store.root / "h200") == [".lock", "images.json"]

    def test_a_file_system_without_locks_is_one_clear_error(self, store, monkeypatch):
        def no_locks(fd, operation):
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", no_locks)
        with pytest.raises(BaselineError, match="No locks available") as caught:
            append(store)
        assert "file system with locks" in caught.value.remedy


def kill_self(*args):
    os.kill(os.getpid(), signal.SIGKILL)


class TestKilledWriter:
    @pytest.mark.parametrize("step", ["os.fchmod", "os.fsync", "pathlib.Path.replace"])
    def test_kill_at_every_step_leaves_a_whole_file_and_the_next_writer_cleans_up(
        self, store, monkeypatch, step
    ):
        append(store)

        def write():
            monkeypatch.setattr(step, kill_self)
            append(store)

        assert run_all(write) == [-signal.SIGKILL]
        assert len(read(store).benchmarks["test_a"].runs) == 1
        append(store)
        assert len(read(store).benchmarks["test_a"].runs) == 2
        assert names(store.root / "h200") == ["images.json"]
