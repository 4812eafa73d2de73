"""What a rank is started with, and what is read of what it left."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from string import Template

import pytest

from pytest_accel.options import GANG_ID_VARIABLE, GANG_VARIABLE
from pytest_accel.spmd.launch import GangError, Launch
from pytest_accel.spmd.launchers import (
    Elastic,
    OneProcess,
    path_flag,
    rank_command,
    rank_commands,
    rank_environment,
    read_remains,
    tail,
)


def launch(directory=Path(), arguments=lambda folder: ["suites"], **changes):
    return Launch(
        **{
            "gang": "abc",
            "nodes": 1,
            "per_node": 2,
            "process_group": True,
            "host": "127.0.0.1",
            "port": 1,
            "token": "secret",
            "arguments": arguments,
            "directory": directory,
            "bind": "auto",
            "rendezvous_s": 60.0,
            **changes,
        }
    )


class TestEnvironment:
    def test_has_nothing_of_this_pytest_or_of_another_launcher(self, monkeypatch, tmp_path):
        for name in ("PYTEST_ADDOPTS", "PYTEST_VERSION", "RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"):
            monkeypatch.setenv(name, "of this process")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
        found = rank_environment(launch(), tmp_path, gang_id="abc.1", variables={"RANK": "1"})
        assert "of this process" not in found.values()
        assert found["RANK"] == "1"
        assert found["CUDA_VISIBLE_DEVICES"] == "2,3"
        assert found[GANG_ID_VARIABLE] == "abc.1"
        told = json.loads(found[GANG_VARIABLE])
        assert told["folder"] == str(tmp_path)
        assert (told["gang"], told["token"], told["process_group"], told["bind"]) == (
            "abc",
            "secret",
            True,
            "auto",
        )


class TestCommand:
    def test_is_pytest_of_this_interpreter(self, tmp_path):
        command = rank_command(launch(arguments=lambda folder: ["suites", str(folder)]), tmp_path)
        assert command[0] == sys.executable
        assert command[-4:] == ["-m", "pytest", "suites", str(tmp_path)]

    def test_current_directory_is_on_the_path_if_it_is_on_this_sessions(self, monkeypatch, tmp_path):
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        assert path_flag(tmp_path) == []
        monkeypatch.setattr(sys, "path", ["/elsewhere"])
        assert path_flag(tmp_path) == ["-P"]

    @pytest.mark.parametrize("word", ["plain", "$HOME", "$$", "${local_rank}", "$local_rank", "a$", ""])
    def test_templates_of_the_elastic_launcher_give_the_words_back(self, word, tmp_path):
        told = rank_commands(launch(arguments=lambda folder: [word, f"--folder={folder}"]), tmp_path)
        found = [Template(text).safe_substitute(local_rank="3") for text in told]
        assert found[-2:] == [word, f"--folder={tmp_path / '3'}"]


class TestStart:
    @pytest.mark.parametrize("launcher", [OneProcess(), Elastic()])
    def test_directory_that_is_gone_is_said(self, launcher, tmp_path, monkeypatch):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        per_node = 1 if isinstance(launcher, OneProcess) else 2
        with pytest.raises(GangError, match="no process could be started"):
            launcher.start(launch(tmp_path / "gone", per_node=per_node))
        assert list(tmp_path.iterdir()) == []


class TestRemains:
    def test_both_outputs_and_the_stacks(self, tmp_path):
        (tmp_path / "stdout").write_text("out\n")
        (tmp_path / "stderr").write_text("err\n")
        (tmp_path / "stacks").write_text("Current thread\n")
        found = read_remains(tmp_path, status="exit status 3", silent="unused")
        assert (found.status, found.log, found.stacks) == ("exit status 3", "out\nerr", "Current thread")

    def test_folder_that_is_gone(self, tmp_path):
        found = read_remains(tmp_path / "gone", status="", silent="in the kernel")
        assert (found.log, found.stacks) == ("", "in the kernel")

    def test_tail_of_what_is_large_and_no_text(self, tmp_path):
        file = tmp_path / "log"
        file.write_bytes(b"\xff" * 1_000_000 + b"\n" + b"\n".join(b"%d" % line for line in range(1000)))
        lines = tail(file).splitlines()
        assert len(lines) == 40
        assert lines[-1] == "999"
