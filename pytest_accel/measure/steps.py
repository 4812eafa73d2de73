"""Settle a step, then time rounds of it through pytest-benchmark."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean, median
from typing import Protocol

from pytest_accel.measure.device import Device
from pytest_accel.measure.pacing import Pace, Settling, comes_in_bursts, in_bursts, pace, steady_rounds
from pytest_accel.measure.question import checked
from pytest_accel.measure.ranks import Alone, Ranks
from pytest_accel.measure.timer import SynchronisingTimer

Step = Callable[[], object]

# Single steps at the start: the first one compiles and allocates, the others say how long a step is.
# A training step's loss after the last of them is comparable between machines.
PILOT_STEPS = 5
ALONE = Alone()
_LAUNCHED_STEPS = 5  # at the most, each by itself
_BLOCK_S = 0.1  # warm-up is watched in blocks of about this length
_FROZEN_BY_PYTHON = 1000  # objects at the most: 375 in Python 3.12, none in 3.11 and 3.13


class PedanticBenchmark(Protocol):
    """What is used of pytest-benchmark's fixture."""

    disabled: bool
    stats: object

    def pedantic(self, target: Step, *, rounds: int, iterations: int) -> object: ...


class Watcher(Protocol):
    """Told what happens between steps, never inside timed ones."""

    def phase(self, text: str, remaining_s: float | None) -> None: ...
    def tick(self) -> None: ...


class Window(Protocol):
    """Told where the timed rounds begin and where they end, for what else is to be known of that time."""

    def begin(self) -> None: ...
    def end(self) -> None: ...


class Unwatched:
    """Nobody wants to know."""

    def begin(self) -> None:
        """Nothing to read."""

    def end(self) -> None:
        """Nothing to read."""


UNWATCHED = Unwatched()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What it took until steps were steady."""

    first_step_s: float
    warmup_s: float
    step_s: float
    steady: bool
    burst: int = 1  # steps that come together
    ready: int = 0  # batches that may lie ready behind a pause


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Mean step time of each round, and what was seen around them."""

    settled: Settled
    rounds_s: tuple[float, ...]
    steps_per_round: int
    peak_memory_bytes: int | None
    host_cpu_s: float  # of this process, per step: all of a step on the CPU, the launching of it on a GPU
    steps: int  # between the ends of the window: all timed ones, and the one that pytest-benchmark adds

    @property
    def step_s(self) -> float:
        return median(self.rounds_s)

    @property
    def steady(self) -> bool:
        return self.settled.steady and steady_rounds(self.rounds_s)


def settle(
    step: Step,
    device: Device,
    watcher: Watcher,
    *,
    max_s: float,
    after_pilot: Callable[[], None] = lambda: None,
    pause: Callable[[], None] = lambda: None,
    at_least: int = 0,
    burst: int = 1,
    ranks: Ranks = ALONE,
) -> Settled:
    """Run steps until their times stop drifting, within `max_s`; at least so many beyond the pilots.

    As many as `burst` may find their work done together. Where they do, blocks are whole bursts, and so are rounds.
    `pause` is for what takes a moment: it is called where steps have still to settle behind it.

    Whether to go on is decided from the slowest rank's times, which all ranks know: they must take the same
    number of steps, or one of them waits in a collective of a step that no other takes.
    """
    watcher.phase("warming up", None)
    begun = time.perf_counter()
    pilots_s = [timed_block(checked(step), 1, device)]
    pilots_s += [timed_block(step, 1, device) for _ in range(PILOT_STEPS - 1)]
    after_pilot()
    pilot_s = ranks.slowest(median(pilots_s[1:]))
    ready = int(ranks.slowest(at_least))
    timed_block(step, min(ready, int(max_s / pilot_s)), device)
    settling = Settling(max_s=max_s)
    step_s, burst = pilot_s, int(ranks.slowest(burst))
    if burst * pilot_s > max_s:
        burst = 1  # it would take all the time to see whether they come together
    if burst > 1:
        step_s, burst = _rhythm(step, device, watcher, ranks, burst)
    pause()  # not before, because what lies ready behind it would hide the bursts, and not after, because it would be in the first round
    steps = in_bursts(max(1, round(_BLOCK_S / step_s)), burst)
    while not (settling.steady or settling.exhausted):
        block_s = ranks.slowest(timed_block(step, steps, device))
        settling.observe(block_s / steps, block_s)
        watcher.tick()
    return Settled(
        first_step_s=pilots_s[0],
        warmup_s=time.perf_counter() - begun,
        step_s=settling.step_s,
        steady=settling.steady,
        burst=burst,
        ready=ready,
    )


