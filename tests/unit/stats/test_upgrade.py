"""Two environments on one machine: what happened to each benchmark, whether to believe it, and what that costs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.results import Ending
from pytest_accel.stats.upgrade import JUDGED, Decision, Effect, assess
from pytest_accel.stats.verdict import Outcome
from tests.support.results import THEN, a_platform_shift, make_result, make_session

STATUSES = (*Outcome, *Ending)
GATE = (Outcome.REGRESSED, Outcome.OK, Outcome.IMPROVED, Outcome.INCONCLUSIVE)
made = cache(make_result)  # verdicts are drawn until the gate says what is wanted


def session(**endings):
    """Results by the name of their benchmark; None leaves one out."""
    return make_session(made(status, name=name) for name, status in endings.items() if status is not None)


def one(old=Ending.RECORDED, new=Outcome.OK, again=Outcome.OK):
    """An upgrade with one benchmark; `again` False is no bracket."""
    second = None if again is False else session(test_a=again)
    return assess(session(test_a=old), session(test_a=new), second)


def effect(**endings) -> Effect:
    (row,) = one(**endings).rows
    return row.effect


@pytest.mark.parametrize("new", GATE, ids=lambda status: status.value)
def test_the_gate_has_the_word_where_the_old_environment_stands_still(new):
    assert effect(new=new).value == new.value
    assert effect(new=new, again=False).value == new.value


@pytest.mark.parametrize("new", GATE, ids=lambda status: status.value)
@pytest.mark.parametrize("again", [Outcome.REGRESSED, Outcome.IMPROVED], ids=lambda status: status.value)
def test_a_machine_that_moved_is_told_apart_from_an_upgrade(new, again):
    found = one(new=new, again=again)
    assert effect(new=new, again=again) is Effect.DRIFTED
    assert (found.decision, found.status) == (Decision.REPEAT, 1)


def test_a_drift_of_one_benchmark_does_not_excuse_another():
    old = session(test_a=Ending.RECORDED, test_b=Ending.RECORDED)
    new = session(test_a=Outcome.REGRESSED, test_b=Outcome.REGRESSED)
    again = session(test_a=Outcome.REGRESSED, test_b=Outcome.OK)
    found = assess(old, new, again)
    assert [row.effect for row in found.rows] == [Effect.DRIFTED, Effect.REGRESSED]
    assert found.decision is Decision.REJECT


def test_an_inconclusive_second_look_changes_no_verdict_and_leaves_the_question_open():
    assert effect(new=Outcome.REGRESSED, again=Outcome.INCONCLUSIVE) is Effect.REGRESSED
    found = one(new=Outcome.OK, again=Outcome.INCONCLUSIVE)
    assert [row.effect for row in found.open] == [Effect.OK]
    assert (found.decision, found.status) == (Decision.LOOK, 0)


@pytest.mark.parametrize(
    "new",
    [None, Ending.FAILED, Ending.SKIPPED, Outcome.VANISHED, Outcome.INVALID],
    ids=str,
)
def test_what_only_the_old_environment_measures_is_lost(new):
    found = one(new=new)
    assert [row.effect for row in found.rows] == [Effect.LOST]
    assert (found.decision, found.status) == (Decision.REJECT, 1)


@pytest.mark.parametrize("again", [None, Ending.FAILED, Outcome.INVALID], ids=str)
def test_what_the_old_environment_no_longer_runs_is_no_fault_of_the_new_one(again):
    found = one(new=Ending.FAILED, again=again)
    assert [row.effect for row in found.rows] == [Effect.DRIFTED]
    assert "either" in found.rows[0].why
    assert one(new=Outcome.OK, again=again).decision is Decision.REPEAT


@pytest.mark.parametrize("old", [None, Ending.FAILED, Outcome.DOES_NOT_FIT, Ending.NOT_MEASURED], ids=str)
def test_without_a_recording_nothing_is_judged_and_that_is_not_green(old):
    found = one(old=old, new=Outcome.NO_BASELINE)
    assert [row.effect for row in found.rows] == [Effect.NOT_JUDGED]
    assert (found.decision, found.status) == (Decision.REPEAT, 1)


def test_a_benchmark_that_only_the_new_one_can_run_costs_nothing_beside_others():
    found = assess(
        session(test_a=Ending.RECORDED, test_b=Ending.FAILED),
        session(test_a=Outcome.OK, test_b=Outcome.NO_BASELINE),
    )
    assert [row.effect for row in found.rows] == [Effect.OK, Effect.NOT_JUDGED]
    assert (found.decision, found.status) == (Decision.LOOK, 0)


def test_a_changed_configuration_is_not_judged_and_fails_as_its_session_failed():
    old, new = session(test_a=Ending.RECORDED, test_b=Ending.RECORDED), session(test_b=Outcome.OK)
    stale = replace(made(Outcome.STALE_BASELINE, name="test_a"), failed=True)
    found = assess(old, replace(new, results=(*new.results, stale)))
    assert [row.effect for row in found.rows] == [Effect.NOT_JUDGED, Effect.OK]
    assert (found.decision, found.status) == (Decision.LOOK, 1)


def test_an_open_question_is_to_be_looked_at_and_costs_what_its_session_says():
    assert (one(new=Outcome.INCONCLUSIVE).decision, one(new=Outcome.INCONCLUSIVE).status) == (
        Decision.LOOK,
        0,
    )
    failing = replace(made(Outcome.INCONCLUSIVE, name="test_a"), failed=True)
    assert assess(session(test_a=Ending.RECORDED), make_session([failing])).status == 1


def test_ok_with_a_failure_of_its_own_is_not_accepted():
    torn = replace(made(Outcome.OK, name="test_a"), failed=True)
    found = assess(session(test_a=Ending.RECORDED), make_session([torn]))
    assert (found.decision, found.status) == (Decision.REJECT, 1)


def test_benchmarks_of_other_machines_are_counted_and_no_more():
    found = assess(
        session(test_a=Ending.RECORDED, test_b=Ending.SKIPPED),
        session(test_a=Outcome.OK, test_b=Ending.SKIPPED),
    )
    assert ([row.name for row in found.rows], found.skipped) == (["test_a"], 1)
    assert found.decision is Decision.ACCEPT


def test_nothing_at_all_is_not_green():
    found = assess(session(), session())
    assert (found.decision, found.status) == (Decision.REPEAT, 1)


def test_what_differs_is_between_the_two_environments():
    then = make_session([replace(made(Ending.RECORDED, name="test_a"), environment=THEN.key)])
    found = assess(then, session(test_a=Outcome.OK))
    assert "torch 2.10.0 -> 2.11.0" in list(map(str, found.changes))
    assert found.changes[0].name == "driver"  # the most telling first
    assert found.identity == ()
    assert assess(session(test_a=Ending.RECORDED), session(test_a=Outcome.OK)).changes == ()


def test_remarks_name_another_host_a_drill_and_a_missing_bracket():
    slowed = made(Outcome.REGRESSED, name="test_a")
    slowed = replace(
        slowed, runs=tuple(replace(run, metrics={**run.metrics, "slowdown_felt": 0.1}) for run in slowed.runs)
    )
    new = make_session([slowed], host="gpu-018", revision="f" * 40)
    remarks = "\n".join(assess(session(test_a=Ending.RECORDED), new).remarks)
    assert "new: 3 runs delayed on purpose" in remarks
    assert "olivia-gpu-017, gpu-018" in remarks
    assert "another git revision" in remarks
    assert "was not measured again" in remarks
    assert one().remarks == ()


# --- whatever the sessions say -------------------------------------------------------------------------

NAMES = ("test_a", "test_b", "test_c")
sessions = st.fixed_dictionaries(dict.fromkeys(NAMES, st.one_of(st.none(), st.sampled_from(STATUSES)))).map(
    lambda endings: session(**endings)
)


@given(old=sessions, new=sessions, again=st.one_of(st.none(), sessions))
def test_green_means_that_something_was_judged_and_nothing_is_worse(old, new, again):
    found = assess(old, new, again)
    assert len(found.rows) == len({row.benchmark for row in found.rows})
    assert {row.effect for row in found.rows} <= set(Effect)
    if found.status == 0:
        assert found.judged
        assert not found.of(Effect.REGRESSED, Effect.LOST, Effect.DRIFTED)
        assert found.decision in {Decision.ACCEPT, Decision.LOOK}
    if found.decision is Decision.ACCEPT:
        assert all(row.effect in {Effect.OK, Effect.IMPROVED} for row in found.rows)
        assert not any(row.is_unsure for row in found.rows)
    if found.decision in {Decision.REJECT, Decision.REPEAT}:
        assert found.status == 1


@given(old=sessions, new=sessions, again=sessions)
def test_a_bracket_only_ever_takes_belief_away(old, new, again):
    bare, bracketed = assess(old, new), assess(old, new, again)
    for before, after in zip(bare.rows, bracketed.rows, strict=True):
        assert after.effect in {before.effect, Effect.DRIFTED}
        assert before.effect is not Effect.NOT_JUDGED or after.effect is Effect.NOT_JUDGED
    assert bare.status <= bracketed.status


@given(old=sessions, new=sessions)
def test_no_recorded_benchmark_goes_unmentioned(old, new):
    mentioned = {row.benchmark for row in assess(old, new).rows}
    assert {each.benchmark for each in old.results if each.status is Ending.RECORDED} <= mentioned


def test_every_pair_of_endings_has_an_effect():
    for old, new in itertools.product((None, *STATUSES), repeat=2):
        for row in one(old=old, new=new).rows:
            assert row.effect in JUDGED or row.why


def together(session_):
    """The same session, whose platform lost as a whole: its benchmarks were judged on the rest."""
    platform = a_platform_shift(made(Outcome.OK).disk_name)
    return replace(session_, results=(*session_.results, platform))


def test_what_all_benchmarks_lost_together_is_the_upgrade_and_rejected():
    old, well = (
        session(test_a=Ending.RECORDED, test_b=Ending.RECORDED),
        session(test_a=Outcome.OK, test_b=Outcome.OK),
    )
    found = assess(old, together(well), well)
    assert [row.effect for row in found.rows] == [Effect.REGRESSED, Effect.REGRESSED]
    assert all(row.why == a_platform_shift().text for row in found.rows)
    assert (found.decision, found.status) == (Decision.REJECT, 1)


def test_a_machine_that_lost_as_a_whole_meanwhile_is_no_witness():
    old, well = session(test_a=Ending.RECORDED), session(test_a=Outcome.OK)
    found = assess(old, well, together(well))
    assert [row.effect for row in found.rows] == [Effect.DRIFTED]
    assert (found.decision, found.status) == (Decision.REPEAT, 1)
