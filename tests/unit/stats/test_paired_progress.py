"""Progress of a paired comparison: what is open, what is decided, and what became of the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.paired import Decision, Effect, FilledSlot, Slot, assess, follow
from pytest_accel.stats.results import Ending, Result
from pytest_accel.stats.run import Run
from pytest_accel.stats.verdict import Outcome
from tests.support.results import NOW, THEN, make_result, make_session

NAME = "bench_suites/test_cnn.py::test_a"
ENDINGS = st.sampled_from(
    [
        Outcome.NO_BASELINE,
        Outcome.INVALID,
        Outcome.DOES_NOT_FIT,
        Ending.FAILED,
        Ending.SKIPPED,
        None,
    ]
)


def measured(step_s: float = 0.04, name: str = "test_a", side: str = "old", **more: object) -> Result:
    environment = THEN if side == "old" else NOW
    run = Run(session="s", rounds_s=(step_s,) * 6, steps_per_round=10, environment=environment.key, loss=2.0)
    made = make_result(Outcome.NO_BASELINE, name=name)
    return replace(
        made, runs=(run,), environment=environment.key, baseline=(), verdicts=(), changes=(), **more
    )


def ended(status, name: str = "test_a", side: str = "old") -> Result | None:
    if status is None:
        return None
    if status is Outcome.NO_BASELINE:
        return measured(name=name, side=side, status=status)
    return replace(make_result(status, name=name), baseline=(), verdicts=())


def filled(block: int, place: int, *results: Result | None, attempt: int = 1) -> FilledSlot:
    slot = Slot(block=block, place=place, attempt=attempt)
    return FilledSlot(slot=slot, session=make_session([each for each in results if each]))


def blocks(count: int, slower: float = 1.0, name: str = "test_a") -> list[FilledSlot]:
    slots = [Slot(block=block, place=place) for block in range(1, count + 1) for place in range(1, 5)]
    return [
        filled(
            slot.block,
            slot.place,
            measured(0.04 * (slower if slot.side == "new" else 1.0), name, slot.side),
        )
        for slot in slots
    ]


def effect(plays: list[FilledSlot]) -> Effect | None:
    return follow(plays, 5)[NAME].effect


def test_the_unchanged_is_decided_by_one_group_and_the_slower_by_two():
    assert effect(blocks(1)) is Effect.OK
    assert effect(blocks(1, 1.2)) is None
    assert effect(blocks(2, 1.2)) is Effect.REGRESSED
    assert effect(blocks(2, 0.8)) is Effect.IMPROVED


def test_pairs_stand_side_by_side_in_both_kinds_of_group():
    """With every run slower than the one before, only the right pairs cancel it."""
    plays = []
    for number, each in enumerate(blocks(2)):
        (result,) = each.session.results
        (run,) = result.runs
        slower = replace(run, rounds_s=(0.04 * 1.01**number,) * 6)
        plays.append(replace(each, session=make_session([replace(result, runs=(slower,))])))
    part = follow(plays, 2)[NAME]
    assert part.verdict.slowdown.point == pytest.approx(0.0, abs=1e-9)


def test_a_group_that_is_not_whole_decides_nothing():
    for count in range(1, 4):
        part = follow(blocks(1)[:count], 5)[NAME]
        assert (part.is_open, part.verdict) == (True, None)


@pytest.mark.parametrize("status", [Ending.FAILED, Outcome.INVALID])
def test_a_run_that_came_to_nothing_is_replaced_once(status):
    first, second, third, fourth = blocks(1)
    spoilt = filled(1, 2, ended(status, side="new"))
    part = follow([first, spoilt], 5)[NAME]
    assert (part.is_open, part.wants_replacement) == (True, True)
    good = replace(second, slot=Slot(block=1, place=2, attempt=2))
    part = follow([first, spoilt, good, third, fourth], 5)[NAME]
    assert (part.effect, len(part.new)) == (Effect.OK, 2)
    found = assess([first, spoilt, good, third, fourth], 5)
    assert any("1 run of the new environment" in note for note in found.notes)


def test_what_fails_twice_in_the_new_one_is_lost_and_says_why():
    first, *_ = blocks(1)
    plays = [first, *(filled(1, 2, ended(Ending.FAILED), attempt=attempt) for attempt in (1, 2))]
    (row,) = assess(plays, 5).rows
    assert (row.effect, row.fails) == (Effect.LOST, True)
    assert "the loss is nan" in row.why


def test_what_is_lost_in_the_third_group_is_lost_all_the_same():
    plays = [*blocks(2, 1.04), filled(3, 1, measured())]
    assert effect(plays) is None
    plays += [filled(3, 2, ended(Ending.FAILED), attempt=attempt) for attempt in (1, 2)]
    part = follow(plays, 5)[NAME]
    assert part.effect is Effect.LOST
    assert (len(part.old), len(part.new)) == (5, 4)  # what was measured before stays known


def test_disturbed_twice_is_not_judged_and_not_green():
    first, *_ = blocks(1)
    plays = [first, *(filled(1, 2, ended(Outcome.INVALID), attempt=attempt) for attempt in (1, 2))]
    found = assess(plays, 5)
    (row,) = found.rows
    assert (row.effect, found.status) == (Effect.NOT_JUDGED, 1)
    assert "disturbed in the new environment" in row.why


def test_what_neither_runs_is_only_counted_and_what_one_runs_is_named():
    skipped = ended(Ending.SKIPPED)
    assert follow([filled(1, 1, skipped)], 5)[NAME].is_open  # the other is asked first
    found = assess([filled(1, 1, skipped), filled(1, 2, skipped)], 5)
    assert (found.notes, found.rows) == (("1 benchmark of other machines skipped in both",), ())
    assert effect([filled(1, 1, skipped), filled(1, 2, measured(side="new"))]) is Effect.NOT_JUDGED
    assert effect([filled(1, 1, measured()), filled(1, 2)]) is Effect.LOST


def test_other_configurations_and_other_machines_are_not_compared():
    first, *_ = blocks(1)
    other = measured(side="new", configuration={"batch_size": 512})
    part = follow([first, filled(1, 2, other)], 5)[NAME]
    assert part.effect is Effect.NOT_JUDGED
    assert "the benchmark changed" in part.why
    limited = replace(NOW, identity={**NOW.identity, "power_limit_w": "500"})
    moved = replace(measured(side="new"), environment=limited.key)
    session = make_session([moved], environments={limited.key: limited})
    part = follow([first, FilledSlot(slot=Slot(block=1, place=2), session=session)], 5)[NAME]
    assert "another machine (power limit (W) 700 -> 500)" in part.why


def test_the_whole_says_what_differs_and_news_of_the_loss():
    plays = blocks(1)
    (new,) = plays[2].session.results
    moved = replace(new, runs=(replace(new.runs[0], loss=2.5),))
    plays[2] = replace(plays[2], session=make_session([moved]))
    found = assess(plays, 5)
    assert found.decision is Decision.ACCEPT
    assert "torch" in {change.name for change in found.changes}
    assert found.rows[0].numerics == "loss after the same seeded steps 2 -> 2.5"


def test_an_open_one_is_inconclusive_where_it_ended_early():
    found = assess(blocks(1, 1.2), 5)
    assert [row.effect for row in found.rows] == [Effect.INCONCLUSIVE]
    assert (found.decision, found.status) == (Decision.UNDECIDED, 0)
    found = assess(blocks(1)[:2], 5)
    assert [row.effect for row in found.rows] == [Effect.NOT_JUDGED]
    assert found.status == 1


@given(st.lists(ENDINGS, min_size=1, max_size=16))
def test_whatever_the_runs_come_to_nothing_is_lost_and_green_means_judged(endings):
    plays = []
    for number, status in enumerate(endings):
        slot = Slot(block=number // 4 + 1, place=number % 4 + 1)
        plays.append(filled(slot.block, slot.place, ended(status, side=slot.side), measured(name="test_b")))
        if status in (Ending.FAILED, Outcome.INVALID):
            again = ended(status, side=slot.side)
            plays.append(filled(slot.block, slot.place, again, measured(name="test_b"), attempt=2))
    found = assess(plays, 5)
    known = {result.benchmark for each in plays for result in each.session.results}
    skipped = sum(each.is_elsewhere for each in follow(plays, 5).values())
    assert len(found.rows) + skipped == len(known)
    part = follow(plays, 5).get(NAME)
    if part is not None and part.effect is Effect.OK:
        assert set(endings[:4]) == {Outcome.NO_BASELINE}
