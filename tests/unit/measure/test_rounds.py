"""Warm-up and rounds, on a device and a clock that only steps move."""

from __future__ import annotations

import collections
import gc
import itertools
import random
import types
from dataclasses import dataclass, field
from statistics import fmean

import pytest

from pytest_accel.measure import rounds, warmup
from pytest_accel.measure.ranks import ALONE, Alone
from pytest_accel.measure.rounds import SynchronizingTimer, launch_time_s, plan_rounds, time_rounds
from pytest_accel.measure.warmup import PILOT_STEPS, frozen_garbage, warm_up
from pytest_accel.stats.run import MIN_ROUNDS


@dataclass
class Laboratory:
    """A clock, a device that runs behind it, and everything that happened, in order."""

    now_s: float = 0.0
    queued_s: float = 0.0  # work that was launched and not waited for
    step_s: float = 0.001
    steps: int = 0
    events: list[str] = field(default_factory=list)

    # the step
    def step(self) -> None:
        self.steps += 1
        self.queued_s += self.step_s

    # the device
    name = "lab"

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

    # the watcher
    def phase(self, text: str, remaining_s: float | None) -> None:
        self.events.append(text)

    def tick(self) -> None:
        self.events.append("tick")


@dataclass
class Overlapping(Laboratory):
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

    disabled = False

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


class Ends:
    """A window that notes when it was told of its ends, and how much work the device still had."""

    def __init__(self, lab) -> None:
        self._lab = lab
        self.at_s: list[float] = []
        self.queued_s: list[float] = []

    def begin(self) -> None:
        self.at_s.append(self._lab.now_s)
        self.queued_s.append(self._lab.queued_s)

    end = begin


@pytest.fixture
def lab(monkeypatch):
    return by_its_clock(Laboratory(), monkeypatch)


def by_its_clock(made, monkeypatch):
    clock = types.SimpleNamespace(perf_counter=lambda: made.now_s, process_time=lambda: made.now_s)
    monkeypatch.setattr(rounds, "time", clock)
    monkeypatch.setattr(warmup, "time", clock)
    return made


@pytest.fixture
def thawed():
    """Tests begin with everything frozen (tests/conftest.py), and these ask what is."""
    gc.unfreeze()
    yield
    gc.unfreeze()


def settled(lab, max_s: float = 30.0, **options):
    return warm_up(lab.step, lab, lab, max_s=max_s, **options)


def timed(lab, *, budget_s: float = 1.0, slowdown: float = 0.0, **options):
    timer = SynchronizingTimer()
    found = settled(lab)
    lab.events.clear()
    return time_rounds(
        lab.step,
        lab,
        Pedantic(timer),
        timer,
        lab,
        warm_up=found,
        budget_s=budget_s,
        slowdown=slowdown,
        **options,
    )


class TestSettle:
    def test_finds_the_time_of_a_step_on_a_device_that_runs_behind(self, lab):
        found = settled(lab)
        assert found.step_s == pytest.approx(0.001)
        assert found.steady

    def test_keeps_what_it_cost(self, lab):
        slow_first = iter([2.0])

        def step() -> None:
            lab.step()
            lab.queued_s += next(slow_first, 0.0)

        found = warm_up(step, lab, lab, max_s=30.0)
        assert found.first_step_s == pytest.approx(2.001)
        assert found.warmup_s == pytest.approx(lab.now_s)
        assert found.step_s == pytest.approx(0.001)

    def test_asks_after_the_same_number_of_steps_on_every_machine(self, lab):
        counts = []
        for lab.step_s in (1e-5, 0.001, 1.0):
            before = lab.steps
            settled(lab, after_pilot=lambda before=before: counts.append(lab.steps - before))
        assert counts == [PILOT_STEPS] * 3

    def test_keeps_to_its_limit_to_a_block(self, lab):
        lab.step_s = 3.0
        found = settled(lab, max_s=10.0)
        assert found.warmup_s <= PILOT_STEPS * 3.0 + 10.0 + 3.0
        assert not found.steady

    def test_says_what_it_does(self, lab):
        settled(lab)
        assert lab.events[0] == "warming up"
        assert "tick" in lab.events

    def test_takes_what_lies_ready_before_it_looks_at_times(self, lab):
        """Batches of seconds are there already; the loader behind them is ten times slower than the step."""
        ready = iter(range(3000))

        def step() -> None:
            lab.step()
            lab.queued_s += 0.0 if next(ready, None) is not None else 0.009

        hasty = warm_up(step, lab, lab, max_s=30.0)
        assert hasty.step_s == pytest.approx(0.001)
        ready = iter(range(3000))
        found = warm_up(step, lab, lab, max_s=30.0, at_least=3000)
        assert found.step_s == pytest.approx(0.01)

    def test_takes_so_many_steps_more_than_without(self, lab):
        settled(lab)
        plain, lab.steps = lab.steps, 0
        settled(lab, at_least=37)
        assert lab.steps == plain + 37

    def test_takes_no_more_of_them_than_its_limit_allows(self, lab):
        lab.step_s = 1.0
        settled(lab, max_s=3.0, at_least=1000)
        assert lab.steps <= PILOT_STEPS + 3 + 4


