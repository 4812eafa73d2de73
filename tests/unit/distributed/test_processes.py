"""Processes of a group: found by their environment, and ended whatever they do."""

from __future__ import annotations

import os
import resource
import secrets
import signal
import subprocess
import sys

import pytest

from pytest_accel.distributed import processes
from pytest_accel.distributed.processes import (
    ancestry,
    descendants,
    disable_core_dump,
    end_processes,
    exit_words,
    kernel_state,
    processes_of,
    runs,
    send,
)
from pytest_accel.options import GROUP_ID_VARIABLE

DEAF = """
import signal, subprocess, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def group():
    found = secrets.token_hex(8)
    yield found
    end_processes(found)


@pytest.fixture
def start():
    started = []

    def start(group_id: str, program: str) -> subprocess.Popen[str]:
        environ = {**os.environ, GROUP_ID_VARIABLE: group_id}
        command = [sys.executable, "-c", program]
        process = subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append((group_id, process))
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for group_id, process in started:
        end_processes(group_id)
        process.communicate()


def test_processes_of_one_group_are_found_and_ended(group, start):
    first, _, other = start(group, DEAF), start(f"{group}.1", DEAF), start(f"{group}0", DEAF)
    found = processes_of(group)
    assert len(found) == 4  # two, and what each of them started in a session of its own
    assert first.pid in {process.pid for process in found}
    assert {process.environ[GROUP_ID_VARIABLE] for process in processes_of(f"{group}.1")} == {f"{group}.1"}
    assert end_processes(group) == []
    assert processes_of(group) == []
    assert other.poll() is None
    assert end_processes(f"{group}0") == []


def test_zombie_is_not_listed(group, start):
    process = start(group, "print('ready', flush=True)")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert processes_of(group) == []
    assert end_processes(group) == []


def test_signal_is_not_sent_to_a_process_that_reuses_the_pid(group, start):
    start(group, DEAF)
    (first, *_) = processes_of(group)
    another = processes.Process(pid=first.pid, environ={GROUP_ID_VARIABLE: "another"})
    send(another, signal.SIGKILL)
    assert runs(first)
    assert not runs(another)
    end_processes(group)
    send(first, signal.SIGKILL)
    assert not runs(first)


def test_without_proc_nothing_is_found(group, monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "_PROC", tmp_path / "missing")
    assert processes_of(group) == []
    assert end_processes(group) == []
    assert kernel_state(1) == ""


def test_unreadable_processes_are_skipped(group, monkeypatch, tmp_path):
    """Of other users, or gone between two reads."""
    (tmp_path / "10").mkdir()
    (tmp_path / "11").mkdir()
    (tmp_path / "11" / "environ").write_text(f"{GROUP_ID_VARIABLE}={group}\0")
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    assert processes_of(group) == []


def test_empty_group_name_is_refused():
    with pytest.raises(AssertionError):
        end_processes("")


def test_kernel_state_names_every_thread(group, start):
    process = start(group, DEAF)
    assert "thread python: state " in kernel_state(process.pid)
    end_processes(group)
    process.wait()
    assert kernel_state(process.pid) == ""


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exit status 0"),
        (3, "exit status 3"),
        (-9, "killed by SIGKILL"),
        (-11, "killed by SIGSEGV"),
        (-200, "killed by signal 200"),
    ],
)
def test_exit_status_is_described(status, words):
    assert exit_words(status) == words


def test_core_dump_of_another_process_is_disabled(group, start):
    process = start(group, DEAF)
    disable_core_dump(process.pid)
    assert resource.prlimit(process.pid, resource.RLIMIT_CORE)[0] == 0
    end_processes(group)
    disable_core_dump(process.pid)  # gone: no error


def test_descendants_include_grandchildren(tmp_path):
    for pid, parent in ((10, 1), (11, 10), (12, 11), (13, 1)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b) S {parent} 1 1 0")
    (tmp_path / "self").mkdir()
    (tmp_path / "14").mkdir()  # gone meanwhile
    assert descendants(10, tmp_path) == {11, 12}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in descendants(os.getpid())
        child.communicate(b"\n")


def test_ancestry_is_this_process_and_its_parents(tmp_path):
    assert ancestry()[:2] == [os.getpid(), *[os.getppid()][: os.getppid() > 1]]  # without init
    me = tmp_path / str(os.getpid())
    me.mkdir()
    (me / "stat").write_text(f"{os.getpid()} (a (b) c) S 77 1 1 0")
    assert ancestry(tmp_path) == [os.getpid(), 77]
    (me / "stat").write_text("garbage")
    assert ancestry(tmp_path) == [os.getpid()]
