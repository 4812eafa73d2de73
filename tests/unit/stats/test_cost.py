"""What verdicts cost: every second is named once, and devices count as often as they are many."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.stats.results import BenchmarkCost, cost_line
from pytest_accel.stats.run import Run

RUN = Run(session="s", rounds_s=(0.1, 0.3), steps_per_round=10, warmup_s=6.0)


def test_where_the_time_went():
    spent = BenchmarkCost(name="test_gpt (h200)", held_s=40.0, devices=1, runs=[RUN, RUN])
    assert (spent.measuring_s, spent.warming_s, spent.device_s) == (8.0, 12.0, 40.0)
    assert cost_line([spent], "verdict") == (
        "note: 1 verdict in 40 s, 40 device-seconds: 20 % measuring, 30 % compiling and warming up, "
        "50 % starting, building and checking"
    )


def test_four_devices_are_held_together_and_the_dearest_is_named():
    few = BenchmarkCost(name="test_cnn (a100)", held_s=10.0, devices=1)
    many = BenchmarkCost(name="test_ddp (a100x4)", held_s=50.0, devices=4)
    line = cost_line([few, many], "verdict")
    assert line.startswith("note: 2 verdicts in 60 s, 30 s each, 210 device-seconds: ")
    assert line.endswith("; the most for test_ddp (a100x4), 50 s")


def test_what_came_to_no_verdict_is_paid_for_by_the_others():
    hung = BenchmarkCost(name="test_hung (a100x4)", held_s=600.0, devices=4, decided=False)
    line = cost_line(
        [BenchmarkCost(name="test_cnn (a100)", held_s=20.0, devices=1, runs=[RUN]), hung], "verdict"
    )
    assert line.startswith("note: 1 verdict and 1 benchmark without in 10.3 min, 2,420 device-seconds: ")
    assert cost_line([hung], "verdict").startswith("note: 0 verdicts and 1 benchmark without in 10.0 min, ")


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
    shares = [int(each) for each in re.findall(r"(\d+) % ", cost_line(spent, "verdict"))]
    assert len(shares) == 3
    assert abs(sum(shares) - 100) <= 1.5  # each rounded
