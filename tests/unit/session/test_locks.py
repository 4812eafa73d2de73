"""Device locks between real processes: waiting, holders and their deaths, unusable folders, a session's own."""

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
from types import SimpleNamespace

import pytest

from pytest_accel.measure import locks
from pytest_accel.measure.locks import LockedError, lock_devices, lock_folder
from pytest_accel.options import Settings
from pytest_accel.platforms.catalogue import PlatformName
from pytest_accel.session import device
from pytest_accel.session.device import hold_devices

A, B = "GPU-8f3aab12-0000-0000-0000-000000000001", "GPU-9c000000-0000-0000-0000-000000000002"
OTHER_USER = 65534
PATIENCE_S = 60.0  # none of these tests waits it out

# Locks the given devices, prints "held", and releases them when its standard input ends.
HOLD = """
import os, sys
from pytest_accel.measure.locks import LockedError, lock_devices
mode, then, *uuids = sys.argv[1:]
say = lambda text: print(text, flush=True)
for _ in range(25 if then == "repeat" else 1):
    try:
        with lock_devices(uuids, mode=mode, waiting=say, unlocked=say, timeout_s=60):
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


def start(*uuids: str, mode: str = "wait", then: str = "hold") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, mode, then, *uuids]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextmanager
def started(*uuids: str, then: str = "hold"):
    process = start(*uuids, then=then)
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        process.stdin.close()
        process.stdout.close()


@contextmanager
def holder(*uuids: str):
    with started(*uuids) as process:
        assert process.stdout.readline() == "held\n"
        yield process


def answer(*uuids: str) -> str:
    """Return the output of another process that does not wait."""
    out, _ = start(*uuids, mode="fail", then="leave").communicate(timeout=PATIENCE_S)
    return out.strip()


def take(*uuids: str, mode="wait", waiting=lambda text: None, timeout_s=PATIENCE_S):
    return lock_devices(uuids, mode=mode, waiting=waiting, unlocked=waiting, timeout_s=timeout_s)


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


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_ACCEL_LOCKS", str(tmp_path / "locks"))
    return tmp_path / "locks"


def test_second_session_waits_for_the_holder_and_names_it():
    texts = []
    with holder(A) as first:

        def waiting(text):
            texts.append(text)
            first.stdin.close()

        with take(A, waiting=waiting):
            assert f"refused: GPU-8f3aab12 is held by pid {os.getpid()} " in answer(A)
        assert answer(A) == "held"
    assert re.fullmatch(
        rf"waiting for GPU-8f3aab12: held by pid {first.pid} on \S+ \(\S+, -c \S+.*, since \S+ \d\d:\d\d\)",
        texts[0],
    )


def test_killed_holder_releases_the_device():
    with holder(A) as first:
        with take(A, waiting=lambda text: first.kill()):
            pass
        assert first.wait(PATIENCE_S) < 0


def test_forked_worker_that_outlives_its_session_holds_nothing():
    with started(A, then="fork") as first:
        worker = int(first.stdout.readline())
        assert first.stdout.readline() == "held\n"
        assert "refused" in answer(A)
        first.kill()
        first.wait(PATIENCE_S)
        os.kill(worker, 0)  # it lives
        with take(A, mode="fail"):
            os.kill(worker, 0)
        first.stdin.close()  # the worker ends


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"mode": "fail"}, ("-o accel_lock=wait",)),
        ({"timeout_s": 0}, ("was not free within 0", "-o accel_lock=off")),
    ],
)
def test_refusal_names_the_holder_and_the_remedy(how, said):
    with holder(A) as first, pytest.raises(LockedError) as refused, take(A, **how):
        pass
    assert f"GPU-8f3aab12 is held by pid {first.pid} on " in str(refused.value)
    assert all(words in str(refused.value) for words in said)


def test_two_sessions_with_the_same_devices_do_not_deadlock():
    with holder(A), started(B, A) as second:
        assert second.stdout.readline().startswith("waiting for GPU-8f3aab12")
        assert answer(B) == "held"  # the second has not taken it before A
    processes = [start(*uuids, then="repeat") for uuids in [(A, B), (B, A)]]
    for process in processes:
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert out.count("held\n") == 25
        assert "refused" not in out


def test_locks_are_released_when_the_next_fails():
    with holder(B):
        with pytest.raises(LockedError, match="GPU-9c000000"), take(A, B, mode="fail"):
            pass
        assert answer(A) == "held"


def test_lock_file_is_writable_by_all_whatever_the_umask(folder):
    before = os.umask(0o077)
    try:
        with take(A, mode="off"):
            assert not folder.exists()
        with take(A), take("../0000:17:00.0/x"):  # which cannot leave the folder
            assert len(list(folder.iterdir())) == 2
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE((folder / f"{A}.lock").stat().st_mode) == 0o666


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two others")
def test_two_users_exclude_each_other(monkeypatch):
    """In a folder that both can reach, unlike tmp_path."""
    with tempfile.TemporaryDirectory() as base:
        Path(base).chmod(0o777)
        monkeypatch.setenv("PYTEST_ACCEL_LOCKS", f"{base}/locks")
        texts: list[str] = []

        def comes_and_goes():
            with take(A, mode="fail", waiting=texts.append):
                assert not texts

        def is_refused():
            with pytest.raises(LockedError, match=f"pid {os.getppid()} "):
                comes_and_goes()

        as_user(OTHER_USER, comes_and_goes)
        as_user(OTHER_USER - 1, comes_and_goes)  # the file is there, and another's
        with take(A, waiting=texts.append):
            as_user(OTHER_USER, is_refused)
        assert not texts


def test_removed_lock_file_is_made_again(folder):
    path = folder / f"{A}.lock"
    with holder(A) as first:

        def waiting(text):
            path.unlink()
            first.stdin.close()

        with take(A, waiting=waiting):
            assert path.exists()
            assert "refused" in answer(A)


def file_for_a_folder(folder):
    folder.write_text("mine")


def linked_file(folder):
    folder.mkdir()
    folder.with_name("target").write_text("keep me")
    (folder / f"{A}.lock").symlink_to(folder.with_name("target"))


@pytest.mark.parametrize(
    ("obstacle", "why"),
    [
        (file_for_a_folder, "Not a directory"),
        (linked_file, "Too many levels of symbolic links"),
        (None, "No locks available"),
    ],
)
def test_device_that_cannot_be_locked_is_measured_with_a_warning(folder, monkeypatch, obstacle, why):
    if obstacle:
        obstacle(folder)
    else:  # a file system without locks

        def refuse(fd, how):
            raise OSError(37, why)

        monkeypatch.setattr(locks.fcntl, "lockf", refuse)
    texts = []
    with take(A, waiting=texts.append):
        pass
    (text,) = texts
    path = folder / f"{A}.lock"
    assert text.startswith(
        f"GPU-8f3aab12 is not locked, and others may measure on it meanwhile: {path}: {why}. Name a folder"
    )
    target = folder.with_name("target")
    assert not target.exists() or target.read_text() == "keep me"


def test_words_of_a_holder_are_shown_short_and_escaped(folder):
    with holder(A):
        for written, shown in [("", "another process"), ("\x00\x1b[2J" + "x" * 900, r"\x00")]:
            (folder / f"{A}.lock").write_text(written)
            with pytest.raises(LockedError) as refused, take(A, mode="fail"):
                pass
            text = str(refused.value).partition(". ")[0]
            assert text.startswith(f"GPU-8f3aab12 is held by {shown}")
            assert text.isprintable()
            assert len(text) < 300


def test_relative_folder_is_refused(monkeypatch):
    monkeypatch.setenv("PYTEST_ACCEL_LOCKS", "locks")
    with pytest.raises(LockedError, match=r"PYTEST_ACCEL_LOCKS: 'locks' is not an absolute path.* Write one"):
        lock_folder()
    monkeypatch.setenv("PYTEST_ACCEL_LOCKS", "")
    monkeypatch.setenv("TMPDIR", "/scratch/job")
    assert lock_folder() == Path("/tmp/pytest-accel-locks")


# --- the devices of a benchmark ---------------------------------------------------------------------


@pytest.fixture
def item(pytestconfig, monkeypatch):
    monkeypatch.setattr(device, "is_benchmark", lambda item: item.name == "test_step")
    machine = SimpleNamespace(devices_for=lambda platform: [SimpleNamespace(uuid=A)])
    stash = pytest.Stash()
    stash[device.SELECTION] = SimpleNamespace(machine=machine)
    config = SimpleNamespace(
        stash=stash, pluginmanager=pytestconfig.pluginmanager, getoption=lambda name, default: False
    )
    return SimpleNamespace(config=config, name="test_step")


def test_session_waits_for_devices_and_holds_them_while_it_measures(item, monkeypatch):
    said, phases, ticks = [], [], []
    monkeypatch.setattr(device, "write_log", lambda config, text: said.append(text))
    monkeypatch.setattr(locks, "_REPORT_S", 0.0)
    with holder(A) as first:

        def tick():
            ticks.append(1)
            if len(ticks) == 2:
                first.stdin.close()

        progress = SimpleNamespace(phase=lambda text, remaining_s: phases.append(text), tick=tick)
        with hold_devices(item, Settings(), PlatformName("h200"), progress):
            assert "refused" in answer(A)
        assert answer(A) == "held"
        assert len(said) == 1, "once in a log"
        assert len(phases) == 1, "the clock of the wait goes on"
        assert said[0].startswith(f"test_step: waiting for GPU-8f3aab12: held by pid {first.pid} ")


def test_holder_by_python_m_pytest_is_named_by_its_program(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/venv/site-packages/pytest/__main__.py", "bench_suites"])
    with take(A):
        assert ", pytest bench_suites, since " in answer(A)


@pytest.mark.parametrize("change", [{"name": "test_plain"}, {"disabled": True}])
def test_item_that_measures_nothing_does_not_wait(item, change):
    item.name = change.get("name", item.name)
    item.config.getoption = lambda name, default=False: name == "benchmark_disable" and "disabled" in change
    with holder(A), hold_devices(item, Settings(lock="fail"), PlatformName("h200"), None):
        pass
