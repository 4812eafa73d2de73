"""Which groups of a duet are whole."""

from __future__ import annotations

import pytest

from pytest_accel.commands.duet_folder import DuetFolder
from pytest_accel.commands.upgrade_folder import prepared_as
from pytest_accel.stats.duet_course import Turn
from pytest_accel.stats.results import Ending
from pytest_accel.stats.verdict import Outcome
from pytest_accel.storage.results import write_results
from tests.support.results import make_result, make_session


@pytest.fixture
def folder(tmp_path):
    return prepared_as(DuetFolder, str(tmp_path / "kept"), tmp_path)


def play(folder, place, status=Outcome.NO_BASELINE, attempt=1, group=1):
    turn = Turn(group=group, place=place, attempt=attempt)
    write_results(folder.left_by(turn), make_session([make_result(status, name="test_a")]))


def test_four_first_attempts_are_a_group(folder):
    for place in (1, 2, 3):
        play(folder, place)
    assert folder.played() == []
    play(folder, 4)
    assert len(folder.played()) == 4


@pytest.mark.parametrize("status", [Ending.FAILED, Outcome.INVALID])
def test_one_whose_replacement_was_never_played_is_none_and_makes_room(folder, status):
    for place in (1, 2, 3):
        play(folder, place)
    play(folder, 4, status)
    assert folder.played() == []
    assert folder.set_unfinished_aside(1) is not None
    assert not folder.left_by(Turn(group=1, place=1)).exists()


def test_what_failed_twice_needs_no_third(folder):
    for place in (1, 2, 3):
        play(folder, place)
    for attempt in (1, 2):
        play(folder, 4, Ending.FAILED, attempt)
    assert len(folder.played()) == 5
