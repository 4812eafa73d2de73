"""The folder of an upgrade: one command at a time, complete blocks, and never mixed with another upgrade."""

from __future__ import annotations

import errno
import fcntl
import os
from dataclasses import replace

import pytest

from pytest_accel.commands.upgrade_folder import UpgradePlan, open_folder
from pytest_accel.stats.paired import Slot
from pytest_accel.stats.results import Ending
from pytest_accel.stats.verdict import Outcome
from pytest_accel.storage.results import write_results
from tests.support.results import make_result, make_session

PLAN = UpgradePlan(
    kind="pytest-accel upgrade plan",
    old="old.sif",
    new="new.sif",
    blocks=5,
    arguments=("bench",),
    fingerprints={"old": "1", "new": "2"},
)


@pytest.fixture
def folder(tmp_path):
    return open_folder(str(tmp_path / "kept"), tmp_path)


def fill(folder, *places, status=Outcome.NO_BASELINE, attempt=1):
    for place in places:
        slot = Slot(block=1, place=place, attempt=attempt)
        write_results(folder.results(slot), make_session([make_result(status, name="test_a")]))


def test_four_first_attempts_complete_a_block(folder):
    fill(folder, 1, 2, 3)
    assert folder.filled() == []
    fill(folder, 4)
    assert len(folder.filled()) == 4


@pytest.mark.parametrize("status", [Ending.FAILED, Outcome.INVALID])
def test_block_without_a_wanted_replacement_is_incomplete_and_set_aside(folder, status):
    fill(folder, 1, 2, 3)
    fill(folder, 4, status=status)
    assert folder.filled() == []
    assert folder.set_unfinished_aside(1) is not None
    assert not folder.results(Slot(block=1, place=1)).exists()


def test_benchmark_that_failed_twice_needs_no_third_attempt(folder):
    fill(folder, 1, 2, 3)
    for attempt in (1, 2):
        fill(folder, 4, status=Ending.FAILED, attempt=attempt)
    assert len(folder.filled()) == 5


def test_session_that_was_interrupted_is_not_complete(folder):
    fill(folder, 1, 2, 3)
    interrupted = make_session([make_result(Outcome.NO_BASELINE, name="test_a")], exit_status=2)
    write_results(folder.results(Slot(block=1, place=4)), interrupted)
    assert folder.filled() == []


def test_folder_is_held_by_one_command_and_the_processes_that_outlive_it(folder):
    with folder.held(), pytest.raises(ValueError, match="is at work there"), folder.held():
        pass
    with folder.held() as lock:
        inherited = os.dup(lock)
    try:
        with pytest.raises(ValueError, match="a process of one"), folder.held():
            pass
    finally:
        os.close(inherited)
    with folder.held():
        pass


def test_file_system_without_locks_is_used_unlocked(folder, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with folder.held() as lock:
        assert lock > 0


def test_folder_that_cannot_be_used_is_one_clear_error(tmp_path, folder):
    with pytest.raises(ValueError, match="there is no such home"):
        open_folder("~nobody-of-this-name/x", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be written to"):
        open_folder(str(tmp_path / "file" / "kept"), tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    with pytest.raises(ValueError, match="no upgrade began there"):
        open_folder(str(tmp_path / "other"), tmp_path)
    (folder.root / ".lock").mkdir()
    with pytest.raises(ValueError, match="cannot be opened"), folder.held():
        pass


def test_plan_may_change_only_before_the_first_block(folder):
    folder.write(PLAN)
    other = replace(PLAN, old="another")
    assert folder.adopt(other) == other
    fill(folder, 1, 2, 3, 4)
    with pytest.raises(
        ValueError, match=r"it holds an upgrade with OLD 'old\.sif', and this one has OLD 'another'"
    ):
        folder.adopt(other)
    with pytest.raises(ValueError, match="--blocks 5, and this one has --blocks 3"):
        folder.adopt(replace(PLAN, blocks=3))
    assert folder.adopt(PLAN) == PLAN


def test_credentials_are_compared_although_they_are_not_written(folder):
    folder.write(PLAN)
    fill(folder, 1, 2, 3, 4)
    with pytest.raises(ValueError, match="OLD"):
        folder.adopt(replace(PLAN, fingerprints={"old": "3", "new": "2"}))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"kind": "x"}', '{"kind": "pytest-accel upgrade plan"}'])
def test_bad_plan_is_one_clear_error(folder, content):
    (folder.root / "plan.json").write_text(content)
    with pytest.raises(ValueError, match=r"plan\.json.*\n?.*Name a new folder with --keep\."):
        folder.adopt(PLAN)


def test_bad_results_name_the_file_to_delete(folder):
    folder.results(Slot(block=1, place=1)).write_text("{")
    with pytest.raises(ValueError, match=r"01-1-old\.json(.|\n)*Delete it to measure that block again"):
        folder.filled()