class TestTimeRounds:
    def test_every_round_is_the_time_of_a_step(self, lab):
        found = timed(lab)
        assert len(found.run.rounds_s) >= MIN_ROUNDS
        assert found.run.rounds_s == pytest.approx([0.001] * len(found.run.rounds_s))
        assert found.step_s == pytest.approx(0.001)
        assert found.run.peak_memory_bytes == 42

    def test_peak_memory_is_that_of_the_rounds(self, lab):
        timed(lab)
        assert lab.events[:2] == ["measuring", "reset peak"]

    def test_budget_is_spent(self, lab):
        found = timed(lab, budget_s=2.0)
        assert sum(found.run.rounds_s) * found.run.steps_per_round == pytest.approx(2.0, rel=0.1)

    @pytest.mark.parametrize("slowdown", [0.05, 0.5, 0.9])
    def test_slowdown_lowers_throughput_by_its_fraction(self, lab, slowdown):
        found = timed(lab, slowdown=slowdown)
        assert 0.001 / found.step_s == pytest.approx(1 - slowdown)

    @pytest.mark.parametrize("budget_s", [0.02, 1.0])  # one step a round, and many
    def test_the_window_holds_all_steps_and_nothing_else(self, lab, budget_s):
        lab.step_s = 0.01
        window = Ends(lab)
        found = timed(lab, budget_s=budget_s, window=window)
        begin_s, end_s = window.at_s
        assert end_s - begin_s == pytest.approx(found.steps * 0.01, rel=1e-6)

    def test_work_that_is_still_queued_lies_in_the_window(self, lab):
        window = Ends(lab)
        timed(lab, window=window)
        assert window.queued_s == [0.0, 0.0]

    def test_collector_is_back_as_it_was(self, lab, thawed):
        timed(lab)
        assert gc.get_freeze_count() == 0
        assert gc.isenabled()

    def test_collector_is_back_after_a_step_that_raises(self, lab, thawed):
        timer = SynchronizingTimer()
        found = settled(lab)
        with pytest.raises(ZeroDivisionError):
            time_rounds(lambda: 1 / 0, lab, Pedantic(timer), timer, lab, warm_up=found, budget_s=1.0)
        assert gc.get_freeze_count() == 0

    def test_what_was_built_before_is_frozen_meanwhile(self, lab, thawed):
        counts = []
        timed(
            lab,
            window=types.SimpleNamespace(
                begin=lambda: counts.append(gc.get_freeze_count()), end=lambda: None
            ),
        )
        assert counts[0] > 1000

    def test_what_somebody_else_has_frozen_stays_so(self, lab, thawed):
        gc.freeze()
        frozen = gc.get_freeze_count()
        timed(lab)
        assert gc.get_freeze_count() == frozen


class TestSparing:
    def test_what_was_frozen_before_it_stays_so(self, thawed):
        """By the first step, say."""
        with frozen_garbage() as spare:
            gc.freeze()
            spare()
        assert gc.get_freeze_count() > 1000

    def test_it_thaws_nothing_where_nothing_was_spared(self, thawed):
        with frozen_garbage():
            gc.freeze()
        assert gc.get_freeze_count() > 1000

    def test_twice_is_once(self, thawed):
        with frozen_garbage() as spare:
            spare()
            first, _more = gc.get_freeze_count(), [[] for _ in range(1000)]
            spare()
            assert gc.get_freeze_count() > first
        assert gc.get_freeze_count() == 0


class Recording(Alone):
    """Two ranks of which only one is there: what is asked of the other, in order; real ones are in tests/distributed."""

    size = 2

    def __init__(self, lab) -> None:
        self.lab = lab

    def barrier(self) -> None:
        self.lab.events.append("barrier")
        self.lab.now_s += 1.0  # the other comes late

    def slowest(self, seconds: float) -> float:
        return 2 * seconds

    def agree(self, value):
        self.lab.events.append("agree")
        return value


