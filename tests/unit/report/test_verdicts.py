"""The table of verdicts: complete, consistent, and the one that every report and the documentation read."""

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_accel.options import Settings
from pytest_accel.report.terminal import line_of, line_text
from pytest_accel.report.verdicts import VERDICTS, fails, in_order, is_resolved, shown_status
from pytest_accel.stats.gate import Estimate, Outcome, Verdict
from pytest_accel.stats.results import Ending
from tests.support.results import a_platform_shift, make_result

JUDGED = {Outcome.OK, Outcome.IMPROVED, Outcome.REGRESSED, Outcome.INCONCLUSIVE}
ROOT = Path(__file__).parents[3]


def test_every_status_has_a_row_and_outcomes_are_ten_at_most():
    assert set(VERDICTS) == {*Outcome, *Ending}
    assert len(Outcome) <= 10


@pytest.mark.parametrize(("status", "row"), VERDICTS.items(), ids=lambda value: getattr(value, "value", ""))
def test_row_is_complete(status, row):
    assert row.word.lower() == status.value
    assert row.meaning.endswith(".")
    assert row.remedy.endswith(".") or is_resolved(status)
    assert f'id="i-{row.icon}"' in (ROOT / "pytest_accel/report/page/assets/page.html").read_text()


def test_what_needs_attention_is_in_capitals():
    lower = {status for status, row in VERDICTS.items() if row.word.islower()}
    assert lower == {*filter(is_resolved, VERDICTS), Outcome.IMPROVED}


def test_letters_differ():
    letters = [row.letter for row in VERDICTS.values() if row.letter]
    assert len(letters) == len(set(letters))


@pytest.mark.parametrize("outcome", Outcome)
def test_line_begins_with_the_word_and_is_one_line(outcome):
    verdict = Verdict(
        outcome=outcome, tolerance=0.05, slowdown=Estimate(point=0.1, low=0.05, high=0.2), reason="because"
    )
    line = line_text("x", line_of(verdict))
    assert line.startswith(f"{VERDICTS[outcome].word}  x: ")
    assert "\n" not in line
    assert line.endswith("because") is (outcome not in JUDGED)


@pytest.mark.parametrize("status", VERDICTS, ids=lambda status: status.value)
def test_effect_on_the_test_follows_its_setting(status):
    effect = VERDICTS[status].effect
    if effect in ("passes", "fails"):
        assert fails(status, Settings()) is (effect == "fails")
        return
    assert fails(status, replace(Settings(), **{effect: "fail"}))
    assert not fails(status, replace(Settings(), **{effect: "warn"}))


def test_failures_come_first_and_a_platform_before_its_benchmarks():
    ok, gain, slow = make_result(), make_result(Outcome.IMPROVED), make_result(Outcome.REGRESSED)
    broken, shift = make_result(Ending.FAILED), a_platform_shift()
    assert in_order([ok, gain, broken, slow, shift]) == [shift, slow, broken, gain, ok]


def test_the_larger_loss_comes_first():
    small = make_result(Outcome.REGRESSED)
    (verdict,) = small.verdicts
    large = replace(small, verdicts=(replace(verdict, slowdown=Estimate(point=0.5, low=0.4, high=0.6)),))
    assert in_order([small, large]) == [large, small]


def test_a_gain_that_failed_in_its_teardown_has_failed():
    assert shown_status(replace(make_result(Outcome.IMPROVED), failed=True)) is Ending.FAILED
    assert shown_status(replace(make_result(Outcome.INCONCLUSIVE), failed=True)) is Outcome.INCONCLUSIVE
