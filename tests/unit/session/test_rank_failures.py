"""A failure of one rank fails all ranks with the same text."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_accel.measure.errors import OutOfMemory
from pytest_accel.measure.ranks import Alone
from pytest_accel.session.accel import fail_where_one_does


def ranks(*problems):
    """Return ranks that gather these problems, each with whether memory ran out."""
    return SimpleNamespace(size=len(problems), rank=0, gather=lambda _: list(problems))


FINE, UNFIT = ("", False), ("too big", True)


def test_ranks_without_problem_do_not_fail():
    fail_where_one_does(ranks(FINE, FINE), "")


def test_single_rank_fails_by_itself():
    fail_where_one_does(Alone(), "boom")


@pytest.mark.parametrize("problems", [(FINE, ("boom", False)), (UNFIT, ("boom", False))])
def test_failure_names_its_rank(problems):
    with pytest.raises(pytest.fail.Exception, match="rank 1: boom"):
        fail_where_one_does(ranks(*problems), problems[0][0])


def test_problem_of_all_ranks_is_printed_once():
    with pytest.raises(pytest.fail.Exception, match=r"^boom$"):
        fail_where_one_does(ranks(("boom", False), ("boom", False)), "boom")


@pytest.mark.parametrize(
    ("problems", "words"), [((FINE, UNFIT), "^rank 1: too big$"), ((UNFIT, UNFIT), "^too big$")]
)
def test_memory_that_ran_out_on_one_rank_ran_out_on_all(problems, words):
    with pytest.raises(OutOfMemory, match=words):
        fail_where_one_does(ranks(*problems), problems[0][0], out_of_memory=problems[0][1])