class Workers:
    """A loader's, as torch has them: each is asked for another batch when one of its own is taken, and batches come in turn."""

    def __init__(self, lab, workers, batch_s, *, prefetch=2, seed=0) -> None:
        self._lab = lab
        self._random = random.Random(seed)
        self._batch_s = batch_s
        self._free_s = [0.0] * workers  # when each has done what it was asked for
        self._ready_s = collections.deque()
        for number in range(workers * prefetch):
            self._ask(number % workers)
        self._taken = itertools.cycle(range(workers))

    def _ask(self, worker) -> None:
        begin_s = max(self._free_s[worker], self._lab.now_s)
        self._free_s[worker] = begin_s + self._batch_s * self._random.uniform(0.95, 1.05)
        self._ready_s.append(self._free_s[worker])

    def step(self) -> None:
        self._lab.now_s = max(self._lab.now_s, self._ready_s.popleft())
        self._ask(next(self._taken))
        self._lab.step()


def fed(lab, workers, batch_s, *, seed=0, ranks=ALONE):
    """What is found of a step that such a loader feeds; in a gang of ranks that have as many workers."""
    step = Workers(lab, workers, batch_s, seed=seed).step
    timer = SynchronizingTimer()
    with frozen_garbage() as spare:
        options = {"max_s": 30.0, "pause": spare, "ranks": ranks}
        found = warm_up(step, lab, lab, at_least=2 * workers, burst=workers, **options)
        return time_rounds(step, lab, Pedantic(timer), timer, lab, warm_up=found, budget_s=5.0, ranks=ranks)


class TestBursts:
    @pytest.fixture
    def lab(self, monkeypatch):
        return by_its_clock(Overlapping(), monkeypatch)

    @pytest.mark.parametrize(("workers", "batch_s"), [(2, 0.3), (8, 2.5), (32, 3.0)])
    def test_a_loader_that_sets_the_pace_has_one_rate(self, lab, workers, batch_s):
        lab.step_s = 0.02
        for seed in range(2):
            found = fed(lab, workers, batch_s, seed=seed)
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
        ids=["what was spared takes no time", "a pause before the rounds"],
    )
    def test_what_lies_ready_after_a_pause_is_in_no_round(
        self, lab, monkeypatch, pauses_s, within, workers, batch_s, step_s
    ):
        """Workers go on while garbage is collected, which takes half a second of a process that has torch in it."""
        pauses = itertools.cycle(pauses_s)  # of a process: one in the warm-up, one before the rounds

        def collect() -> None:
            lab.now_s += next(pauses)

        monkeypatch.setattr(warmup.gc, "collect", collect)
        lab.step_s = step_s
        found = [fed(lab, workers, batch_s, seed=seed).run.rounds_s for seed in range(8)]
        # A pause also shifts workers against each other. Without the steps that take what lies ready it is half and less.
        first = fmean(first_s / fmean(others_s) for first_s, *others_s in found)
        assert first == pytest.approx(1, abs=within)

    @pytest.mark.parametrize(("workers", "step_s"), [(3, 0.3), (15, 0.1), (16, 0.52)])
    def test_where_the_device_sets_it_rounds_are_as_without_workers(self, lab, workers, step_s):
        lab.step_s = step_s
        found = fed(lab, workers, workers * step_s / 3)
        assert found.warm_up.burst == 1
        assert found.run.steps_per_round == plan_rounds(step_s, 5.0).steps_per_round

    def test_a_step_that_falters_once_is_no_loader(self, lab):
        numbers = itertools.count()

        def step() -> None:
            lab.step()
            lab.queued_s += 0.25 if next(numbers) == PILOT_STEPS + 7 else 0.0

        lab.step_s = 0.5
        found = warm_up(step, lab, lab, max_s=30.0, burst=16)
        assert (found.burst, found.steady) == (1, True)

    def test_a_burst_that_would_take_all_the_time_is_not_looked_at(self, lab):
        lab.step_s = 1.0
        found = warm_up(lab.step, lab, lab, max_s=30.0, burst=500)
        assert found.burst == 1
        assert found.warmup_s < 40

    def test_a_loader_that_is_even_and_slow_is_settled_by_its_own_pace(self, lab):
        """What lay ready told of the device alone."""
        lab.step_s, numbers = 0.005, itertools.count()

        def step() -> None:
            lab.step()
            lab.queued_s += 1.0 if next(numbers) > PILOT_STEPS + 8 else 0.0

        found = warm_up(step, lab, lab, max_s=30.0, at_least=9, burst=4)
        assert found.steady
        assert found.step_s == pytest.approx(1.005, rel=0.01)

    def test_a_rank_whose_loader_binds_says_so_for_all(self, lab):
        lab.step_s = 0.1

        class OtherWaits(Alone):
            def slowest(self, value):
                return max(value, 1.0) if isinstance(value, bool) else value

        assert fed(lab, 3, 0.05, ranks=OtherWaits()).warm_up.burst == 3


