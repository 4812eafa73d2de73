"""The thread that watches: counted samples and gates, and no clock but a false one."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.measure.sampling import SamplingThread, next_beat

PATIENCE_S = 30.0  # how long a test waits for what must happen; none waits it out
NEVER_S = 1e6  # a period that no test lives through


class Counter:
    """Counts its calls, and who made them; opens a gate at one of them."""

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


class FalseTime:
    """A clock, and an event that waits by moving it; the window is over after so many waits."""

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
    with SamplingThread([counter], period_s=0.001) as watch:
        assert not counter
        watch.begin()
        assert counter.reached.wait(PATIENCE_S)
        watch.end()
        seen = len(counter)
        watch.begin()
        watch.end()
        assert len(counter) >= seen + 2
    assert watch.problems == ()


def test_a_window_shorter_than_a_period_has_two_samples():
    counter = Counter()
    with SamplingThread([counter], period_s=NEVER_S) as watch:
        for window in range(1, 4):
            watch.begin()
            assert len(counter) == 2 * window - 1
            watch.end()
            assert len(counter) == 2 * window


def test_one_thread_takes_all_samples_and_is_there_before_the_window():
    counter = Counter(wanted=3)
    with SamplingThread([counter], period_s=0.001) as watch:
        threads = set(threading.enumerate())
        watch.begin()
        assert set(threading.enumerate()) <= threads
        assert counter.reached.wait(PATIENCE_S)
        watch.end()
    (thread,) = set(counter.threads)
    assert thread is not threading.current_thread()
    assert thread.daemon
    assert not thread.is_alive()


def watched_with(time: FalseTime, sampler) -> list[float]:
    watch = SamplingThread([sampler], period_s=0.1, clock=time.clock)
    watch._stop = time
    with watch:
        watch.begin()
        watch.end()
    assert watch.problems == ()
    return time.waits_s


def test_wakes_are_counted_from_the_first_sample_so_that_nothing_drifts():
    time = FalseTime(waits=50)
    at_s: list[float] = []

    def takes_30_ms() -> None:
        at_s.append(time.now_s)
        time.now_s += 0.03

    waits_s = watched_with(time, takes_30_ms)
    first_s = at_s[0] + 0.03
    assert waits_s[0] == pytest.approx(0.1)
    assert waits_s[1:] == pytest.approx([0.07] * 50)
    assert at_s[1:] == pytest.approx([first_s + 0.1 * beat for beat in range(1, 52)])


def test_a_sampler_that_takes_longer_than_a_period_misses_beats_and_never_catches_up_in_a_burst():
    time = FalseTime(waits=3)

    def takes_250_ms() -> None:
        time.now_s += 0.25

    assert watched_with(time, takes_250_ms) == pytest.approx([0.1, 0.05, 0.05, 0.05])


@given(st.integers(0, 10**6), st.floats(0, 1e6), st.floats(1e-3, 10))
def test_the_next_beat_is_a_later_one_and_not_in_the_past(beat, elapsed_s, period_s):
    following = next_beat(beat, elapsed_s, period_s)
    assert following > beat
    assert following * period_s >= elapsed_s * (1 - 1e-9)


def test_a_sampler_that_raises_is_dropped_with_its_reason_once_and_the_others_go_on():
    counter, calls = Counter(wanted=4), []

    def broken() -> None:
        calls.append(1)
        raise OSError("sensor vanished")

    with SamplingThread([broken, counter], period_s=0.001) as watch:
        watch.begin()
        assert counter.reached.wait(PATIENCE_S)
        watch.end()
        watch.begin()
        watch.end()
    assert len(calls) == 1
    assert watch.problems == ("broken gave no more readings: sensor vanished",)


def test_a_sampler_is_named_as_its_owner_calls_itself_and_an_error_without_words_by_its_kind():
    class Sensor:
        name = "NVML GPU-8f3aab12"

        def sample(self) -> None:
            raise ZeroDivisionError

    with SamplingThread([Sensor().sample], period_s=NEVER_S) as watch:
        watch.begin()
        watch.end()
    assert watch.problems == ("NVML GPU-8f3aab12 gave no more readings: ZeroDivisionError",)


def test_a_sampler_without_a_name_is_not_called_by_a_private_one_of_ours():
    class Sensors:
        def _sample_power(self) -> None:
            raise ZeroDivisionError

    with SamplingThread([Sensors()._sample_power], period_s=NEVER_S) as watch:
        watch.begin()
        watch.end()
    assert watch.problems == ("sample power gave no more readings: ZeroDivisionError",)


class Stuck:
    """Answers so many times, then hangs until it is let go: a driver that does not come back."""

    name = "NVML GPU-8f3aab12"

    def __init__(self, answers: int) -> None:
        self.answers = answers
        self.hanging, self.let_go = threading.Event(), threading.Event()

    def sample(self) -> None:
        if self.answers:
            self.answers -= 1
            return
        self.hanging.set()
        assert self.let_go.wait(PATIENCE_S)


@pytest.mark.parametrize("answers", [0, 1, 2])
def test_a_driver_that_hangs_costs_a_bounded_time_and_is_said_once(answers):
    """At the first sample, at the one of `end`, and between them."""
    stuck, after = Stuck(answers), Counter()
    watch = SamplingThread(
        [stuck.sample, after], period_s=NEVER_S if answers == 1 else 0.001, limit_s=PATIENCE_S
    )
    with watch:
        watch._limit_s = PATIENCE_S if answers else 1.0  # a busy host is not what is tested
        watch.begin()
        watch._limit_s = 1.0
        if answers != 1:
            assert stuck.hanging.wait(PATIENCE_S)
        watch.end()
        (problem,) = watch.problems
        assert problem.startswith("NVML GPU-8f3aab12 did not return within 1 s")
        assert not problem.endswith(".")  # others follow behind a semicolon
        thread = watch._thread
        watch.begin()
        watch.end()
    assert watch.problems == (problem,)
    assert thread.daemon
    seen = len(after)
    stuck.let_go.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert len(after) == seen  # it came back, and touched nothing


def test_an_error_in_what_is_measured_ends_the_thread_too():
    counter = Counter()
    watch = SamplingThread([counter], period_s=NEVER_S)

    def measured() -> None:
        with watch:
            watch.begin()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        measured()
    assert not counter.threads[0].is_alive()


def test_nothing_to_watch_needs_no_thread():
    before = threading.active_count()
    with SamplingThread([]) as watch:
        watch.begin()
        assert threading.active_count() == before
        watch.end()


def test_a_host_without_room_for_a_thread_is_a_problem_and_no_error(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    counter = Counter()
    with SamplingThread([counter]) as watch:
        watch.begin()
        watch.end()
    assert watch.problems == ("nothing was sampled: can't start new thread",)
    assert not counter


def test_windows_do_not_nest_and_end_alone_is_nothing():
    with SamplingThread([Counter()], period_s=NEVER_S) as watch:
        watch.end()
        watch.begin()
        with pytest.raises(RuntimeError, match="call end"):
            watch.begin()


def test_a_period_of_nothing_is_refused():
    with pytest.raises(ValueError, match=r"period_s: 0 is not a time above 0\. Write 0\.1\."):
        SamplingThread([], period_s=0)
