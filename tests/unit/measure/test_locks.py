"""Device locks between real processes: waiting, naming the holder, dead holders, unusable folders."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_accel.measure import locks
from pytest_accel.measure.locks import LockedError, lock_devices, lock_folder

A, B = "GPU-8f3aab12-0000-0000-0000-000000000001", "GPU-9c000000-0000-0000-0000-000000000002"
OTHER_USER = 65534
PATIENCE_S = 60.0  # none of these tests waits it out

# Locks the given devices, prints "held", and releases them when its standard input ends.
HOLD = """
import os, sys
from pathlib import Path
from pytest_accel.measure.locks import LockedError, lock_devices
folder, mode, then, *uuids = sys.argv[1:]
say = lambda text: print(text, flush=True)
for _ in range(25 if then == "repeat" else 1):
    try:
        with lock_devices(uuids, mode=mode, waiting=say, unlocked=say, timeout_s=60, folder=Path(folder)):
            if then == "fork":
                worker = os.fork()
                if not worker:
                    sys.stdin.read()
                    os._exit(0)
                say(worker)
            say("held")
            if then in ("hold", "fork"):
                sys.stdin.read()
    except LockedError as error:
        say(f"refused: {error}")
"""


def start(folder: Path, *uuids: str, mode: str = "wait", then: str = "hold") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(folder), mode, then, *uuids]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextmanager
def started(folder: Path, *uuids: str, then: str = "hold"):
    process = start(folder, *uuids, then=then)
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        process.stdin.close()
        process.stdout.close()


@contextmanager
def holder(folder: Path, *uuids: str):
    with started(folder, *uuids) as process:
        assert process.stdout.readline() == "held\n"
        yield process


def answer(folder: Path, *uuids: str) -> str:
    """Return the output of another process that does not wait."""
    out, _ = start(folder, *uuids, mode="fail", then="leave").communicate(timeout=PATIENCE_S)
    return out.strip()


def take(folder: Path, *uuids: str, mode="wait", waiting=lambda text: None, timeout_s=PATIENCE_S):
    return lock_devices(
        uuids, mode=mode, waiting=waiting, unlocked=waiting, timeout_s=timeout_s, folder=folder
    )


def as_user(uid: int, check: Callable[[], None]) -> None:
    """Run a check in a forked child, as another user where we are root."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.getuid() == 0:
                os.setuid(uid)
            check()
            code = 0
        except BaseException:  # noqa: BLE001 -- pytest's own are among them
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "locks"


@pytest.fixture(autouse=True)
def nothing_reported(monkeypatch):
    monkeypatch.setattr(locks, "_reported", set())


def test_second_session_waits_for_the_holder_and_names_it(folder):
    texts = []
    with holder(folder, A) as first:

        def waiting(text):
            texts.append(text)
            first.stdin.close()

        with take(folder, A, waiting=waiting):
            assert answer(folder, A).startswith("refused: GPU-8f3aab12 is held by pid ")
            assert f"pid {os.getpid()} " in answer(folder, A)
        assert answer(folder, A) == "held"
    assert re.fullmatch(
        rf"waiting for GPU-8f3aab12: held by pid {first.pid} \(\S+, -c \S+.*, since (\S+ )?\d\d:\d\d\)",
        texts[0],
    )


def test_waiting_is_reported_repeatedly(folder, monkeypatch):
    monkeypatch.setattr(locks, "_REPORT_S", 0.0)
    texts = []
    with holder(folder, A) as first:

        def waiting(text):
            texts.append(text)
            if len(texts) == 3:
                first.stdin.close()

        with take(folder, A, waiting=waiting):
            pass
    assert len(texts) >= 3


def test_killed_holder_releases_the_device(folder):
    with holder(folder, A) as first:
        with take(folder, A, waiting=lambda text: first.kill()):
            pass
        assert first.wait(PATIENCE_S) < 0
    assert (folder / f"{A}.lock").exists()


def test_forked_worker_that_outlives_its_session_holds_nothing(folder):
    with started(folder, A, then="fork") as first:
        worker = int(first.stdout.readline())
        assert first.stdout.readline() == "held\n"
        assert "refused" in answer(folder, A)
        first.kill()
        first.wait(PATIENCE_S)
        os.kill(worker, 0)  # it lives
        with take(folder, A, mode="fail"):
            os.kill(worker, 0)
        first.stdin.close()  # the worker ends


def test_forked_child_does_not_release_the_lock(folder):

    with take(folder, A):

        def inherits_nothing():
            assert not locks._held
            with pytest.raises(LockedError, match=f"pid {os.getppid()} "), take(folder, A, mode="fail"):
                pass

        as_user(os.getuid(), inherits_nothing)
        assert "refused" in answer(folder, A)


def test_fail_mode_names_the_holder_and_the_remedy(folder):
    with holder(folder, A) as first, pytest.raises(LockedError) as refused, take(folder, A, mode="fail"):
        pass
    assert f"GPU-8f3aab12 is held by pid {first.pid} (" in str(refused.value)
    assert "-o accel_lock=wait" in str(refused.value)
    assert isinstance(refused.value, ValueError)