class TestRanks:
    def test_waiting_for_the_others_is_in_no_round(self, lab):
        timer = SynchronizingTimer()
        found = settled(lab)
        lab.events.clear()
        timed = time_rounds(
            lab.step, lab, Pedantic(timer), timer, lab, warm_up=found, budget_s=1.0, ranks=Recording(lab)
        )
        assert timed.run.rounds_s == pytest.approx([0.001] * len(timed.run.rounds_s))
        assert lab.events.count("barrier") == len(timed.run.rounds_s) + 1  # and before the window is closed
        assert lab.events[:2] == ["agree", "measuring"]

    def test_ranks_with_more_lying_ready_than_others_take_as_many_steps(self, lab):
        """Each has as many workers as it has CPUs to spare: the most that any has is taken by all."""
        ranks = Recording(lab)
        warm_up(lab.step, lab, lab, max_s=30.0, ranks=ranks)
        plain, lab.steps = lab.steps, 0
        warm_up(lab.step, lab, lab, max_s=30.0, at_least=10, ranks=ranks)
        assert lab.steps == plain + 20  # of the other, which has twice as many

    def test_warm_up_goes_by_the_slowest(self, lab):
        found = warm_up(lab.step, lab, lab, max_s=30.0, ranks=Recording(lab))
        assert found.step_s == pytest.approx(0.002)


class TestLaunching:
    @pytest.fixture
    def overlapping(self, monkeypatch):
        return by_its_clock(Overlapping(step_s=0.020), monkeypatch)

    def launch_time_s(self, step, lab, budget_s=1.0):
        return launch_time_s(step, lab, step_s=lab.step_s, budget_s=budget_s)

    @pytest.mark.parametrize(("budget_s", "steps"), [(1.0, 5), (0.05, 2), (0.001, 1)])
    def test_takes_no_more_steps_than_there_is_time_for(self, overlapping, budget_s, steps):
        self.launch_time_s(overlapping.step, overlapping, budget_s)
        assert overlapping.steps == steps

    def launched_in(self, lab, seconds):
        def step():
            lab.now_s += seconds
            lab.step()

        return step

    def test_is_what_the_host_takes_and_not_what_the_device_takes(self, overlapping):
        assert self.launch_time_s(self.launched_in(overlapping, 0.003), overlapping) == pytest.approx(0.003)
        assert overlapping.now_s >= overlapping.free_s, "nothing is left running"

    def test_a_step_that_waits_for_its_result_is_launched_when_it_is_done(self, overlapping):
        def step():
            overlapping.step()
            overlapping.synchronize()

        assert self.launch_time_s(step, overlapping) == pytest.approx(0.020)

    def test_one_pause_of_the_host_is_forgotten(self, overlapping):
        launches = itertools.chain([0.003, 0.5], itertools.repeat(0.003))

        def step():
            overlapping.now_s += next(launches)
            overlapping.step()

        assert self.launch_time_s(step, overlapping) == pytest.approx(0.003)


class TestTimer:
    def test_waits_for_the_device_before_it_reads_the_clock(self, monkeypatch):
        events = []
        timer = SynchronizingTimer()
        timer.synchronize = lambda: events.append("synchronize")
        monkeypatch.setattr(
            "pytest_accel.measure.rounds.time.perf_counter", lambda: events.append("clock") or 1.0
        )
        assert timer() == 1.0
        assert events == ["synchronize", "clock"]

    def test_between_rounds_runs_before_a_round_and_never_inside(self):
        events = []
        timer = SynchronizingTimer()
        timer.synchronize = lambda: events.append("synchronize")
        timer.between_rounds = lambda: events.append("between")
        for _ in range(4):  # two rounds
            timer()
        assert events == ["between", "synchronize", "synchronize"] * 2

    def test_is_monotonic_and_works_unbound(self):
        timer = SynchronizingTimer()
        assert timer() <= timer()

    def test_has_a_name_for_the_json_of_pytest_benchmark(self):
        assert SynchronizingTimer().__name__
