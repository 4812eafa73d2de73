"""Parts of a step timed by themselves, on a clock that only calls move; percentiles."""

from __future__ import annotations

import types
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.measure import parts as module
from pytest_accel.measure import warmup
from pytest_accel.measure.parts import (
    MAX_LATENCIES,
    MIN_LATENCIES,
    PILOTS,
    latencies,
    percentile,
    seconds_per_call,
)
from pytest_accel.measure.ranks import Alone


class Laboratory:
    """A clock, and a device that runs behind it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.queued_s = 0.0
        self.calls = 0
        self.call_s = lambda number: 0.01
        self.synchronized = 0

    def call(self) -> None:
        self.queued_s += self.call_s(self.calls)
        self.calls += 1

    def synchronize(self) -> None:
        self.synchronized += 1
        self.now_s += self.queued_s
        self.queued_s = 0.0


@pytest.fixture
def lab(monkeypatch):
    made = Laboratory()
    clock = types.SimpleNamespace(perf_counter=lambda: made.now_s)
    for each in (module, warmup):
        monkeypatch.setattr(each, "time", clock)
    return made


class SlowerElsewhere(Alone):
    """Two ranks, of which the other takes twice as long."""

    size = 2

    def __init__(self, lab):
        self.lab = lab
        self.waited_at = []

    def slowest(self, seconds):
        return 2 * seconds

    def barrier(self):
        self.waited_at.append(self.lab.calls)
        self.lab.now_s += 100.0  # the other comes late


class TestSecondsPerCall:
    def test_is_the_time_of_a_call_on_a_device_that_runs_behind(self, lab):
        assert seconds_per_call(lab.call, lab, Alone(), budget_s=1.0) == pytest.approx(0.01)

    def test_spends_its_budget(self, lab):
        seconds_per_call(lab.call, lab, Alone(), budget_s=1.0)
        assert lab.calls == pytest.approx(PILOTS + 100, abs=1)

    def test_takes_a_few_calls_also_where_one_is_longer_than_the_budget(self, lab):
        lab.call_s = lambda number: 10.0
        assert seconds_per_call(lab.call, lab, Alone(), budget_s=1.0) == pytest.approx(10.0)
        assert lab.calls == 2 * PILOTS

    def test_what_lay_ready_is_in_no_figure(self, lab):
        lab.call_s = lambda number: 0.0 if number < 40 else 0.02
        found = seconds_per_call(lab.call, lab, Alone(), budget_s=1.0, untimed=40)
        assert found == pytest.approx(0.02)

    def test_what_lies_ready_is_not_waited_for_without_end(self, lab):
        def slow() -> None:
            lab.call()
            lab.synchronize()

        lab.call_s = lambda number: 1.0
        seconds_per_call(slow, lab, Alone(), budget_s=1.0, untimed=1000)
        assert lab.calls <= 5 + 2 * PILOTS

    def test_work_that_was_queued_before_is_not_counted(self, lab):
        lab.queued_s = 50.0
        assert seconds_per_call(lab.call, lab, Alone(), budget_s=1.0) == pytest.approx(0.01)

    def test_calls_that_take_no_time_end(self, lab):
        lab.call_s = lambda number: 0.0
        assert seconds_per_call(lab.call, lab, Alone(), budget_s=0.01) == 0.0

    def test_ranks_take_as_many_calls_as_the_slowest_can_and_begin_together(self, lab):
        ranks = SlowerElsewhere(lab)
        assert seconds_per_call(lab.call, lab, ranks, budget_s=1.0) == pytest.approx(0.01)
        pilots = PILOTS + 1  # whole bursts of the other's two workers
        assert lab.calls == pytest.approx(pilots + 50, abs=2)
        assert ranks.waited_at == [pilots]

    @pytest.mark.parametrize("workers", [1, 2, 3, 8, 12, 40])
    def test_calls_that_come_in_bursts_are_timed_by_whole_ones_and_not_for_long(self, lab, workers):
        """All but one of a burst find their work done: by three of them a million fitted the budget."""
        lab.call_s = lambda number: 0.0 if (number + 1) % workers else 0.4
        found = seconds_per_call(lab.call, lab, Alone(), budget_s=0.5, untimed=workers, burst=workers)
        assert found == pytest.approx(0.4 / workers)
        assert lab.calls <= workers + 2 * (workers + PILOTS) + 2 * workers


class TestLatencies:
    def test_every_call_is_waited_for_and_timed_by_itself(self, lab):
        lab.call_s = lambda number: 0.001 * (number + 1)
        found = latencies(lab.call, lab, Alone(), budget_s=0.01)
        assert found == pytest.approx([0.001 * (number + 1) for number in range(PILOTS, lab.calls)])
        assert lab.synchronized == 2 + 2 * len(found)

    @pytest.mark.parametrize(("call_s", "count"), [(10.0, MIN_LATENCIES), (0.01, 500), (1e-6, MAX_LATENCIES)])
    def test_are_as_many_as_fit_and_never_too_few_for_a_percentile(self, lab, call_s, count):
        lab.call_s = lambda number: call_s
        assert len(latencies(lab.call, lab, Alone(), budget_s=5.0)) == pytest.approx(count, abs=1)

    def test_are_as_many_on_every_rank(self, lab):
        found = latencies(lab.call, lab, SlowerElsewhere(lab), budget_s=5.0)
        assert len(found) == pytest.approx(250, abs=1)


VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=60)
PERCENTS = st.integers(0, 100)


class TestPercentile:
    @given(VALUES, PERCENTS)
    def test_is_the_smallest_value_that_so_many_do_not_exceed(self, values, percent):
        found = percentile(values, percent / 100)
        assert found in values
        needed = Fraction(percent, 100) * len(values)
        assert sum(value <= found for value in values) >= needed
        assert sum(value < found for value in values) < needed or found == min(values)

    @given(VALUES, PERCENTS, PERCENTS)
    def test_grows_with_the_share(self, values, one, other):
        low, high = sorted((one, other))
        assert percentile(values, low / 100) <= percentile(values, high / 100)

    @given(VALUES, PERCENTS, st.randoms())
    def test_does_not_depend_on_the_order(self, values, percent, random):
        shuffled = random.sample(values, len(values))
        assert percentile(shuffled, percent / 100) == percentile(values, percent / 100)

    @pytest.mark.parametrize("percent", range(1, 101))
    def test_of_one_to_a_hundred_is_itself(self, percent):
        assert percentile(range(1, 101), percent / 100) == percent

    @pytest.mark.parametrize("percent", [50, 90, 99])
    def test_is_exact_for_every_count_of_latencies(self, percent):
        for count in range(MIN_LATENCIES, MAX_LATENCIES + 1):
            assert percentile(range(1, count + 1), percent / 100) == -(-percent * count // 100)
