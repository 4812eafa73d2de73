"""Timing of single parts of a step on a fake clock; percentiles."""

from __future__ import annotations

import types
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.measure import rounds
from pytest_accel.measure.ranks import Alone
from pytest_accel.measure.rounds import (
    MAX_LATENCIES,
    MIN_LATENCIES,
    PILOTS,
    latencies,
    percentile,
    seconds_per_call,
)


class FakeDevice:
    """A clock, and a device that runs asynchronously."""

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
def fake(monkeypatch):
    made = FakeDevice()
    clock = types.SimpleNamespace(perf_counter=lambda: made.now_s)
    monkeypatch.setattr(rounds, "time", clock)
    return made


class SlowerPeer(Alone):
    """Two ranks, of which the other takes twice as long."""

    size = 2

    def __init__(self, fake):
        self.fake = fake
        self.waited_at = []

    def slowest(self, seconds):
        return 2 * seconds

    def barrier(self):
        self.waited_at.append(self.fake.calls)
        self.fake.now_s += 100.0  # the other rank is late


class TestSecondsPerCall:
    def test_time_of_a_call_on_an_asynchronous_device_is_found(self, fake):
        assert seconds_per_call(fake.call, fake, Alone(), budget_s=1.0) == pytest.approx(0.01)

    def test_budget_is_spent(self, fake):
        seconds_per_call(fake.call, fake, Alone(), budget_s=1.0)
        assert fake.calls == pytest.approx(PILOTS + 100, abs=1)

    def test_calls_longer_than_the_budget_are_still_timed(self, fake):
        fake.call_s = lambda number: 10.0
        assert seconds_per_call(fake.call, fake, Alone(), budget_s=1.0) == pytest.approx(10.0)
        assert fake.calls == 2 * PILOTS

    def test_prefetched_batches_are_not_timed(self, fake):
        fake.call_s = lambda number: 0.0 if number < 40 else 0.02
        found = seconds_per_call(fake.call, fake, Alone(), budget_s=1.0, untimed=40)
        assert found == pytest.approx(0.02)

    def test_untimed_calls_are_limited_by_time(self, fake):
        def slow() -> None:
            fake.call()
            fake.synchronize()

        fake.call_s = lambda number: 1.0
        seconds_per_call(slow, fake, Alone(), budget_s=1.0, untimed=1000)
        assert fake.calls <= 5 + 2 * PILOTS

    def test_work_queued_before_is_not_timed(self, fake):
        fake.queued_s = 50.0
        assert seconds_per_call(fake.call, fake, Alone(), budget_s=1.0) == pytest.approx(0.01)

    def test_calls_without_duration_end(self, fake):
        fake.call_s = lambda number: 0.0
        assert seconds_per_call(fake.call, fake, Alone(), budget_s=0.01) == 0.0

    def test_ranks_take_equally_many_calls_and_begin_together(self, fake):
        ranks = SlowerPeer(fake)
        assert seconds_per_call(fake.call, fake, ranks, budget_s=1.0) == pytest.approx(0.01)
        pilots = PILOTS + 1  # whole bursts of two
        assert fake.calls == pytest.approx(pilots + 50, abs=2)
        assert ranks.waited_at == [pilots]

    @pytest.mark.parametrize("workers", [1, 2, 3, 8, 12, 40])
    def test_bursts_are_timed_whole_and_within_the_budget(self, fake, workers):
        fake.call_s = lambda number: 0.0 if (number + 1) % workers else 0.4
        found = seconds_per_call(fake.call, fake, Alone(), budget_s=0.5, untimed=workers, burst=workers)
        assert found == pytest.approx(0.4 / workers)
        assert fake.calls <= workers + 2 * (workers + PILOTS) + 2 * workers


class TestLatencies:
    def test_every_call_is_synchronized_and_timed(self, fake):
        fake.call_s = lambda number: 0.001 * (number + 1)
        found = latencies(fake.call, fake, Alone(), budget_s=0.01)
        assert found == pytest.approx([0.001 * (number + 1) for number in range(PILOTS, fake.calls)])
        assert fake.synchronized == 2 + 2 * len(found)

    @pytest.mark.parametrize(("call_s", "count"), [(10.0, MIN_LATENCIES), (0.01, 500), (1e-6, MAX_LATENCIES)])
    def test_number_of_latencies_fits_the_budget_within_limits(self, fake, call_s, count):
        fake.call_s = lambda number: call_s
        assert len(latencies(fake.call, fake, Alone(), budget_s=5.0)) == pytest.approx(count, abs=1)

    def test_number_of_latencies_is_that_of_the_slowest_rank(self, fake):
        found = latencies(fake.call, fake, SlowerPeer(fake), budget_s=5.0)
        assert len(found) == pytest.approx(250, abs=1)


VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=60)
PERCENTS = st.integers(0, 100)


class TestPercentile:
    @given(VALUES, PERCENTS)
    def test_percentile_is_the_smallest_value_that_the_share_does_not_exceed(self, values, percent):
        found = percentile(values, percent / 100)
        assert found in values
        needed = Fraction(percent, 100) * len(values)
        assert sum(value <= found for value in values) >= needed
        assert sum(value < found for value in values) < needed or found == min(values)

    @pytest.mark.parametrize("percent", [50, 90, 99])
    def test_percentile_is_exact_for_every_count_of_latencies(self, percent):
        for count in range(MIN_LATENCIES, MAX_LATENCIES + 1):
            assert percentile(range(1, count + 1), percent / 100) == -(-percent * count // 100)
