"""What fails on one rank fails on all, in the same words, and as what it is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_accel.measure.errors import OutOfMemory
from pytest_accel.measure.ranks import Alone
from pytest_accel.session.accel import fail_where_one_does


def ranks(*told):
    """As rank 0 sees them: each told a problem, and whether it is memory that ran out."""
    return SimpleNamespace(size=len(told), rank=0, gather=lambda _: list(told))


FINE, UNFIT = ("", False), ("too big", True)


def test_nothing_happens_where_nothing_happened():
    fail_where_one_does(ranks(FINE, FINE), "")


def test_one_rank_alone_is_left_to_itself():
    fail_where_one_does(Alone(), "boom")


@pytest.mark.parametrize("told", [(FINE, ("boom", False)), (UNFIT, ("boom", False))])
def test_a_failure_names_its_rank(told):
    with pytest.raises(pytest.fail.Exception, match="rank 1: boom"):
        fail_where_one_does(ranks(*told), told[0][0])


def test_the_same_everywhere_is_said_once():
    with pytest.raises(pytest.fail.Exception, match=r"^boom$"):
        fail_where_one_does(ranks(("boom", False), ("boom", False)), "boom")


@pytest.mark.parametrize(
    ("told", "words"), [((FINE, UNFIT), "^rank 1: too big$"), ((UNFIT, UNFIT), "^too big$")]
)
def test_memory_that_ran_out_and_nothing_else_ran_out_on_all(told, words):
    with pytest.raises(OutOfMemory, match=words):
        fail_where_one_does(ranks(*told), told[0][0], out_of_memory=told[0][1])
