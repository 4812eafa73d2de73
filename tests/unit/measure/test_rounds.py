"""Warm-up, rounds and parts of a step, on a fake device and a clock that only steps move."""

import collections
import gc
import itertools
import math
import random
import types
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.measure import rounds
from pytest_accel.measure.rounds import (
    ALONE,
    MAX_LATENCIES,
    MAX_ROUNDS,
    MIN_LATENCIES,
    MIN_ROUND_S,
    MIN_WARMUP_S,
    PILOT_STEPS,
    PILOTS,
    Alone,
    DriftDetector,
    SynchronizingTimer,
    frozen_garbage,
    latencies,
    launch_time_s,
    plan_rounds,
    seconds_per_call,
    steady_rounds,
    time_rounds,
    warm_up,
)
from pytest_accel.stats.run import MIN_ROUNDS


@dataclass
class FakeDevice:
    """A clock, a device that runs asynchronously, and a record of events."""

    now_s: float = 0.0
    queued_s: float = 0.0  # launched and not synchronized
    step_s: float = 0.001
    steps: int = 0
    events: list[str] = field(default_factory=list)

    def step(self) -> None:
        self.steps += 1
        self.queued_s += self.step_s

    name = "fake"

    def synchronize(self) -> None:
        self.now_s += self.queued_s
        self.queued_s = 0.0

    def reset_peak_memory(self) -> None:
        self.events.append("reset peak")

    def peak_memory_bytes(self) -> int:
        return 42

    def delay(self, seconds: float):
        def spin() -> None:
            self.queued_s += seconds

        return spin

    def phase(self, text: str, remaining_s: float | None) -> None:
        self.events.append(text)

    def tick(self) -> None:
        self.events.append("tick")


@dataclass
class Overlapping(FakeDevice):
    """A device that works while the host waits for something else."""

    free_s: float = 0.0  # when it has done what was launched

    def step(self) -> None:
        self.steps += 1
        self.free_s = max(self.free_s, self.now_s) + self.step_s

    def synchronize(self) -> None:
        self.now_s = max(self.now_s, self.free_s)
        super().synchronize()


class Pedantic:
    """pytest-benchmark in pedantic mode: one untimed call where there are several iterations."""

    def __init__(self, timer) -> None:
        self.timer = timer
        self.stats = types.SimpleNamespace(stats=types.SimpleNamespace(data=[]))

    def pedantic(self, target, *, rounds, iterations):
        for _ in range(rounds):
            begin = self.timer()
            for _ in range(iterations):
                target()
            self.stats.stats.data.append((self.timer() - begin) / iterations)
        if iterations > 1:
            target()


class RecordingWindow:
    """A window that records the time and the queued work at its ends."""

    def __init__(self, fake) -> None:
        self._fake = fake
        self.at_s: list[float] = []
        self.queued_s: list[float] = []

    def begin(self) -> None:
        self.at_s.append(self._fake.now_s)
        self.queued_s.append(self._fake.queued_s)

    end = begin


@pytest.fixture
def fake(monkeypatch):
    return use_clock_of(FakeDevice(), monkeypatch)


def use_clock_of(made, monkeypatch):
    clock = types.SimpleNamespace(perf_counter=lambda: made.now_s, process_time=lambda: made.now_s)
    monkeypatch.setattr(rounds, "time", clock)
    return made


@pytest.fixture
def thawed():
    """Unfreeze what tests/conftest.py has frozen."""
    gc.unfreeze()
    yield
    gc.unfreeze()


def warmed(fake, max_s: float = 30.0, **options):
    return warm_up(fake.step, fake, fake, max_s=max_s, **options)


def timed(fake, *, budget_s: float = 1.0, slowdown: float = 0.0, **options):
    timer = SynchronizingTimer()
    found = warmed(fake)
    fake.events.clear()
    return time_rounds(
        fake.step,
        fake,
        Pedantic(timer),
        timer,
        fake,
        warm_up=found,
        budget_s=budget_s,
        slowdown=slowdown,
        **options,
    )


