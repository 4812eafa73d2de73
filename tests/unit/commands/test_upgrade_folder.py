"""The folder of an upgrade: held by one at a time, and never mixed with another."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest

from pytest_accel.commands.upgrade_folder import Plan, prepared
from pytest_accel.storage.results import write_results
from tests.support.results import make_session

PLAN = Plan(old="old.sif", new="new.sif", runs=5, arguments=("bench",), marks={"old": "1", "new": "2"})


def test_two_do_not_work_in_one_folder(tmp_path):
    folder = prepared(str(tmp_path / "kept"), tmp_path)
    with folder.held(), pytest.raises(ValueError, match="is at work there"), folder.held():
        pass
    with folder.held():  # and afterwards it is free again
        pass


def test_where_nothing_can_be_locked_it_goes_on(tmp_path, monkeypatch):
    """Lustre without -o flock, some NFS."""

    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    folder = prepared(str(tmp_path / "kept"), tmp_path)
    monkeypatch.setattr(fcntl, "flock", refuse)
    with folder.held() as lock:
        assert lock > 0


def test_what_cannot_be_a_folder_is_told_in_a_line(tmp_path):
    with pytest.raises(ValueError, match="there is no such home"):
        prepared("~nobody-of-this-name/x", tmp_path)
    folder = prepared(str(tmp_path / "kept"), tmp_path)
    (folder.root / ".lock").mkdir()
    with pytest.raises(ValueError, match="cannot be opened"), folder.held():
        pass


def test_a_phase_that_outlives_its_command_still_holds_the_folder(tmp_path):
    folder = prepared(str(tmp_path / "kept"), tmp_path)
    with folder.held() as lock:
        inherited = os.dup(lock)
    try:
        with pytest.raises(ValueError, match="a phase of one"), folder.held():
            pass
    finally:
        os.close(inherited)


def test_a_plan_is_read_as_it_was_written_and_before_results_it_may_change(tmp_path):
    folder = prepared(str(tmp_path / "kept"), tmp_path)
    folder.write(PLAN)
    other = Plan(old="another", new="new.sif", runs=3, arguments=(), marks={})
    assert folder.take(other) == other
    write_results(folder.results("old"), make_session())
    with pytest.raises(
        ValueError, match=r"it holds an upgrade with --old 'old\.sif', and this one has --old 'another'"
    ):
        folder.take(other)
    assert folder.take(PLAN) == PLAN


def test_words_that_were_not_written_down_are_compared_too(tmp_path):
    """A credential is redacted in the plan; two of them are two commands all the same."""
    folder = prepared(str(tmp_path / "kept"), tmp_path)
    folder.write(PLAN)
    write_results(folder.results("old"), make_session())
    same_text = Plan(
        old="old.sif", new="new.sif", runs=5, arguments=("bench",), marks={"old": "3", "new": "2"}
    )
    with pytest.raises(ValueError, match="--old"):
        folder.take(same_text)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"kind": "x"}', '{"kind": "pytest-accel upgrade plan"}'])
def test_a_bad_plan_is_one_clear_error(tmp_path, content):
    folder = prepared(str(tmp_path / "kept"), tmp_path)
    (folder.root / "plan.json").write_text(content)
    with pytest.raises(ValueError, match=r"plan\.json.*\n?.*Name a new folder with --keep\."):
        folder.take(PLAN)


def test_bad_results_say_which_file_to_delete(tmp_path):
    folder = prepared(str(tmp_path / "kept"), tmp_path)
    folder.results("new").write_text("{")
    with pytest.raises(ValueError, match=r"new\.json(.|\n)*Delete it to measure that phase again"):
        folder.complete("new")


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be written to"):
        prepared(str(tmp_path / "file" / "kept"), tmp_path)