def _rhythm(step: Step, device: Device, watcher: Watcher, ranks: Ranks, burst: int) -> tuple[float, int]:
    """How long a step is, and how many come together: where a loader sets the pace one waits, and the others find their batch ready."""
    steps_s = []
    for _ in range(burst):
        steps_s.append(timed_block(step, 1, device))
        watcher.tick()
    together = ranks.slowest(comes_in_bursts(steps_s))
    return ranks.slowest(fmean(steps_s)), burst if together else 1


def time_rounds(
    step: Step,
    device: Device,
    benchmark: PedanticBenchmark,
    timer: SynchronisingTimer,
    watcher: Watcher,
    *,
    settled: Settled,
    budget_s: float,
    slowdown: float = 0.0,
    window: Window = UNWATCHED,
    ranks: Ranks = ALONE,
) -> Timed:
    """Fill the budget with rounds of the settled step.

    Ranks begin each round together, before its clock is read, and end it each by its own clock.
    """
    step_s = settled.step_s
    if slowdown:
        step, step_s = _delayed(step, device, step_s, slowdown)
    steps, rounds = ranks.agree(_planned(step_s, budget_s, settled.burst))
    plan = Pace(steps_per_round=steps, rounds=rounds)
    watcher.phase("measuring", plan.rounds * plan.steps_per_round * step_s)
    timer.synchronize, timer.between_rounds = device.synchronize, _before_round(watcher, ranks)
    device.reset_peak_memory()
    with garbage_spared() as spare:
        spare()
        if settled.burst > 1:  # a loader's workers went on meanwhile, and the first round would find it
            timed_block(step, in_bursts(max(settled.ready, 1), settled.burst), device)
        window.begin()
        cpu_s = time.process_time()
        benchmark.pedantic(step, rounds=plan.rounds, iterations=plan.steps_per_round)
        cpu_s = time.process_time() - cpu_s
        device.synchronize()
        ranks.barrier()  # one rank reads for others, whose last round may be longer
        window.end()
    one_more = plan.steps_per_round > 1  # pytest-benchmark's untimed call, for the return value
    taken = plan.rounds * plan.steps_per_round + one_more
    return Timed(
        settled=settled,
        rounds_s=tuple(benchmark.stats.stats.data),  # type: ignore[attr-defined]
        steps_per_round=plan.steps_per_round,
        peak_memory_bytes=device.peak_memory_bytes(),
        host_cpu_s=cpu_s / taken,
        steps=taken,
    )


def _planned(step_s: float, budget_s: float, burst: int) -> tuple[int, int]:
    """Steps a round and rounds, as plain values that ranks can agree upon."""
    plan = pace(step_s, budget_s, burst=burst)
    return plan.steps_per_round, plan.rounds


def _before_round(watcher: Watcher, ranks: Ranks) -> Callable[[], None]:
    if ranks.size == 1:  # nobody to wait for; the clock is read right after this
        return watcher.tick

    def together() -> None:
        watcher.tick()
        ranks.barrier()

    return together


def timed_block(step: Step, steps: int, device: Device) -> float:
    """Seconds of so many steps, the device waited for at both ends."""
    device.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    device.synchronize()
    return time.perf_counter() - begin


def launching_s(step: Step, device: Device, *, step_s: float, budget_s: float) -> float:
    """Seconds until a step is launched, on a device that has nothing else to do; of a few, as many on all ranks that know the same `step_s`."""
    launched_s = []
    for _ in range(max(1, min(_LAUNCHED_STEPS, int(budget_s / step_s)))):
        device.synchronize()
        begin = time.perf_counter()
        step()
        launched_s.append(time.perf_counter() - begin)
    device.synchronize()
    return median(launched_s)


def _delayed(step: Step, device: Device, step_s: float, slowdown: float) -> tuple[Step, float]:
    """The step followed by a delay that lowers its throughput by the fraction `slowdown`."""
    slow_s = step_s / (1 - slowdown)
    delay = device.delay(slow_s - step_s)

    def delayed() -> None:
        step()
        delay()

    return delayed, slow_s


@contextmanager
def garbage_spared() -> Iterator[Callable[[], None]]:
    """Give what collects, and spares the collector everything that is left: it goes on, as in real training, with what comes then.

    The first collection takes half a second of a process that has torch in it, one that was spared before hardly any time.
    Who has frozen things himself keeps them so: nobody could tell them from what would be frozen here.
    """
    ours = False

    def spare() -> None:
        nonlocal ours
        gc.collect()
        if ours or gc.get_freeze_count() <= _FROZEN_BY_PYTHON:
            ours = True
            gc.freeze()

    try:
        yield spare
    finally:
        if ours:
            gc.unfreeze()