class TestWarmUp:
    def test_first_step_and_warm_up_times_are_kept(self, fake):
        slow_first = iter([2.0])

        def step() -> None:
            fake.step()
            fake.queued_s += next(slow_first, 0.0)

        found = warm_up(step, fake, fake, max_s=30.0)
        assert found.first_step_s == pytest.approx(2.001)
        assert found.warmup_s == pytest.approx(fake.now_s)
        assert found.step_s == pytest.approx(0.001)

    def test_pilot_has_the_same_number_of_steps_on_every_machine(self, fake):
        counts = []
        for fake.step_s in (1e-5, 0.001, 1.0):
            before = fake.steps
            warmed(fake, after_pilot=lambda before=before: counts.append(fake.steps - before))
        assert counts == [PILOT_STEPS] * 3

    def test_limit_is_kept_to_a_block(self, fake):
        fake.step_s = 3.0
        found = warmed(fake, max_s=10.0)
        assert found.warmup_s <= PILOT_STEPS * 3.0 + 10.0 + 3.0
        assert not found.steady

    def test_prefetched_batches_are_used_up_before_timing(self, fake):
        """Many batches are prefetched; the loader is ten times slower than the step."""
        ready = iter(range(3000))

        def step() -> None:
            fake.step()
            fake.queued_s += 0.0 if next(ready, None) is not None else 0.009

        without = warm_up(step, fake, fake, max_s=30.0)
        assert without.step_s == pytest.approx(0.001)
        ready = iter(range(3000))
        found = warm_up(step, fake, fake, max_s=30.0, at_least=3000)
        assert found.step_s == pytest.approx(0.01)

    def test_at_least_is_limited_by_the_time(self, fake):
        fake.step_s = 1.0
        warmed(fake, max_s=3.0, at_least=1000)
        assert fake.steps <= PILOT_STEPS + 3 + 4


class TestTimeRounds:
    def test_rounds_are_step_times(self, fake):
        found = timed(fake)
        assert len(found.run.rounds_s) >= MIN_ROUNDS
        assert found.run.rounds_s == pytest.approx([0.001] * len(found.run.rounds_s))
        assert found.step_s == pytest.approx(0.001)
        assert found.run.peak_memory_bytes == 42
        assert fake.events[:2] == ["measuring", "reset peak"]  # so that it is the peak of the rounds

    def test_budget_is_spent(self, fake):
        found = timed(fake, budget_s=2.0)
        assert sum(found.run.rounds_s) * found.run.steps_per_round == pytest.approx(2.0, rel=0.1)

    @pytest.mark.parametrize("slowdown", [0.05, 0.5, 0.9])
    def test_slowdown_lowers_throughput_by_its_fraction(self, fake, slowdown):
        found = timed(fake, slowdown=slowdown)
        assert 0.001 / found.step_s == pytest.approx(1 - slowdown)

    @pytest.mark.parametrize("budget_s", [0.02, 1.0])  # one step a round, and many
    def test_window_contains_the_timed_steps_only(self, fake, budget_s):
        fake.step_s = 0.01
        window = RecordingWindow(fake)
        found = timed(fake, budget_s=budget_s, window=window)
        begin_s, end_s = window.at_s
        assert end_s - begin_s == pytest.approx(found.steps * 0.01, rel=1e-6)
        assert window.queued_s == [0.0, 0.0]  # the device is synchronized at both ends

    def test_garbage_collector_is_restored(self, fake, thawed):
        timed(fake)
        assert gc.get_freeze_count() == 0


class Recording(Alone):
    """One of two ranks, of which the other takes twice as long, with a record of its collectives."""

    size = 2

    def __init__(self, fake) -> None:
        self.fake = fake
        self.waited_at: list[int] = []  # steps before each barrier

    def barrier(self) -> None:
        self.fake.events.append("barrier")
        self.waited_at.append(self.fake.steps)
        self.fake.now_s += 1.0  # the other rank is late

    def slowest(self, seconds: float) -> float:
        return 2 * seconds

    def agree(self, value):
        self.fake.events.append("agree")
        return value


