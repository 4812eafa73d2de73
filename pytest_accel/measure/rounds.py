"""Warm-up, rounds of steps timed by pytest-benchmark, and parts of a step timed after them, on all ranks alike."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Any, NamedTuple, Protocol, TypeVar

from pytest_accel.measure.arguments import check_first_step
from pytest_accel.measure.device import Device
from pytest_accel.platforms.host import load_metrics, read_load
from pytest_accel.stats.run import MIN_ROUNDS, Run

Step = Callable[[], object]
T = TypeVar("T")

# Single steps at the start: the first one compiles and allocates, the others say how long a step is.
# A training step's loss after the last of them is comparable between machines.
PILOT_STEPS = 5
MIN_WARMUP_S = 1.0  # clocks ramp for about a second from idle
MIN_WINDOW = 4  # blocks
# Phases of a warm-up, as progress shows them.
COMPILING, FIRST_STEP, WARMING_UP = "compiling", "first step", "warming up"
BLOCK_S = 0.1  # warm-up is observed in blocks of about this length
# Mean of a burst over its shortest step. A single outlier reaches less.
UNEVEN = 1.1


class Ranks:
    """The processes that measure one benchmark together; what is not overridden is that of a single one."""

    rank: int = 0
    size: int = 1

    def barrier(self) -> None:
        """Wait until every rank is here."""

    def slowest(self, seconds: float) -> float:
        """Return the largest of all ranks' values, the same to the last bit on every rank."""
        return seconds

    def agree(self, value: T) -> T:
        """Return rank 0's value, which can be pickled."""
        return self.gather(value)[0]

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, by rank, on every rank."""
        return [value]


class Alone(Ranks):
    """A single process without a process group."""


ALONE = Alone()


class ProgressListener(Protocol):
    """Receives progress between steps, never inside timed ones."""

    def phase(self, text: str, remaining_s: float | None) -> None: ...
    def tick(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    first_step_s: float
    warmup_s: float
    step_s: float
    steady: bool
    burst: int = 1  # steps that come together
    ready: int = 0  # batches that a loader may have ready after a pause


@dataclass(slots=True)
class DriftDetector:
    """Decides from blocks of warm-up steps whether they stopped drifting.

    Compares the medians of the last quarter of the blocks and of the quarter before it: windows that grow see slow drifts
    that short ones miss. Compilation, autotuning, allocator growth and clock ramps all show as a difference; below one
    percent, or below what the spread of neighbouring blocks explains, counts as steady.
    """

    max_s: float
    blocks_s: list[float] = field(default_factory=list)  # mean step time of each block
    spent_s: float = 0.0

    def observe(self, step_s: float, block_s: float) -> None:
        self.blocks_s.append(step_s)
        self.spent_s += block_s

    @property
    def window(self) -> int:
        return max(MIN_WINDOW, len(self.blocks_s) // 4)

    @property
    def steady(self) -> bool:
        window = self.window
        if self.spent_s < min(MIN_WARMUP_S, self.max_s) or len(self.blocks_s) < 2 * window:
            return False
        before, after = self.blocks_s[-2 * window : -window], self.blocks_s[-window:]
        return not _drifts(before, after, limit=0.01, errors=2)

    @property
    def exhausted(self) -> bool:
        return self.spent_s >= self.max_s

    @property
    def step_s(self) -> float:
        return median(self.blocks_s[-2 * self.window :])


def steady_rounds(rounds_s: Sequence[float]) -> bool:
    """Return whether measured rounds kept their level: the second half against the first.

    Wider limits than for the warm-up: the question is whether the run is usable, not whether to wait longer.
    """
    half = len(rounds_s) // 2
    return half < 3 or not _drifts(rounds_s[:half], rounds_s[-half:], limit=0.02, errors=3)


def _drifts(before: Sequence[float], after: Sequence[float], *, limit: float, errors: float) -> bool:
    """Return whether two windows differ by more than `limit` and by more than so many errors of their medians."""
    change = abs(math.log(median(after) / median(before)))
    return change >= max(limit, errors * _median_error([*before, *after], len(after)))


def _median_error(blocks_s: list[float], window: int) -> float:
    """Return the standard error of the difference of two window medians, from how much neighbouring blocks differ.

    Neighbours, because deviations from a common centre would take a trend for noise: then nothing ever drifts.
    """
    logs = [math.log(block) for block in blocks_s]
    apart = median(abs(later - earlier) for earlier, later in pairwise(logs))
    sigma = 1.4826 * apart / math.sqrt(2)  # MAD of a normal, scaled; a difference has twice the variance
    return sigma * math.sqrt(math.pi / 2) * math.sqrt(2 / window)


def warm_up(
    step: Step,
    device: Device,
    progress: ProgressListener,
    *,
    max_s: float,
    after_pilot: Callable[[], None] = lambda: None,
    pause: Callable[[], None] = lambda: None,
    at_least: int = 0,
    burst: int = 1,
    first: str = FIRST_STEP,
    ranks: Ranks = ALONE,
) -> WarmUp:
    """Run steps until their times stop drifting, within `max_s`; at least so many beyond the pilots.

    Up to `burst` steps may find their batch ready together. Where they do, blocks and rounds are whole bursts. `pause`
    is for work that takes a moment, such as a garbage collection.

    All ranks decide from the slowest rank's times: they must take the same number of steps, or one of them waits in a
    collective of a step that no other rank takes.
    """
    progress.phase(first, None)
    begin = time.perf_counter()
    pilots_s = [timed_block(check_first_step(step), 1, device)]
    pilots_s += [timed_block(step, 1, device) for _ in range(PILOT_STEPS - 1)]
    after_pilot()
    progress.phase(WARMING_UP, None)
    pilot_s = ranks.slowest(median(pilots_s[1:]))
    ready = int(ranks.slowest(at_least))
    timed_block(step, min(ready, int(max_s / pilot_s)), device)
    detector = DriftDetector(max_s=max_s)
    step_s, burst = pilot_s, int(ranks.slowest(burst))
    if burst * pilot_s > max_s:
        burst = 1  # finding out whether steps come together would take all the time
    if burst > 1:
        step_s, burst = _detect_bursts(step, device, progress, ranks, burst)
    pause()  # after the bursts, which batches made ready by a pause would hide; before the first round
    steps = in_bursts(max(1, round(BLOCK_S / step_s)), burst)
    while not (detector.steady or detector.exhausted):
        block_s = ranks.slowest(timed_block(step, steps, device))
        detector.observe(block_s / steps, block_s)
        progress.tick()
    return WarmUp(
        first_step_s=pilots_s[0],
        warmup_s=time.perf_counter() - begin,
        step_s=detector.step_s,
        steady=detector.steady,
        burst=burst,
        ready=ready,
    )


def _detect_bursts(
    step: Step, device: Device, progress: ProgressListener, ranks: Ranks, burst: int
) -> tuple[float, int]:
    """Return the mean step time and how many steps come together: one waits for the loader, the others find batches ready."""
    steps_s = []
    for _ in range(burst):
        steps_s.append(timed_block(step, 1, device))
        progress.tick()
    mean_s = fmean(steps_s)
    together = ranks.slowest(mean_s > UNEVEN * min(steps_s))
    return ranks.slowest(mean_s), burst if together else 1


def in_bursts(steps: int, burst: int) -> int:
    """Return so many steps, rounded up to whole bursts.

    Loader workers that began together deliver together: of three steps one waits, and two find their batch ready. A
    round of four would wait once or twice, by chance.
    """
    return -(-steps // burst) * burst


def timed_block(step: Step, steps: int, device: Device) -> float:
    device.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    device.synchronize()
    return time.perf_counter() - begin


@contextmanager
def frozen_garbage() -> Iterator[Callable[[], None]]:
    """Yield a function that collects garbage and freezes what is left.

    The collector stays on, as in real training, but walks only over new objects: the first collection takes half a second
    of a process with torch in it.
    """

    def freeze() -> None:
        gc.collect()
        gc.freeze()

    try:
        yield freeze
    finally:
        gc.unfreeze()


STEPS_PER_ROUND = 10
# A round this long makes the two timer calls and the synchronization (tens of microseconds on an H200) less than a
# thousandth of it.
MIN_ROUND_S = 0.02
MAX_ROUNDS = 120
_LAUNCHED_STEPS = 5  # at the most


class SynchronizingTimer:
    """A clock for pytest-benchmark that synchronizes the device before it is read.

    In pedantic mode pytest-benchmark calls it exactly twice a round. `between_rounds` runs before a round begins, outside
    the timed steps: the only place where progress may be shown.
    """

    __name__ = "synchronizing_timer"  # pytest-benchmark writes it into its JSON

    def __init__(self) -> None:
        self.synchronize: Callable[[], None] = lambda: None  # no device is bound yet
        self.between_rounds: Callable[[], None] = lambda: None
        self._inside = False

    def __call__(self) -> float:
        self._inside = not self._inside
        if self._inside:
            self.between_rounds()
        self.synchronize()
        return time.perf_counter()


class Window(Protocol):
    def begin(self) -> None: ...
    def end(self) -> None: ...


class Plan(NamedTuple):
    steps_per_round: int
    rounds: int


def plan_rounds(step_s: float, budget_s: float, *, burst: int = 1) -> Plan:
    """Return ten steps a round; fewer where a step is long, more where it is short; at least six rounds, of whole bursts.

    A large budget makes rounds longer instead of more than `MAX_ROUNDS`.
    """
    longest = max(1, math.floor(budget_s / MIN_ROUNDS / step_s))
    shortest = math.ceil(MIN_ROUND_S / step_s)
    filling = math.ceil(budget_s / MAX_ROUNDS / step_s)
    steps = in_bursts(max(1, min(max(STEPS_PER_ROUND, shortest, filling), longest)), burst)
    rounds = round(budget_s / (steps * step_s))
    return Plan(steps_per_round=steps, rounds=min(max(rounds, MIN_ROUNDS), MAX_ROUNDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    run: Run
    warm_up: WarmUp
    steps: int  # inside the window: all timed ones, and the one that pytest-benchmark adds
    timed_step: Step  # with its delay, where it was slowed on purpose

    @property
    def step_s(self) -> float:
        return median(self.run.rounds_s)


def time_rounds(
    step: Step,
    device: Device,
    benchmark: Any,  # noqa: ANN401 - pytest-benchmark's fixture has no types
    timer: SynchronizingTimer,
    progress: ProgressListener,
    *,
    warm_up: WarmUp,
    budget_s: float,
    session: str = "",
    slowdown: float = 0.0,
    window: Window | None = None,
    ranks: Ranks = ALONE,
) -> Timed:
    """Fill the budget with rounds of the warm step.

    Ranks begin each round together, before its clock is read, and end it each by its own clock.
    """
    step_s = warm_up.step_s
    if slowdown:
        step, step_s = _delayed(step, device, step_s, slowdown)
    plan = ranks.agree(plan_rounds(step_s, budget_s, burst=warm_up.burst))
    progress.phase("measuring", plan.rounds * plan.steps_per_round * step_s)

    def tick_together() -> None:
        progress.tick()
        ranks.barrier()

    timer.synchronize = device.synchronize
    # A single rank's clock is read right after the tick: a barrier of a process group would be a kernel of NCCL.
    timer.between_rounds = tick_together if ranks.size > 1 else progress.tick
    device.reset_peak_memory()
    with frozen_garbage() as freeze:
        freeze()
        if warm_up.burst > 1:  # a loader's workers went on meanwhile, and the first round would see it
            timed_block(step, in_bursts(max(warm_up.ready, 1), warm_up.burst), device)
        if window is not None:
            window.begin()
        before = read_load()
        benchmark.pedantic(step, rounds=plan.rounds, iterations=plan.steps_per_round)
        after = read_load()
        device.synchronize()
        ranks.barrier()  # one rank reads sensors for others, whose last round may be longer
        if window is not None:
            window.end()
    one_more = plan.steps_per_round > 1  # pytest-benchmark's untimed call, for the return value
    steps = plan.rounds * plan.steps_per_round + one_more
    run = Run(
        session=session,
        rounds_s=tuple(benchmark.stats.stats.data),
        steps_per_round=plan.steps_per_round,
        first_step_s=warm_up.first_step_s,
        warmup_s=warm_up.warmup_s,
        peak_memory_bytes=device.peak_memory_bytes(),
        metrics=load_metrics(before, after, steps),
    )
    return Timed(run=run, warm_up=warm_up, steps=steps, timed_step=step)


def launch_time_s(step: Step, device: Device, *, step_s: float, budget_s: float) -> float:
    """Return the median seconds until a step is launched on an idle device; equally many steps on all ranks."""
    launched_s = []
    for _ in range(max(1, min(_LAUNCHED_STEPS, int(budget_s / step_s)))):
        device.synchronize()
        begin = time.perf_counter()
        step()
        launched_s.append(time.perf_counter() - begin)
    device.synchronize()
    return median(launched_s)


def _delayed(step: Step, device: Device, step_s: float, slowdown: float) -> tuple[Step, float]:
    """Return the step followed by a delay that lowers its throughput by the fraction `slowdown`, and its time."""
    slow_s = step_s / (1 - slowdown)
    delay = device.delay(slow_s - step_s)

    def delayed() -> None:
        step()
        delay()

    return delayed, slow_s


PILOTS = 3
MIN_LATENCIES, MAX_LATENCIES = 100, 2000


def seconds_per_call(
    call: Callable[[], object],
    device: Device,
    ranks: Ranks,
    *,
    budget_s: float,
    untimed: int = 0,
    burst: int = 1,
) -> float:
    """Time as many calls as fit the budget, in whole bursts; all ranks begin together and take equally many.

    `untimed` calls go before: those that find their batch ready already, for at most four times the budget.
    """
    until = time.perf_counter() + 4 * budget_s
    for _ in range(untimed):
        call()
        if time.perf_counter() > until:
            break
    burst = int(ranks.slowest(burst))
    pilots = in_bursts(PILOTS, burst)  # fewer may all find their batch ready
    pilot_s = timed_block(call, pilots, device) / pilots
    calls = in_bursts(max(PILOTS, math.ceil(budget_s / max(ranks.slowest(pilot_s), 1e-6))), burst)
    ranks.barrier()
    return timed_block(call, calls, device) / calls


def latencies(call: Callable[[], object], device: Device, ranks: Ranks, *, budget_s: float) -> list[float]:
    pilot_s = timed_block(call, PILOTS, device) / PILOTS
    wanted = math.ceil(budget_s / max(ranks.slowest(pilot_s), 1e-6))
    return [timed_block(call, 1, device) for _ in range(max(MIN_LATENCIES, min(MAX_LATENCIES, wanted)))]