def test_timeout_names_the_holder_and_the_remedy(folder):
    with holder(folder, A) as first, pytest.raises(LockedError) as refused, take(folder, A, timeout_s=0):
        pass
    assert re.search(rf"held by pid {first.pid} .* was not free within 0", str(refused.value))
    assert "-o accel_lock=off" in str(refused.value)


def test_off_mode_locks_nothing(folder):
    with holder(folder, A), take(folder, A, mode="off"):
        pass
    with take(folder / "none", A, mode="off"):
        assert not (folder / "none").exists()


def test_devices_are_locked_in_one_order(folder):
    with holder(folder, A), started(folder, B, A) as second:
        assert second.stdout.readline().startswith("waiting for GPU-8f3aab12")
        assert answer(folder, B) == "held"  # the second has not taken it before A


def test_two_sessions_with_the_same_devices_do_not_deadlock(folder):
    processes = [start(folder, *uuids, then="repeat") for uuids in [(A, B), (B, A)]]
    for process in processes:
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert out.count("held\n") == 25
        assert "refused" not in out


def test_locks_are_released_when_the_next_fails(folder):
    with holder(folder, B):
        with pytest.raises(LockedError, match="GPU-9c000000"), take(folder, A, B, mode="fail"):
            pass
        assert answer(folder, A) == "held"


def test_exception_releases_the_device(folder):
    def measured():
        with take(folder, A):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        measured()
    assert answer(folder, A) == "held"
    assert (folder / f"{A}.lock").read_text() == ""
    assert not locks._held


def test_nested_lock_is_held_until_the_outer_end(folder):
    with take(folder, A, A):
        with take(folder, A, B, mode="fail"):
            assert "refused" in answer(folder, A)
        assert "refused" in answer(folder, A)
        assert answer(folder, B) == "held"
    assert answer(folder, A) == "held"


def test_lock_file_is_writable_by_all_whatever_the_umask(folder):
    before = os.umask(0o077)
    try:
        with take(folder, A):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE((folder / f"{A}.lock").stat().st_mode) == 0o666


def test_missing_parent_folders_are_made_for_all_users(tmp_path):
    before = os.umask(0o077)
    try:
        with take(tmp_path / "a" / "b" / "locks", A):
            assert "refused" in answer(tmp_path / "a" / "b" / "locks", A)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / each).stat().st_mode) for each in ("a", "a/b", "a/b/locks")]
    assert modes == [0o755, 0o755, 0o1777]


def test_unlocked_device_is_not_reported_without_a_callback(folder):
    folder.write_text("mine")
    texts = []
    with lock_devices([A], mode="wait", waiting=print, unlocked=None, timeout_s=0, folder=folder):
        pass
    with take(folder, A, waiting=texts.append):
        pass
    assert len(texts) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two others")
def test_two_users_exclude_each_other():
    """In a folder that both can reach, unlike tmp_path."""
    with tempfile.TemporaryDirectory() as base:
        Path(base).chmod(0o777)
        folder = Path(base) / "locks"
        texts: list[str] = []

        def comes_and_goes():
            with take(folder, A, mode="fail", waiting=texts.append):
                assert not texts

        def is_refused():
            with pytest.raises(LockedError, match=f"pid {os.getppid()} "):
                comes_and_goes()

        as_user(OTHER_USER, comes_and_goes)
        as_user(OTHER_USER - 1, comes_and_goes)  # the file is there, and another's
        with take(folder, A, waiting=texts.append):
            as_user(OTHER_USER, is_refused)
        assert not texts


def test_uuid_cannot_leave_the_folder(folder):
    with take(folder, "../0000:17:00.0/x"):
        pass
    assert [each.name for each in folder.parent.iterdir()] == ["locks"]
    assert [each.name for each in folder.iterdir()] == ["..%2F0000%3A17%3A00.0%2Fx.lock"]


def test_removed_lock_file_is_made_again(folder):
    path = folder / f"{A}.lock"
    with holder(folder, A) as first:

        def waiting(text):
            path.unlink()
            first.stdin.close()

        with take(folder, A, waiting=waiting):
            assert path.exists()
            assert "refused" in answer(folder, A)