class LoaderWorkers:
    """Workers of a loader as in torch: each starts its next batch when one is taken, and batches come in turn."""

    def __init__(self, fake, workers, batch_s, *, prefetch=2, seed=0) -> None:
        self._fake = fake
        self._random = random.Random(seed)
        self._batch_s = batch_s
        self._free_s = [0.0] * workers  # when each has done its batches
        self._ready_s = collections.deque()
        for number in range(workers * prefetch):
            self._start_batch(number % workers)
        self._taken = itertools.cycle(range(workers))

    def _start_batch(self, worker) -> None:
        begin_s = max(self._free_s[worker], self._fake.now_s)
        self._free_s[worker] = begin_s + self._batch_s * self._random.uniform(0.95, 1.05)
        self._ready_s.append(self._free_s[worker])

    def step(self) -> None:
        self._fake.now_s = max(self._fake.now_s, self._ready_s.popleft())
        self._start_batch(next(self._taken))
        self._fake.step()


def time_loader(fake, workers, batch_s, *, seed=0, ranks=ALONE):
    """Time a step with such a loader."""
    step = LoaderWorkers(fake, workers, batch_s, seed=seed).step
    timer = SynchronizingTimer()
    with frozen_garbage() as freeze:
        options = {"max_s": 30.0, "pause": freeze, "ranks": ranks}
        found = warm_up(step, fake, fake, at_least=2 * workers, burst=workers, **options)
        return time_rounds(step, fake, Pedantic(timer), timer, fake, warm_up=found, budget_s=5.0, ranks=ranks)


class TestBursts:
    @pytest.fixture
    def fake(self, monkeypatch):
        return use_clock_of(Overlapping(), monkeypatch)

    @pytest.mark.parametrize(("workers", "batch_s"), [(2, 0.3), (8, 2.5), (32, 3.0)])
    def test_loader_bound_step_has_one_rate(self, fake, workers, batch_s):
        fake.step_s = 0.02
        for seed in range(2):
            found = time_loader(fake, workers, batch_s, seed=seed)
            assert found.warm_up.burst == workers
            assert found.run.steps_per_round % workers == 0
            assert found.step_s == pytest.approx(batch_s / workers, rel=0.06)
            assert found.warm_up.steady

    @pytest.mark.parametrize("step_s", [0.01, 0.03])
    @pytest.mark.parametrize(
        ("workers", "batch_s"), [(8, 0.8), (3, 0.18), (2, 0.3), (7, 0.7)], ids=lambda value: f"{value:g}"
    )
    @pytest.mark.parametrize(
        ("pauses_s", "within"),
        [((0.4, 0.02), 0.02), ((0.4, 0.4), 0.13)],
        ids=["short pause before rounds", "long pause before rounds"],
    )
    def test_batches_prefetched_in_a_pause_are_in_no_round(
        self, fake, monkeypatch, pauses_s, within, workers, batch_s, step_s
    ):
        """Workers continue while garbage is collected, which takes half a second with torch imported."""
        pauses = itertools.cycle(pauses_s)  # one in the warm-up, one before the rounds

        def collect() -> None:
            fake.now_s += next(pauses)

        monkeypatch.setattr(rounds.gc, "collect", collect)
        fake.step_s = step_s
        found = [time_loader(fake, workers, batch_s, seed=seed).run.rounds_s for seed in range(8)]
        first = fmean(first_s / fmean(others_s) for first_s, *others_s in found)
        assert first == pytest.approx(1, abs=within)

    @pytest.mark.parametrize(("workers", "step_s"), [(3, 0.3), (15, 0.1), (16, 0.52)])
    def test_device_bound_rounds_are_those_without_workers(self, fake, workers, step_s):
        fake.step_s = step_s
        found = time_loader(fake, workers, workers * step_s / 3)
        assert found.warm_up.burst == 1
        assert found.run.steps_per_round == plan_rounds(step_s, 5.0).steps_per_round

    def test_single_slow_step_is_no_burst(self, fake):
        numbers = itertools.count()

        def step() -> None:
            fake.step()
            fake.queued_s += 0.25 if next(numbers) == PILOT_STEPS + 7 else 0.0

        fake.step_s = 0.5
        found = warm_up(step, fake, fake, max_s=30.0, burst=16)
        assert (found.burst, found.steady) == (1, True)

    def test_burst_longer_than_the_limit_is_ignored(self, fake):
        fake.step_s = 1.0
        found = warm_up(fake.step, fake, fake, max_s=30.0, burst=500)
        assert found.burst == 1
        assert found.warmup_s < 40

    def test_burst_of_one_rank_counts_for_all(self, fake):
        fake.step_s = 0.1

        class OtherWaits(Alone):
            def slowest(self, value):
                return max(value, 1.0) if isinstance(value, bool) else value

        assert time_loader(fake, 3, 0.05, ranks=OtherWaits()).warm_up.burst == 3


