"""Results of a session: scaling, numerics, cost."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.gate import Outcome, StepTime, Verdict
from pytest_accel.stats.metric_gates import ANCHOR
from pytest_accel.stats.results import (
    LOSS_TOLERANCE,
    BenchmarkCost,
    Ending,
    ScalingPoint,
    cost_line,
    describe_loss_change,
    scaling_figure,
    status_of,
    worst_status,
)
from pytest_accel.stats.run import Run
from tests.support.results import make_result

POSITIVE = st.floats(1e-6, 1e6)
DEVICES = st.integers(1, 64)


def point(devices, work, step_s, noise=0.01):
    step = StepTime(point_s=step_s, low_s=step_s / (1 + noise), high_s=step_s * (1 + noise))
    return ScalingPoint(devices=devices, work_per_step=work, step=step)


def test_weak_scaling_that_loses_a_tenth():
    scaling = scaling_figure("few", point(1, 256, 0.1), point(4, 1024, 0.1 / 0.9))
    assert scaling.kind == "weak"
    assert scaling.speedup == pytest.approx(3.6)
    assert scaling.efficiency == pytest.approx(0.9)
    assert not scaling.superlinear


def test_strong_scaling_shares_the_work():
    scaling = scaling_figure("few", point(2, 1024, 0.4), point(8, 1024, 0.125))
    assert scaling.kind == "strong"
    assert scaling.efficiency == pytest.approx(0.8)


@pytest.mark.parametrize(("noise", "alarm"), [(0.01, True), (0.05, False)])
def test_an_alarm_needs_more_than_noise(noise, alarm):
    scaling = scaling_figure("few", point(1, 100, 0.1, noise), point(2, 200, 0.1 / 1.05, noise))
    assert scaling.superlinear is alarm


@given(DEVICES, POSITIVE, POSITIVE, st.integers(2, 16))
def test_perfect_scaling_is_one_and_no_alarm(devices, work, step_s, times):
    scaling = scaling_figure(
        "few", point(devices, work, step_s), point(devices * times, work * times, step_s)
    )
    assert math.isclose(scaling.efficiency, 1)
    assert not scaling.superlinear


@given(POSITIVE, POSITIVE, POSITIVE, POSITIVE)
def test_units_of_time_and_work_cancel(few_s, many_s, work, factor):
    def efficiency(seconds, units):
        few, many = point(1, work * units, few_s * seconds), point(4, 4 * work * units, many_s * seconds)
        return scaling_figure("few", few, many).efficiency

    assert math.isclose(efficiency(1, 1), efficiency(factor, 1 / factor), rel_tol=1e-9)


# --- numerics ---------------------------------------------------------------------------------------

LOSSES = st.floats(0.01, 1e3)


@pytest.mark.parametrize(
    ("before", "after", "news"),
    [
        ([], 2.5, ""),
        ([None], 2.5, ""),
        ([2.5], None, ""),
        ([2.5, None], 2.25, "2.5 -> 2.25"),
        ([2.5], 2.52, ""),
        ([2.5], 2.25, "2.5 -> 2.25"),
        ([2.5, 2.5], 2.6, "2.5 -> 2.6"),
        ([59.07, 60.28], 61.4, ""),  # of a benchmark whose own runs stand 2 % apart
        ([59.07, 60.28], 61.6, "59.07 to 60.28 -> 61.6"),
        ([59.07, 60.28], 57.9, ""),
        ([59.07, 60.28], 57.8, "59.07 to 60.28 -> 57.8"),
        ([2.5], math.nan, "2.5 -> nan"),
        ([2.5], math.inf, "2.5 -> inf"),
        ([math.nan, 2.5], 2.5, ""),
        ([math.nan], math.nan, ""),
        ([math.nan], 2.5, "nan -> 2.5"),
        ([-1.0], -1.005, ""),
        ([-1.0], 1.0, "-1 -> 1"),
    ],
)
def test_what_is_news(before, after, news):
    assert describe_loss_change(before, after) == news


@given(st.lists(LOSSES, min_size=1), LOSSES)
def test_one_more_run_like_the_others_is_never_news(before, between):
    lowest, highest = min(before), max(before)
    assert not describe_loss_change(before, min(max(between, lowest), highest))


@given(LOSSES, LOSSES)
def test_one_run_alone_leaves_the_tolerance(before, after):
    assert bool(describe_loss_change([before], after)) is not math.isclose(
        before, after, rel_tol=LOSS_TOLERANCE
    )


@given(st.lists(LOSSES, min_size=1), LOSSES, LOSSES)
def test_runs_that_stand_apart_make_no_news(before, another, after):
    """Whatever was no news stays none when one more run is known."""
    if not describe_loss_change(before, after):
        assert not describe_loss_change([*before, another], after)


# --- cost -------------------------------------------------------------------------------------------

RUN = Run(session="s", rounds_s=(0.1, 0.3), steps_per_round=10, warmup_s=6.0)


def test_where_the_time_went():
    spent = BenchmarkCost(name="test_gpt (h200)", held_s=40.0, warming_s=12.0, devices=1, runs=[RUN, RUN])
    assert (spent.measuring_s, spent.warming_s, spent.device_s) == (8.0, 12.0, 40.0)
    assert cost_line([spent], "verdict") == (
        "note: 1 verdict took 40 s; 40 device-seconds in all. Measuring 20 %, compiling and warming up 30 %, "
        "starting, building and checking 50 %"
    )


def test_four_devices_are_held_together_and_the_dearest_is_named():
    few = BenchmarkCost(name="test_cnn (a100)", held_s=10.0, devices=1)
    many = BenchmarkCost(name="test_ddp (a100x4)", held_s=50.0, devices=4)
    line = cost_line([few, many], "verdict")
    assert line.startswith("note: 2 verdicts took 60 s, 30 s each; 210 device-seconds in all. ")
    assert line.endswith(". test_ddp (a100x4) took the most, 50 s")


def test_what_came_to_no_verdict_is_counted_apart():
    hung = BenchmarkCost(name="test_hung (a100x4)", held_s=600.0, devices=4, decided=False)
    line = cost_line(
        [BenchmarkCost(name="test_cnn (a100)", held_s=20.0, devices=1, runs=[RUN]), hung], "verdict"
    )
    assert line.startswith(
        "note: 1 verdict took 20 s; 1 benchmark without a verdict took 10.0 min; 2,420 device-seconds in all. "
    )
    assert cost_line([hung], "verdict") == ""


def test_interrupted_compilation_counts_as_compilation():
    ok = BenchmarkCost(name="test_cnn (a100)", held_s=20.0, warming_s=6.0, devices=1, runs=[RUN])
    interrupted = BenchmarkCost(name="test_gpt (a100)", held_s=80.0, warming_s=64.0, devices=1, decided=False)
    assert "compiling and warming up 70 %" in cost_line([ok, interrupted], "verdict")


def test_a_host_alone_has_no_device_seconds():
    assert "device-seconds" not in cost_line(
        [BenchmarkCost(name="test (cpu)", held_s=3.0, devices=0)], "recording"
    )


@pytest.mark.parametrize("spent", [[], [BenchmarkCost(name="never begun", held_s=0.0, devices=1)]])
def test_nothing_is_said_of_nothing(spent):
    assert cost_line(spent, "verdict") == ""


@given(
    st.lists(
        st.builds(
            BenchmarkCost,
            name=st.just("test"),
            held_s=st.floats(20, 1e6),
            devices=st.integers(0, 8),
            runs=st.lists(st.just(RUN), max_size=2),
        ),
        min_size=1,
    )
)
def test_the_shares_are_all_there_is(spent):
    shares = [int(each) for each in re.findall(r"(\d+) %", cost_line(spent, "verdict"))]
    assert len(shares) == 3
    assert abs(sum(shares) - 100) <= 1.5  # each rounded


# --- a tolerance that is no gate ---------------------------------------------------------------------


@pytest.mark.parametrize("outcome", Outcome)
def test_only_what_a_wide_tolerance_hides_is_not_gated(outcome):
    hidden = outcome in (Outcome.OK, Outcome.IMPROVED, Outcome.INCONCLUSIVE)
    assert status_of(Verdict(outcome=outcome, tolerance=0.2)) is outcome
    wide = Verdict(outcome=outcome, tolerance=0.21)
    assert status_of(wide) is (Ending.NOT_GATED if hidden else outcome)
    assert status_of(replace(wide, of=ANCHOR)) is outcome, "an anchor's tolerance is 1.5 times the row's"


@pytest.mark.parametrize(
    ("throughput", "metric", "status"),
    [
        ((Outcome.OK, 0.6), (Outcome.OK, 0.05), Ending.NOT_GATED),
        ((Outcome.OK, 0.6), (Outcome.REGRESSED, 0.6), Outcome.REGRESSED),
        ((Outcome.INCONCLUSIVE, 0.6), (Outcome.INCONCLUSIVE, 0.05), Outcome.INCONCLUSIVE),
        ((Outcome.OK, 0.05), (Outcome.INCONCLUSIVE, 0.6), Ending.NOT_GATED),
        ((Outcome.IMPROVED, 0.05), (Outcome.OK, 0.6), Ending.NOT_GATED),
        ((Outcome.INVALID, 0.05), (Outcome.OK, 0.6), Outcome.INVALID),
        ((Outcome.IMPROVED, 0.05), (Outcome.OK, 0.05), Outcome.IMPROVED),
    ],
)
def test_what_is_not_gated_hides_no_loss_and_is_not_ok(throughput, metric, status):
    first, second = (Verdict(outcome=outcome, tolerance=width) for outcome, width in (throughput, metric))
    assert worst_status(first, [replace(second, of="accuracy")]) is status


@pytest.mark.parametrize(
    ("status", "has_lost"), [(Outcome.REGRESSED, True), (Outcome.OK, False), (Ending.FAILED, False)]
)
def test_loss_is_what_a_verdict_calls_one(status, has_lost):
    assert make_result(status).has_lost is has_lost
