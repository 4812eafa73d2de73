"""Ranks as processes: environment, start and end; processes of a group found by their environment."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pytest_accel.distributed import processes
from pytest_accel.distributed.processes import (
    LocalLauncher,
    RankCommand,
    RankSpec,
    ReservedPort,
    WorkerError,
    ancestry,
    descendants,
    exit_words,
    tail,
)
from pytest_accel.options import GROUP_ID_VARIABLE, WORKER_VARIABLE
from pytest_accel.storage.codec import decode


def command(directory=Path()):
    return RankCommand(arguments=lambda folder: ["suites", str(folder)], directory=directory)


def spec(**changes):
    given = {"group": "abc", "nodes": 1, "per_node": 2, "process_group": True, "host": "127.0.0.1", "port": 1}
    return RankSpec(**{**given, "token": "secret", "bind": "auto", "rendezvous_s": 60.0, **changes})


class TestEnvironment:
    @pytest.fixture(autouse=True)
    def other_launcher(self, monkeypatch):
        for name in ("PYTEST_ADDOPTS", "PYTEST_VERSION", "RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"):
            monkeypatch.setenv(name, "of this process")

    def test_place_is_that_of_torchrun(self, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
        monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
        given = spec(nodes=2, per_node=4, rank=5, store_host="n0", store_port=1234)
        found = given.environment()
        assert "of this process" not in found.values()
        assert (found["RANK"], found["WORLD_SIZE"], found["LOCAL_RANK"]) == ("5", "8", "1")
        assert (found["LOCAL_WORLD_SIZE"], found["GROUP_RANK"], found["GROUP_WORLD_SIZE"]) == ("4", "1", "2")
        assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("n0", "1234")
        assert (found["CUDA_VISIBLE_DEVICES"], found["TORCH_NCCL_ASYNC_ERROR_HANDLING"]) == ("2,3", "1")
        assert found[GROUP_ID_VARIABLE] == "abc.5"
        assert decode(RankSpec, json.loads(found[WORKER_VARIABLE])) == given
        assert "RANK" not in spec(process_group=False).environment()
        monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
        assert spec().environment()["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"


def test_command_is_pytest_of_this_interpreter_with_its_path(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    words = command(tmp_path).words(tmp_path)
    assert words[0] == sys.executable
    assert words[-4:] == ["-m", "pytest", "suites", str(tmp_path)]
    assert "-P" not in words
    monkeypatch.setattr(sys, "path", ["/elsewhere"])
    assert "-P" in command(tmp_path).words(tmp_path)


class TestStart:
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path, monkeypatch):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        yield
        assert list(tmp_path.iterdir()) == []

    def test_missing_directory_is_reported(self, tmp_path):
        with pytest.raises(WorkerError, match="no process could be started"):
            LocalLauncher().start(spec(), command(tmp_path / "gone"))

    @pytest.mark.parametrize(
        ("where", "fails", "raised"),
        [
            ((subprocess, "Popen"), BlockingIOError(errno.EAGAIN, "no more processes"), WorkerError),
            ((tempfile, "mkdtemp"), OSError(errno.ENOSPC, "no space left"), WorkerError),
            ((subprocess, "Popen"), KeyboardInterrupt(), KeyboardInterrupt),
        ],
    )
    def test_started_ranks_are_ended_when_the_next_cannot_start(
        self, tmp_path, monkeypatch, where, fails, raised
    ):
        started, popen, calls = [], subprocess.Popen, []
        usual = getattr(*where)

        def noted(*args, **options):
            started.append(popen(*args, **options))
            return started[-1]

        def second_fails(*args, **options):
            calls.append(args)
            if len(calls) > 1:
                raise fails
            return noted(*args, **options) if usual is popen else usual(*args, **options)

        monkeypatch.setattr(subprocess, "Popen", noted)
        monkeypatch.setattr(*where, second_fails)
        with pytest.raises(
            raised, match=r"no process could be started: .*no " if raised is WorkerError else None
        ):
            LocalLauncher().start(spec(), command(tmp_path))
        (status,) = [process.returncode for process in started]
        assert status in {-signal.SIGHUP, -signal.SIGKILL}  # before or after its supervisor had started it


def test_reserved_port_is_free_for_a_server_that_reuses_addresses():
    """As the store of rank 0 does: tests/distributed has real ones."""
    port = ReservedPort()
    with socket.create_server(("127.0.0.1", port.number)) as store:
        assert store.getsockname()[1] == port.number
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port.number))
    port.close()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port.number))


def test_tail_of_a_large_binary_file_is_limited(tmp_path):
    file = tmp_path / "log"
    file.write_bytes(b"\xff" * 3_000_000 + b"\n" + b"\n".join(b"%d" % line for line in range(1000)))
    assert tail(file, 40).splitlines() == [str(line) for line in range(960, 1000)]
    assert tail(tmp_path / "gone", 40) == ""


def test_tail_of_a_fifo_or_a_device_is_empty(tmp_path):
    os.mkfifo(tmp_path / "log")
    (tmp_path / "stacks").symlink_to("/dev/zero")
    assert tail(tmp_path / "log", 40) == tail(tmp_path / "stacks", 40) == ""


def test_folders_of_killed_owners_are_removed_by_the_next_start(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folders = [tmp_path / f"pytest-accel-rank-{name}" for name in ("dead", "alive", "new")]
    for folder in folders:
        folder.mkdir()
        os.utime(folder, (0, 0) if folder is not folders[2] else None)
    alive = os.open(folders[1], os.O_RDONLY)
    fcntl.flock(alive, fcntl.LOCK_EX)
    LocalLauncher().start(spec(per_node=1), command(tmp_path)).end(stacks=False)
    assert sorted(tmp_path.iterdir()) == sorted(folders[1:])
    os.close(alive)


def test_folder_of_a_thousand_levels_is_removed(tmp_path):
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("a", dir_fd=here)
        below = os.open("a", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    processes.remove_folder(tmp_path)
    assert not tmp_path.exists()


@pytest.mark.parametrize(
    ("status", "words"),
    [(3, "left with exit status 3"), (-11, "was killed by SIGSEGV"), (-200, "was killed by signal 200")],
)
def test_exit_status_is_described(status, words):
    assert exit_words(status) == words


def test_descendants_include_grandchildren(tmp_path):
    for pid, parent in ((10, 1), (11, 10), (12, 11), (13, 1)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b) S {parent} 1 1 0")
    (tmp_path / "14").mkdir()  # gone meanwhile
    assert descendants(10, tmp_path) == {11, 12}


def test_ancestry_is_this_process_and_its_parents(tmp_path):
    assert ancestry()[:2] == [os.getpid(), *[os.getppid()][: os.getppid() > 1]]  # without init
    me = tmp_path / str(os.getpid())
    me.mkdir()
    (me / "stat").write_text(f"{os.getpid()} (a (b) c) S 77 1 1 0")
    assert ancestry(tmp_path) == [os.getpid(), 77]
    (me / "stat").write_text("garbage")
    assert ancestry(tmp_path) == [os.getpid()]


def test_supervisor_ends_as_its_rank_also_where_ends_of_children_were_ignored(tmp_path):
    """As below a daemon, or a shell with `trap '' CHLD`."""
    ignoring = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    rank = [sys.executable, "-c", "raise SystemExit(3)"]
    words = [*map(str, processes._SUPERVISOR), str(os.getpid()), str(tmp_path), *rank]
    assert subprocess.run([sys.executable, "-c", ignoring, *words], timeout=60, check=False).returncode == 3


def test_killed_group_is_awaited_and_no_other(monkeypatch):
    naps = []

    def kill(_):
        naps.append(1)
        running.kill()
        os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)  # as a zombie it has ended

    monkeypatch.setattr(processes.time, "sleep", kill)
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as running:
        processes._await_group(running.pid)
        processes._await_group(running.pid)
    assert naps == [1]