class TestRanks:
    def test_barriers_are_outside_of_rounds(self, fake):
        timer = SynchronizingTimer()
        found = warmed(fake)
        fake.events.clear()
        timed = time_rounds(
            fake.step, fake, Pedantic(timer), timer, fake, warm_up=found, budget_s=1.0, ranks=Recording(fake)
        )
        assert timed.run.rounds_s == pytest.approx([0.001] * len(timed.run.rounds_s))
        assert fake.events.count("barrier") == len(timed.run.rounds_s) + 1  # and before the window is closed
        assert fake.events[:2] == ["agree", "measuring"]

    def test_process_group_of_one_rank_waits_for_none_between_rounds(self, fake):
        """NCCL would launch a kernel before each of its rounds."""
        timer, ranks = SynchronizingTimer(), Recording(fake)
        ranks.size = 1
        time_rounds(
            fake.step, fake, Pedantic(timer), timer, fake, warm_up=warmed(fake), budget_s=1.0, ranks=ranks
        )
        assert ranks.waited_at == [fake.steps]

    def test_ranks_take_the_largest_number_of_steps(self, fake):
        """Ranks may have different numbers of workers."""
        ranks = Recording(fake)
        warm_up(fake.step, fake, fake, max_s=30.0, ranks=ranks)
        plain, fake.steps = fake.steps, 0
        warm_up(fake.step, fake, fake, max_s=30.0, at_least=10, ranks=ranks)
        assert fake.steps == plain + 20  # the other rank has twice as many


class TestLaunchTime:
    @pytest.fixture
    def overlapping(self, monkeypatch):
        return use_clock_of(Overlapping(step_s=0.020), monkeypatch)

    def launch_time_s(self, step, fake, budget_s=1.0):
        return launch_time_s(step, fake, step_s=fake.step_s, budget_s=budget_s)

    @pytest.mark.parametrize(("budget_s", "steps"), [(1.0, 5), (0.05, 2), (0.001, 1)])
    def test_number_of_steps_fits_the_budget(self, overlapping, budget_s, steps):
        self.launch_time_s(overlapping.step, overlapping, budget_s)
        assert overlapping.steps == steps

    def launched_in(self, fake, seconds):
        def step():
            fake.now_s += seconds
            fake.step()

        return step

    def test_launch_time_excludes_the_device(self, overlapping):
        assert self.launch_time_s(self.launched_in(overlapping, 0.003), overlapping) == pytest.approx(0.003)
        assert overlapping.now_s >= overlapping.free_s, "nothing is left running"


# --- plans and drift ---

STEP_S = st.floats(1e-9, 1e4)
BUDGET_S = st.floats(1e-3, 3600)


