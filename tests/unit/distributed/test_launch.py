"""Start of ranks, their environment, and their remains after the end."""

from __future__ import annotations

import errno
import json
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pytest_accel.distributed.launch import (
    GroupSpec,
    LocalLauncher,
    RankCommand,
    ReservedPort,
    SingleProcessLauncher,
    WorkerError,
    rank_environment,
    read_exit,
    tail,
)
from pytest_accel.options import GROUP_ID_VARIABLE, WORKER_VARIABLE


def command(directory=Path(), arguments=lambda folder: ["suites"]):
    return RankCommand(arguments=arguments, directory=directory)


def spec(**changes):
    return GroupSpec(
        **{
            "group": "abc",
            "nodes": 1,
            "per_node": 2,
            "process_group": True,
            "host": "127.0.0.1",
            "port": 1,
            "token": "secret",
            "bind": "auto",
            "rendezvous_s": 60.0,
            **changes,
        }
    )


class TestEnvironment:
    def test_variables_of_this_pytest_and_other_launchers_are_removed(self, monkeypatch, tmp_path):
        for name in ("PYTEST_ADDOPTS", "PYTEST_VERSION", "RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"):
            monkeypatch.setenv(name, "of this process")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
        found = rank_environment(spec(), tmp_path, group_id="abc.1", variables={"RANK": "1"})
        assert "of this process" not in found.values()
        assert found["RANK"] == "1"
        assert found["CUDA_VISIBLE_DEVICES"] == "2,3"
        assert found[GROUP_ID_VARIABLE] == "abc.1"
        worker = json.loads(found[WORKER_VARIABLE])
        assert worker["folder"] == str(tmp_path)
        assert (worker["group"], worker["token"], worker["bind"]) == ("abc", "secret", "auto")


class TestCommand:
    def test_command_is_pytest_of_this_interpreter(self, tmp_path):
        words = command(arguments=lambda folder: ["suites", str(folder)]).words(tmp_path)
        assert words[0] == sys.executable
        assert words[-4:] == ["-m", "pytest", "suites", str(tmp_path)]

    def test_current_directory_is_on_the_path_if_it_is_on_this_sessions(self, monkeypatch, tmp_path):
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        assert "-P" not in command(tmp_path).words(tmp_path)
        monkeypatch.setattr(sys, "path", ["/elsewhere"])
        assert "-P" in command(tmp_path).words(tmp_path)


class TestStart:
    @pytest.mark.parametrize("launcher", [SingleProcessLauncher(), LocalLauncher()])
    def test_missing_directory_is_reported(self, launcher, tmp_path, monkeypatch):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        per_node = 1 if isinstance(launcher, SingleProcessLauncher) else 2
        with pytest.raises(WorkerError, match="no process could be started"):
            launcher.start(spec(per_node=per_node), command(tmp_path / "gone"))
        assert list(tmp_path.iterdir()) == []

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
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
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
        assert [process.returncode for process in started] == [-signal.SIGKILL]
        assert list(tmp_path.iterdir()) == []

    def test_nccl_error_handling_is_that_of_torchrun_unless_set(self, tmp_path, monkeypatch):
        name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
        for set_to, found in ((None, "1"), ("3", "3")):
            monkeypatch.delenv(name, raising=False)
            if set_to:
                monkeypatch.setenv(name, set_to)
            launched = LocalLauncher().start(spec(), command(tmp_path))
            environ = Path(f"/proc/{launched._ranks[1].process.pid}/environ").read_bytes().split(b"\0")
            launched.end(stacks=False)
            assert f"{name}={found}".encode() in environ
            assert b"RANK=1" in environ


class TestReservedPort:
    def test_reserved_port_is_free_for_a_server_that_reuses_addresses(self):
        """As the store of rank 0 does: tests/distributed has real ones."""
        port = ReservedPort()
        with socket.create_server(("127.0.0.1", port.number)) as store:
            assert store.getsockname()[1] == port.number
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port.number))
        port.close()
        with socket.socket() as other:
            other.bind(("127.0.0.1", port.number))


class TestExit:
    def test_outputs_and_stacks_are_read(self, tmp_path):
        (tmp_path / "stdout").write_text("out\n")
        (tmp_path / "stderr").write_text("err\n")
        (tmp_path / "stacks").write_text("Current thread\n")
        found = read_exit(tmp_path, status="exit status 3", silent="unused")
        assert (found.status, found.log, found.stacks) == ("exit status 3", "out\nerr", "Current thread")

    def test_missing_folder_reads_as_empty(self, tmp_path):
        found = read_exit(tmp_path / "gone", status="", silent="in the kernel")
        assert (found.log, found.stacks) == ("", "in the kernel")

    def test_tail_of_a_large_binary_file_is_limited(self, tmp_path):
        file = tmp_path / "log"
        file.write_bytes(b"\xff" * 1_000_000 + b"\n" + b"\n".join(b"%d" % line for line in range(1000)))
        lines = tail(file).splitlines()
        assert len(lines) == 40
        assert lines[-1] == "999"