class TestUnlocked:
    """Reported once, and measured all the same."""

    @pytest.fixture
    def report(self):
        texts = []

        def of(folder):
            for _ in range(2):
                with take(folder, A, waiting=texts.append):
                    pass
            return texts

        return of

    @pytest.mark.parametrize("below", ["", "locks"])
    def test_file_instead_of_a_folder_is_reported(self, report, tmp_path, below):
        (tmp_path / "mine").write_text("mine")
        (text,) = report(tmp_path / "mine" / below)
        assert text.startswith("GPU-8f3aab12 is not locked, and others may measure on it meanwhile: ")
        assert text.endswith("Not a directory. Remove it; -o accel_lock=off silences this.")
        assert (tmp_path / "mine").read_text() == "mine"

    def test_folder_that_is_a_link_is_not_followed(self, report, tmp_path):
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "locks").symlink_to(tmp_path / "elsewhere")
        assert len(report(tmp_path / "locks")) == 1
        assert not list((tmp_path / "elsewhere").iterdir())

    def test_folder_without_permission_is_reported(self, report, folder):
        folder.mkdir(mode=0o555)

        def refused():
            assert "Permission denied. Let all users write there (chmod 1777 the folder" in report(folder)[0]

        as_user(OTHER_USER, refused)

    def test_file_without_permission_is_reported(self, report, folder, monkeypatch):
        """As the kernel answers an ordinary user; these tests may run as root."""
        monkeypatch.setattr(locks, "_TRY_AGAIN_S", 0.0)
        opened = os.open

        def refusing(path, flags, *rest, **options):
            if str(path).endswith(".lock"):
                raise PermissionError(13, "Permission denied")
            return opened(path, flags, *rest, **options)

        monkeypatch.setattr(os, "open", refusing)
        (text,) = report(folder)
        assert "Permission denied. Let all users write there" in text

    @pytest.mark.parametrize("link", ["symbolic", "hard"])
    def test_linked_lock_file_is_not_written(self, report, folder, tmp_path, link):
        folder.mkdir()
        target = tmp_path / "target"
        target.write_text("keep me")
        path = folder / f"{A}.lock"
        path.symlink_to(target) if link == "symbolic" else path.hardlink_to(target)
        (text,) = report(folder)
        assert ("it is a symbolic link" if link == "symbolic" else "no plain file") in text
        assert f"{path}: it is " in text
        assert ". Remove it;" in text
        assert target.read_text() == "keep me"

    def test_pipe_instead_of_a_file_does_not_block(self, report, folder):
        folder.mkdir()
        os.mkfifo(folder / f"{A}.lock")
        assert "no plain file" in report(folder)[0]

    def test_file_system_without_locks_is_reported(self, report, folder, monkeypatch):
        def refuse(fd, how):
            raise OSError(37, "No locks available")

        monkeypatch.setattr(locks.fcntl, "lockf", refuse)
        (text,) = report(folder)
        assert (
            "No locks available. Name another folder, that all sessions of this machine share, with" in text
        )
        assert "Remove" not in text
        assert not locks._held


@pytest.fixture(scope="module")
def refusal(tmp_path_factory):
    """Return the refusal for a holder file of this content."""
    folder = tmp_path_factory.mktemp("names") / "locks"

    def of(content):
        (folder / f"{A}.lock").write_text(content)
        with pytest.raises(LockedError) as refused, take(folder, A, mode="fail"):
            pass
        return str(refused.value).partition(". ")[0]

    with holder(folder, A):
        yield of


class TestHolder:
    @pytest.mark.parametrize(
        "content", ["", "rubbish", "[]", "{}", '{"pid": "x"}', "\x00" * 9, '"x"', "[" * 4096]
    )
    def test_invalid_holder_file_names_another_process(self, refusal, content):
        assert refusal(content) == "GPU-8f3aab12 is held by another process"

    def test_holder_on_another_host_is_named_with_host_and_date(self, refusal):
        who = {"pid": 7, "host": "node7", "user": "ana", "command": "pytest -m h200", "since_s": 1e9}
        text = refusal(json.dumps(who))
        assert re.fullmatch(
            r"GPU-8f3aab12 is held by pid 7 on node7 \(ana, pytest -m h200, since 2001-09-\d\d \d\d:\d\d\)",
            text,
        )

    def test_control_characters_of_a_holder_are_escaped(self, refusal):
        who = {"pid": 7, "host": "", "user": "\x1b[2J", "command": "x" * 900, "since_s": 0}
        text = refusal(json.dumps(who))
        assert text.isprintable()
        assert len(text) < 300

    @pytest.mark.parametrize(
        ("argv", "command"),
        [
            (["/usr/bin/pytest", "bench_suites", "-m", "h200"], "pytest bench_suites -m h200"),
            (["/lib/pytest/__main__.py", "x.py"], "pytest x.py"),
        ],
    )
    def test_holder_file_has_the_command(self, folder, monkeypatch, argv, command):
        monkeypatch.setattr(sys, "argv", argv)
        with take(folder, A):
            who = json.loads((folder / f"{A}.lock").read_text())
        assert (who["pid"], who["command"]) == (os.getpid(), command)


def test_folder_does_not_depend_on_tmpdir():
    assert lock_folder({"TMPDIR": "/scratch/job"}) == lock_folder({})
    assert lock_folder({"PYTEST_ACCEL_LOCKS": "/shared/locks"}) == Path("/shared/locks")


def test_relative_folder_is_refused(monkeypatch):
    with pytest.raises(LockedError, match=r"PYTEST_ACCEL_LOCKS: 'locks' is not an absolute path.* Write one"):
        lock_folder({"PYTEST_ACCEL_LOCKS": "locks"})
    monkeypatch.setenv("PYTEST_ACCEL_LOCKS", "locks")
    for uuids, mode in (([A], "off"), ([], "wait")):
        with lock_devices(uuids, mode=mode, waiting=print, unlocked=print, timeout_s=0):
            pass