class TestPlan:
    @pytest.mark.parametrize(
        ("step_s", "budget_s", "steps", "rounds"),
        [
            (10.0, 5.0, 1, MIN_ROUNDS),  # a long step
            (1e-6, 1.0, round(MIN_ROUND_S / 1e-6), 50),  # a tiny one: long enough for the timer
            (1e-6, 0.006, 1000, MIN_ROUNDS),  # a tiny budget
        ],
    )
    def test_plan_of_extreme_steps(self, step_s, budget_s, steps, rounds):
        plan = plan_rounds(step_s, budget_s)
        assert (plan.steps_per_round, plan.rounds) == (steps, rounds)

    @given(STEP_S, BUDGET_S)
    def test_budget_is_kept_to_half_a_round(self, step_s, budget_s):
        plan = plan_rounds(step_s, budget_s)
        assert MIN_ROUNDS <= plan.rounds <= MAX_ROUNDS
        assert plan.steps_per_round >= 1
        round_s = plan.steps_per_round * step_s
        if plan.rounds > MIN_ROUNDS:
            assert plan.rounds * round_s <= budget_s + 0.5 * round_s * (1 + 1e-9)
        elif plan.steps_per_round > 1:
            assert plan.rounds * round_s <= budget_s * (1 + 1e-9)
        assert plan.rounds * round_s >= budget_s - 0.5 * round_s * (1 + 1e-9)

    @given(STEP_S, BUDGET_S, st.integers(1, 300))
    def test_rounds_are_whole_bursts_and_no_longer_than_that_takes(self, step_s, budget_s, burst):
        plain, plan = plan_rounds(step_s, budget_s), plan_rounds(step_s, budget_s, burst=burst)
        assert plan.steps_per_round % burst == 0
        assert plain.steps_per_round <= plan.steps_per_round < plain.steps_per_round + burst
        assert MIN_ROUNDS <= plan.rounds <= MAX_ROUNDS


def observed(stream, *, max_s: float = 30.0, block_s: float = 0.1) -> DriftDetector:
    """Observe blocks until steady or exhausted; the stream gives mean step times."""
    detector = DriftDetector(max_s=max_s)
    for step_s in stream:
        if detector.steady or detector.exhausted:
            break
        detector.observe(step_s, block_s)
    return detector


def noisy(step_s: float, sd: float, seed: int):
    draw = random.Random(seed)
    while True:
        yield step_s * math.exp(draw.gauss(0, sd))


class TestDriftDetector:
    @given(st.lists(st.floats(1e-7, 10), min_size=1, max_size=20), st.floats(0.01, 5), st.floats(0.01, 1))
    def test_ends_on_any_stream(self, cycle, max_s, block_s):
        blocks = 0
        detector = DriftDetector(max_s=max_s)
        while not (detector.steady or detector.exhausted):
            detector.observe(cycle[blocks % len(cycle)], block_s)
            blocks += 1
        assert blocks <= math.ceil(max_s / block_s) + 1
        assert detector.step_s > 0

    def test_constant_steps_are_steady_after_the_least_time(self):
        detector = observed([0.01] * 1000)
        assert detector.steady
        assert MIN_WARMUP_S <= detector.spent_s <= MIN_WARMUP_S + 0.2
        assert detector.step_s == 0.01

    @pytest.mark.parametrize("sd", [0.003, 0.01, 0.03, 0.1])
    def test_noise_without_drift_is_steady_soon(self, sd):
        """Noise is not drift, however large it is."""
        spent = [observed(noisy(0.01, sd, seed)).spent_s for seed in range(100)]
        assert median(spent) < 3.0
        assert sum(each >= 30 for each in spent) <= 2

    @pytest.mark.parametrize("drift", [0.005, 0.02, 0.1])
    def test_steps_that_go_on_getting_slower_are_not_steady(self, drift):
        """A trend is not noise, however steep it is; 0.5 % a block is 2 % between the windows."""
        detector = observed((0.01 * math.exp(drift * block) for block in range(1000)), max_s=10.0)
        assert detector.exhausted
        assert not detector.steady

    @pytest.mark.parametrize("sd", [0.0, 0.001, 0.003])
    @pytest.mark.parametrize("step", [0.5, 0.03, -0.03, -0.5])
    def test_step_change_is_waited_out(self, step, sd):
        """Clocks drop, or an autotuner switches: the windows must lie behind it."""
        for at in range(8, 16):
            draw = random.Random(at)
            stream = (
                0.01 * math.exp(draw.gauss(0, sd) + (step if block >= at else 0.0)) for block in range(1000)
            )
            # Seen from before the change, it is steady: begin to ask only once it has happened.
            detector = DriftDetector(max_s=30.0)
            for block, step_s in enumerate(stream):
                detector.observe(step_s, 0.1)
                if block > at and (detector.steady or detector.exhausted):
                    break
            assert detector.steady
            assert detector.blocks_s[-1] == pytest.approx(0.01 * math.exp(step), rel=0.02)
            # At least three of the four blocks of the earlier window lie behind the change too.
            assert len(detector.blocks_s) - at >= 6

    @pytest.mark.parametrize(("excess", "tau_s"), [(0.2, 3.0), (0.3, 5.0), (0.5, 2.0)])
    def test_slow_tail_is_waited_out(self, excess, tau_s):
        """Windows that grow see what two neighbouring ones of .4 s do not."""
        stream = (0.01 * (1 + excess * math.exp(-0.1 * block / tau_s)) for block in range(1000))
        detector = observed(stream)
        assert detector.blocks_s[-1] == pytest.approx(0.01, rel=0.03)


