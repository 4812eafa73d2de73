"""Progress of a paired comparison: what is open, what is decided, and what became of the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.gate import Outcome
from pytest_accel.stats.paired import Decision, Effect, Sessions, Slot, assess, follow
from pytest_accel.stats.results import Ending, ReferenceFigure, ReportLine, Result
from pytest_accel.stats.run import Run
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
    own = {"runs": (run,), "environment": environment.key, "baseline": (), "verdicts": (), "changes": ()}
    return replace(made, **own, **more)


def ended(status, name: str = "test_a", side: str = "old") -> Result | None:
    if status is None:
        return None
    if status is Outcome.NO_BASELINE:
        return measured(name=name, side=side, status=status)
    return replace(make_result(status, name=name), baseline=(), verdicts=())


def filled(block: int, place: int, *results: Result | None, attempt: int = 1) -> Sessions:
    slot = Slot(block=block, place=place, attempt=attempt)
    return {slot: make_session([each for each in results if each])}


def joined(*parts: Sessions) -> Sessions:
    return {slot: session for part in parts for slot, session in part.items()}


def blocks(count: int, slower: float = 1.0) -> Sessions:
    slots = [Slot(block=block, place=place) for block in range(1, count + 1) for place in range(1, 5)]
    return {
        slot: make_session([measured(0.04 * (slower if slot.side == "new" else 1.0), side=slot.side)])
        for slot in slots
    }


def first_process() -> Sessions:
    return filled(1, 1, measured())


def effect(sessions: Sessions) -> Effect | None:
    """Return the effect of the only benchmark; None while it is open."""
    found = follow(sessions, 5)[NAME]
    return None if found.is_open else found.effect


def test_the_unchanged_is_decided_by_one_group_and_the_slower_by_two():
    assert effect(blocks(1)) is Effect.OK
    assert effect(blocks(1, 1.2)) is None
    assert effect(blocks(2, 1.2)) is Effect.REGRESSED
    assert effect(blocks(2, 0.8)) is Effect.IMPROVED


def test_pairs_stand_side_by_side_in_both_kinds_of_group():
    """With every run slower than the one before, only the right pairs cancel it."""
    sessions = {}
    for number, (slot, session) in enumerate(blocks(2).items()):
        (result,) = session.results
        slower = replace(result.runs[0], rounds_s=(0.04 * 1.01**number,) * 6)
        sessions[slot] = make_session([replace(result, runs=(slower,))])
    assert follow(sessions, 2)[NAME].verdict.slowdown.point == pytest.approx(0.0, abs=1e-9)


def test_a_group_that_is_not_whole_decides_nothing():
    for count in range(1, 4):
        part = follow(dict(list(blocks(1).items())[:count]), 5)[NAME]
        assert (part.is_open, part.verdict) == (True, None)


@pytest.mark.parametrize("status", [Ending.FAILED, Outcome.INVALID])
def test_a_run_that_came_to_nothing_is_replaced_once(status):
    spoilt = filled(1, 2, ended(status, side="new"))
    part = follow(joined(first_process(), spoilt), 5)[NAME]
    assert (part.is_open, part.wants_replacement) == (True, True)
    good = filled(1, 2, measured(side="new"), attempt=2)
    rest = filled(1, 3, measured(side="new")), filled(1, 4, measured())
    sessions = joined(first_process(), spoilt, good, *rest)
    part = follow(sessions, 5)[NAME]
    assert (part.effect, len(part.new)) == (Effect.OK, 2)
    assert any("1 run of the new environment" in note for note in assess(sessions, 5).notes)


def twice(block: int, place: int, status) -> Sessions:
    return joined(*(filled(block, place, ended(status), attempt=attempt) for attempt in (1, 2)))


def test_what_fails_twice_in_the_new_one_is_lost_and_says_why():
    (row,) = assess(joined(first_process(), twice(1, 2, Ending.FAILED)), 5).rows
    assert (row.effect, row.fails) == (Effect.LOST, True)
    assert "the loss is nan" in row.why


def test_what_is_lost_in_the_third_group_is_lost_all_the_same():
    sessions = joined(blocks(2, 1.04), filled(3, 1, measured()))
    assert effect(sessions) is None
    part = follow(joined(sessions, twice(3, 2, Ending.FAILED)), 5)[NAME]
    assert part.effect is Effect.LOST
    assert (len(part.old), len(part.new)) == (5, 4)  # what was measured before stays known


def test_disturbed_twice_is_not_judged_and_not_green():
    found = assess(joined(first_process(), twice(1, 2, Outcome.INVALID)), 5)
    (row,) = found.rows
    assert (row.effect, found.status) == (Effect.NOT_JUDGED, 1)
    assert "disturbed in the new environment" in row.why


def test_what_neither_runs_is_only_counted_and_what_one_runs_is_named():
    skipped = filled(1, 1, ended(Ending.SKIPPED))
    assert follow(skipped, 5)[NAME].is_open  # the other is asked first
    found = assess(joined(skipped, filled(1, 2, ended(Ending.SKIPPED))), 5)
    assert (found.notes, found.rows) == (("1 benchmark of other machines skipped in both",), ())
    assert effect(joined(skipped, filled(1, 2, measured(side="new")))) is Effect.NOT_JUDGED
    assert effect(joined(first_process(), filled(1, 2))) is Effect.LOST


def test_other_configurations_and_other_machines_are_not_compared():
    other = measured(side="new", configuration={"batch_size": 512})
    part = follow(joined(first_process(), filled(1, 2, other)), 5)[NAME]
    assert part.effect is Effect.NOT_JUDGED
    assert "the benchmark changed" in part.why
    limited = replace(NOW, identity={**NOW.identity, "power_limit_w": "500"})
    moved = replace(measured(side="new"), environment=limited.key)
    session = make_session([moved], environments={limited.key: limited})
    part = follow(joined(first_process(), {Slot(block=1, place=2): session}), 5)[NAME]
    assert "another machine (power limit (W) 700 -> 500)" in part.why


def test_the_whole_says_what_differs_and_news_of_the_loss():
    sessions = dict(blocks(1))
    (new,) = sessions[Slot(block=1, place=3)].results
    moved = replace(new, runs=(replace(new.runs[0], loss=2.5),))
    sessions[Slot(block=1, place=3)] = make_session([moved])
    found = assess(sessions, 5)
    assert found.decision is Decision.ACCEPT
    assert "torch" in {change.name for change in found.changes}
    assert found.rows[0].numerics == "loss after the same seeded steps 2 -> 2.5"


def misses_reference(side: str) -> Result:
    short = "4,000 is below the 4,200 of pyproject.toml"
    reference = ReferenceFigure(
        id="x", source="x", platform="h200", metric="throughput", unit="images/s", value=4200, shortfall=short
    )
    return measured(
        side=side,
        status=Ending.FAILED,
        failed=True,
        lines=(ReportLine(text=short, status=Ending.FAILED),),
        references=(reference,),
    )


@pytest.mark.parametrize(
    ("sides", "decision"), [({"new"}, Decision.REJECT), ({"old", "new"}, Decision.ACCEPT)]
)
def test_a_missed_reference_is_measured_and_rejects_where_the_old_environment_reaches_it(sides, decision):
    sessions = {
        slot: make_session([misses_reference(slot.side)]) if slot.side in sides else session
        for slot, session in blocks(1).items()
    }
    found = assess(sessions, 5)
    assert (found.rows[0].effect, found.decision, found.notes) == (Effect.OK, decision, ())


def test_an_open_one_is_inconclusive_where_it_ended_early():
    found = assess(blocks(1, 1.2), 5)
    assert [row.effect for row in found.rows] == [Effect.INCONCLUSIVE]
    assert (found.decision, found.status) == (Decision.UNDECIDED, 0)
    found = assess(dict(list(blocks(1).items())[:2]), 5)
    assert [row.effect for row in found.rows] == [Effect.NOT_JUDGED]
    assert found.status == 1


@given(st.lists(ENDINGS, min_size=1, max_size=16))
def test_whatever_the_runs_come_to_nothing_is_lost_and_green_means_judged(endings):
    sessions: Sessions = {}
    for number, status in enumerate(endings):
        slot = Slot(block=number // 4 + 1, place=number % 4 + 1)
        for attempt in (1, 2) if status in (Ending.FAILED, Outcome.INVALID) else (1,):
            results = ended(status, side=slot.side), measured(name="test_b")
            sessions = joined(sessions, filled(slot.block, slot.place, *results, attempt=attempt))
    found, followed = assess(sessions, 5), follow(sessions, 5)
    known = {result.benchmark for each in sessions.values() for result in each.results}
    skipped = sum(each.effect is Effect.SKIPPED for each in followed.values())
    assert len(found.rows) + skipped == len(known)
    if NAME in followed and followed[NAME].effect is Effect.OK:
        assert set(endings[:4]) == {Outcome.NO_BASELINE}
