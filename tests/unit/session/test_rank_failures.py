"""A failure of one rank fails all ranks with the same text."""

from types import SimpleNamespace

import pytest

from pytest_accel.measure.arguments import OutOfMemory
from pytest_accel.measure.rounds import Alone
from pytest_accel.session.accel import MEASUREMENT, Accel, fail_where_one_does


def ranks(*problems):
    """Return ranks that gather these problems, each with whether memory ran out."""
    return SimpleNamespace(size=len(problems), rank=0, gather=lambda _: list(problems))


FINE, BOOM, UNFIT = ("", False), ("boom", False), ("too big", True)


@pytest.mark.parametrize("group", [ranks(FINE, FINE), Alone()])
def test_ranks_without_problem_and_a_single_rank_do_not_fail(group):
    fail_where_one_does(group, "" if group.size > 1 else "boom")


@pytest.mark.parametrize(
    ("problems", "raised", "words"),
    [
        ((FINE, BOOM), pytest.fail.Exception, "rank 1: boom"),
        ((UNFIT, BOOM), pytest.fail.Exception, "rank 1: boom"),
        ((BOOM, BOOM), pytest.fail.Exception, "^boom$"),
        ((FINE, UNFIT), OutOfMemory, "^rank 1: too big$"),
        ((UNFIT, UNFIT), OutOfMemory, "^too big$"),
    ],
)
def test_failure_of_one_rank_fails_all_with_the_same_text(problems, raised, words):
    with pytest.raises(raised, match=words):
        fail_where_one_does(ranks(*problems), problems[0][0], out_of_memory=problems[0][1])


@pytest.mark.parametrize(
    "theirs", [{"unit": "tokens"}, {"configuration": {"rank": 1}}, {"gates": {"decode_s": 0.1}}]
)
def test_ranks_that_measure_different_things_fail(theirs):
    gathered = []

    def gather(mine):
        if isinstance(mine, tuple):
            return [mine, mine]  # no problem
        gathered.append(mine)
        return [gathered[0], mine]

    parts = dict.fromkeys(("platform", "settings", "device_", "hardware", "benchmark", "timer"))
    item = SimpleNamespace(stash={MEASUREMENT: None})
    accel = Accel(**parts, item=item, ranks=SimpleNamespace(size=2, rank=0, gather=gather))
    for own, words in (({}, "measures one step"), (theirs, "differ between rank 0 and rank 1")):
        with pytest.raises(pytest.fail.Exception, match=words):
            accel.measure(lambda: None, **{"work": 1, "unit": "images", **own})