class TestSteadyRounds:
    @pytest.mark.parametrize(
        ("rounds_s", "steady"),
        [
            ([0.01] * 8, True),
            ([0.01 * math.exp(0.01 * number) for number in range(10)], False),
            ([0.01 * math.exp(-0.02 * number) for number in range(10)], False),
            ([0.02, *[0.01] * 9], True),  # one slow round
            ([0.01, 0.5], True),  # too few to say
        ],
    )
    def test_drift_between_halves_is_found(self, rounds_s, steady):
        assert steady_rounds(rounds_s) == steady

    def test_noise_is_hardly_ever_taken_for_drift(self):
        runs = (list(islice(noisy(0.01, 0.03, seed), 10)) for seed in range(300))
        assert sum(not steady_rounds(rounds_s) for rounds_s in runs) < 30


# --- parts of a step ---


class CallDevice(FakeDevice):
    """A device whose calls take a time by their number."""

    call_s = staticmethod(lambda number: 0.01)
    synchronized = 0

    def call(self) -> None:
        self.queued_s += self.call_s(self.steps)
        self.steps += 1

    def synchronize(self) -> None:
        self.synchronized += 1
        super().synchronize()


class TestSecondsPerCall:
    @pytest.fixture
    def fake(self, monkeypatch):
        return use_clock_of(CallDevice(), monkeypatch)

    def test_time_of_a_call_on_an_asynchronous_device_is_found(self, fake):
        assert seconds_per_call(fake.call, fake, Alone(), budget_s=1.0) == pytest.approx(0.01)

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
        assert fake.steps <= 5 + 2 * PILOTS

    def test_ranks_take_equally_many_calls_and_begin_together(self, fake):
        ranks = Recording(fake)
        assert seconds_per_call(fake.call, fake, ranks, budget_s=1.0) == pytest.approx(0.01)
        pilots = PILOTS + 1  # whole bursts of two
        assert fake.steps == pytest.approx(pilots + 50, abs=2)
        assert ranks.waited_at == [pilots]

    @pytest.mark.parametrize("workers", [1, 2, 3, 8, 12, 40])
    def test_bursts_are_timed_whole_and_within_the_budget(self, fake, workers):
        fake.call_s = lambda number: 0.0 if (number + 1) % workers else 0.4
        found = seconds_per_call(fake.call, fake, Alone(), budget_s=0.5, untimed=workers, burst=workers)
        assert found == pytest.approx(0.4 / workers)
        assert fake.steps <= workers + 2 * (workers + PILOTS) + 2 * workers


class TestLatencies:
    @pytest.fixture
    def fake(self, monkeypatch):
        return use_clock_of(CallDevice(), monkeypatch)

    def test_every_call_is_synchronized_and_timed(self, fake):
        fake.call_s = lambda number: 0.001 * (number + 1)
        found = latencies(fake.call, fake, Alone(), budget_s=0.01)
        assert found == pytest.approx([0.001 * (number + 1) for number in range(PILOTS, fake.steps)])
        assert fake.synchronized == 2 + 2 * len(found)

    @pytest.mark.parametrize(("call_s", "count"), [(10.0, MIN_LATENCIES), (0.01, 500), (1e-6, MAX_LATENCIES)])
    def test_number_of_latencies_fits_the_budget_within_limits(self, fake, call_s, count):
        fake.call_s = lambda number: call_s
        assert len(latencies(fake.call, fake, Alone(), budget_s=5.0)) == pytest.approx(count, abs=1)
