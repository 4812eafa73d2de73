"""Sampling thread, with counted samples and a fake clock."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.measure.monitor import SamplingThread, next_beat

PATIENCE_S = 30.0  # no test waits this long
NEVER_S = 1e6  # longer than any test


class Counter:
    """Counts its calls and their threads; sets an event at one of them."""

    def __init__(self, wanted: int = 1) -> None:
        self.threads: list[threading.Thread] = []
        self.wanted = wanted
        self.reached = threading.Event()

    def __call__(self) -> None:
        self.threads.append(threading.current_thread())
        if len(self.threads) >= self.wanted:
            self.reached.set()

    def __len__(self) -> int:
        return len(self.threads)


class FakeTime:
    """A clock, and an event that waits by moving it; the window ends after so many waits."""

    def __init__(self, waits: int) -> None:
        self.now_s = 100.0
        self.waits_s: list[float] = []
        self.allowed = waits
        self.exhausted, self.ended = threading.Event(), threading.Event()

    def clock(self) -> float:
        return self.now_s

    def wait(self, timeout: float) -> bool:
        self.waits_s.append(timeout)
        self.now_s += timeout
        if len(self.waits_s) > self.allowed:
            self.exhausted.set()
            return self.ended.wait(PATIENCE_S)
        return False

    def set(self) -> None:
        assert self.exhausted.wait(PATIENCE_S)
        self.ended.set()

    def clear(self) -> None:
        pass


def test_samples_are_taken_between_begin_and_end_only():
    counter = Counter(wanted=5)
    with SamplingThread([counter], period_s=0.001) as sampling:
        assert not counter
        sampling.begin()
        assert counter.reached.wait(PATIENCE_S)
        sampling.end()
        seen = len(counter)
        sampling.begin()
        sampling.end()
        assert len(counter) >= seen + 2
    assert sampling.problems == ()


def test_a_window_shorter_than_a_period_has_two_samples():
    counter = Counter()
    with SamplingThread([counter], period_s=NEVER_S) as sampling:
        for window in range(1, 4):
            sampling.begin()
            assert len(counter) == 2 * window - 1
            sampling.end()
            assert len(counter) == 2 * window


def test_one_samplingtakes_all_samples_and_starts_before_the_window():
    counter = Counter(wanted=3)
    with SamplingThread([counter], period_s=0.001) as sampling:
        threads = set(threading.enumerate())
        sampling.begin()
        assert set(threading.enumerate()) <= threads
        assert counter.reached.wait(PATIENCE_S)
        sampling.end()
    (thread,) = set(counter.threads)
    assert thread is not threading.current_thread()
    assert thread.daemon
    assert not thread.is_alive()


def sampled_with(time: FakeTime, sampler) -> list[float]:
    sampling = SamplingThread([sampler], period_s=0.1, clock=time.clock)
    sampling._stop = time
    with sampling:
        sampling.begin()
        sampling.end()
    assert sampling.problems == ()
    return time.waits_s


def test_periods_are_counted_from_the_first_sample():
    time = FakeTime(waits=50)
    at_s: list[float] = []

    def takes_30_ms() -> None:
        at_s.append(time.now_s)
        time.now_s += 0.03

    waits_s = sampled_with(time, takes_30_ms)
    first_s = at_s[0] + 0.03
    assert waits_s[0] == pytest.approx(0.1)
    assert waits_s[1:] == pytest.approx([0.07] * 50)
    assert at_s[1:] == pytest.approx([first_s + 0.1 * beat for beat in range(1, 52)])


def test_slow_sampler_skips_periods():
    time = FakeTime(waits=3)

    def takes_250_ms() -> None:
        time.now_s += 0.25

    assert sampled_with(time, takes_250_ms) == pytest.approx([0.1, 0.05, 0.05, 0.05])


@given(st.integers(0, 10**6), st.floats(0, 1e6), st.floats(1e-3, 10))
def test_next_period_is_later_and_not_in_the_past(beat, elapsed_s, period_s):
    following = next_beat(beat, elapsed_s, period_s)
    assert following > beat
    assert following * period_s >= elapsed_s * (1 - 1e-9)


def test_raising_sampler_is_dropped_and_reported_once():
    counter, calls = Counter(wanted=4), []

    def broken() -> None:
        calls.append(1)
        raise OSError("sensor vanished")

    with SamplingThread([broken, counter], period_s=0.001) as sampling:
        sampling.begin()
        assert counter.reached.wait(PATIENCE_S)
        sampling.end()
        sampling.begin()
        sampling.end()
    assert len(calls) == 1
    assert sampling.problems == ("broken gave no more readings: sensor vanished",)


class Sensor:
    name = "NVML GPU-8f3aab12"

    def sample(self) -> None:
        raise ZeroDivisionError


class Sensors:
    def _sample_power(self) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("sampler", "name"),
    [(Sensor().sample, "NVML GPU-8f3aab12"), (Sensors()._sample_power, "sample power")],
)
def test_sampler_is_named_by_its_owner_else_by_its_function(sampler, name):
    with SamplingThread([sampler], period_s=NEVER_S) as sampling:
        sampling.begin()
        sampling.end()
    assert sampling.problems == (f"{name} gave no more readings: ZeroDivisionError",)


class Stuck:
    """Answers so many times, then hangs until it is released, like a driver call."""

    name = "NVML GPU-8f3aab12"

    def __init__(self, answers: int) -> None:
        self.answers = answers
        self.hanging, self.released = threading.Event(), threading.Event()

    def sample(self) -> None:
        if self.answers:
            self.answers -= 1
            return
        self.hanging.set()
        assert self.released.wait(PATIENCE_S)


@pytest.mark.parametrize("answers", [0, 1, 2])
def test_hanging_sampler_costs_a_bounded_time_and_is_reported_once(answers):
    """At the first sample, at the one of `end`, and between them."""
    stuck, after = Stuck(answers), Counter()
    sampling = SamplingThread(
        [stuck.sample, after], period_s=NEVER_S if answers == 1 else 0.001, limit_s=PATIENCE_S
    )
    with sampling:
        sampling._limit_s = PATIENCE_S if answers else 1.0
        sampling.begin()
        sampling._limit_s = 1.0
        if answers != 1:
            assert stuck.hanging.wait(PATIENCE_S)
        sampling.end()
        (problem,) = sampling.problems
        assert problem.startswith("NVML GPU-8f3aab12 did not return within 1 s")
        assert not problem.endswith(".")  # others follow behind a semicolon
        thread = sampling._thread
        sampling.begin()
        sampling.end()
    assert sampling.problems == (problem,)
    assert thread.daemon
    seen = len(after)
    stuck.released.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert len(after) == seen


def test_exception_in_the_measurement_ends_the_thread():
    counter = Counter()
    sampling = SamplingThread([counter], period_s=NEVER_S)

    def measured() -> None:
        with sampling:
            sampling.begin()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        measured()
    assert not counter.threads[0].is_alive()


def test_no_sampler_needs_no_thread():
    before = threading.active_count()
    with SamplingThread([]) as sampling:
        sampling.begin()
        assert threading.active_count() == before
        sampling.end()


def test_failing_samplingstart_is_reported(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    counter = Counter()
    with SamplingThread([counter]) as sampling:
        sampling.begin()
        sampling.end()
    assert sampling.problems == ("nothing was sampled: can't start new thread",)
    assert not counter
