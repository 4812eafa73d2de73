"""Statistics of pairs: what two environments share cancels, and the outcomes are the gate's."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.gate import Outcome, Policy
from pytest_accel.stats.paired import (
    DEFAULT_BLOCKS,
    block_order,
    blocks_needed,
    decision_points,
    judge_pairs,
    paired_policy,
    resolution_factor,
)
from pytest_accel.stats.run import Run

DELTA = Policy().delta


def run(y: float) -> Run:
    return Run(session="s", rounds_s=(math.exp(y),) * 6, steps_per_round=10)


Pairs = tuple[list[Run], list[Run]]  # old and new


def play(blocks: int, d: float = 0.0, *, noise: float = 0.0, drift: float = 0.0, seed: int = 0) -> Pairs:
    """Return the runs of blocks; the new side is slower by d, and every process by `drift` more than the one before."""
    source, now = random.Random(seed), 0.0
    runs: dict[str, list[Run]] = {"old": [], "new": []}
    for number in range(1, blocks + 1):
        for side in block_order(number):
            runs[side].append(run(now + d * (side == "new") + source.gauss(0, noise)))
            now += drift
    return runs["old"], runs["new"]


def noisy_pairs() -> st.SearchStrategy[Pairs]:
    return st.builds(
        play,
        st.integers(1, 6),
        st.floats(-0.2, 0.2),
        noise=st.floats(0, 0.05),
        drift=st.floats(-0.01, 0.01),
        seed=st.integers(0, 10**6),
    )


def shifted(runs: list[Run], by: float) -> list[Run]:
    return [run(each.summary + by) for each in runs]


# --- the schedule ---------------------------------------------------------------------------------


@given(st.integers(1, 30))
def test_each_group_has_two_of_each_side_and_no_place_in_time_that_is_one_sides(block):
    for sides in (block_order(block), block_order(block + 1)):
        assert sorted(sides) == ["new", "new", "old", "old"]
        middle = [place for place, side in enumerate(sides) if side == "new"]
        assert sum(middle) == 3  # 0 + 3 or 1 + 2: a linear drift weighs the same on both
    assert block_order(block)[0] != block_order(block + 1)[0]


@given(st.integers(1, 30))
def test_looks_are_at_most_five_and_the_last_one_has_all_groups(most):
    looks = decision_points(most)
    assert len(looks) == min(most, 5)
    assert list(looks) == sorted(set(looks))
    assert looks[-1] == most


def test_no_runs_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        judge_pairs([], [])


# --- the estimate ---------------------------------------------------------------------------------


@given(noisy_pairs(), st.floats(-3, 3))
def test_what_a_session_does_to_both_sides_changes_nothing(pairs, effect):
    before = judge_pairs(*pairs)
    after = judge_pairs(*(shifted(side, effect) for side in pairs))
    assert after.outcome is before.outcome
    assert after.slowdown.point == pytest.approx(before.slowdown.point, abs=1e-9)


@given(st.integers(1, 6), st.floats(-0.2, 0.2), st.floats(-0.02, 0.02))
def test_a_linear_drift_cancels(blocks, d, drift):
    found = judge_pairs(*play(blocks, d, drift=drift)).slowdown
    assert found.point == pytest.approx(-math.expm1(-d), abs=1e-9)


@given(noisy_pairs())
def test_swapping_the_sides_turns_the_estimate_round(pairs):
    here, there = judge_pairs(*pairs).slowdown.point, judge_pairs(*reversed(pairs)).slowdown.point
    assert math.log1p(-here) == pytest.approx(-math.log1p(-there), abs=1e-9)


@given(noisy_pairs(), st.floats(0, 0.3))
def test_a_slower_new_side_is_never_judged_better(pairs, more):
    order = [Outcome.IMPROVED, Outcome.OK, Outcome.INCONCLUSIVE, Outcome.REGRESSED]
    old, new = pairs
    before, after = judge_pairs(old, new), judge_pairs(old, shifted(new, more))
    assert order.index(after.outcome) >= order.index(before.outcome)


@given(noisy_pairs())
def test_the_bounds_agree_with_the_outcome(pairs):
    verdict = judge_pairs(*pairs, max_blocks=6)
    low, point, high = (
        -math.log1p(-each) for each in (verdict.slowdown.low, verdict.slowdown.point, verdict.slowdown.high)
    )
    assert low <= point + 1e-12
    assert point <= high + 1e-12
    match verdict.outcome:
        case Outcome.REGRESSED:
            assert low > DELTA / 2 - 1e-12
        case Outcome.OK:
            assert high < DELTA + 1e-12
        case Outcome.IMPROVED:
            assert high < -DELTA / 2 + 1e-12


@pytest.mark.parametrize("side", [0, 1])
def test_one_throttled_process_of_either_side_neither_decides_nor_blurs_the_noise(side):
    pairs = play(3)
    pairs[side][2] = run(pairs[side][2].summary + 0.10)
    verdict = judge_pairs(*pairs)
    assert verdict.outcome is Outcome.OK
    assert verdict.noise < 0.01


def test_the_noise_is_that_of_a_run_from_the_spread_of_pairs_and_the_prior():
    e = 0.03
    prior = 3 * 0.01**2
    noise = judge_pairs([run(0.0), run(0.0)], [run(e), run(-e)]).noise
    assert noise == pytest.approx(math.sqrt((prior + 2 * e**2 / 2) / (3 + 1)))


# --- the course -----------------------------------------------------------------------------------


def test_unchanged_is_ok_after_one_group():
    verdict = judge_pairs(*play(1))
    assert (verdict.outcome, verdict.wants_another_run) == (Outcome.OK, False)
    assert (verdict.runs, verdict.baseline_runs) == (2, 2)


@given(st.floats(0, 2))
def test_one_group_alone_never_fails(d):
    assert judge_pairs(*play(1, d)).outcome is not Outcome.REGRESSED


def test_a_loss_at_twice_the_tolerance_fails_after_two_groups():
    first, second = judge_pairs(*play(1, 2 * DELTA)), judge_pairs(*play(2, 2 * DELTA))
    assert first.wants_another_run
    assert (second.outcome, second.wants_another_run) == (Outcome.REGRESSED, False)


def test_faster_is_looked_at_twice_before_it_is_improved():
    first, second = judge_pairs(*play(1, -0.2)), judge_pairs(*play(2, -0.2))
    assert (first.outcome, first.wants_another_run) == (Outcome.OK, True)
    assert (second.outcome, second.wants_another_run) == (Outcome.IMPROVED, False)


@given(noisy_pairs())
def test_after_the_last_group_no_other_is_wanted(pairs):
    assert not judge_pairs(*pairs, max_blocks=len(pairs[0]) // 2).wants_another_run


def test_between_two_looks_nothing_is_decided():
    verdicts = [judge_pairs(*play(blocks), max_blocks=10) for blocks in (1, 2)]
    assert decision_points(10) == (2, 4, 6, 8, 10)
    assert [each.wants_another_run for each in verdicts] == [True, False]


def test_the_tolerance_is_the_benchmarks_own():
    pairs = play(2, 0.08)
    assert judge_pairs(*pairs, 0.05).outcome is Outcome.REGRESSED
    assert judge_pairs(*pairs, 0.30).outcome is Outcome.OK
    with pytest.raises(ValueError, match="tolerance"):
        judge_pairs(*pairs, 1.5)


# --- resolution -----------------------------------------------------------------------------------


def test_five_groups_resolve_two_and_a_half_times_the_noise():
    assert resolution_factor(5, paired_policy(None)) == pytest.approx(2.46, abs=0.01)


@given(st.integers(2, 19))
def test_more_groups_resolve_more(blocks):
    fewer, more = (resolution_factor(each, paired_policy(None, each)) for each in (blocks, blocks + 1))
    assert more < fewer


def test_how_many_groups_a_tolerance_takes():
    assert blocks_needed(0.01, 0.05) <= DEFAULT_BLOCKS
    needed = blocks_needed(0.03, 0.05)
    assert DEFAULT_BLOCKS < needed <= 20
    assert 0.03 * resolution_factor(needed, paired_policy(0.05, needed)) <= DELTA
    assert blocks_needed(0.2, 0.05) is None
