"""Rounds: blocks of steps timed by pytest-benchmark, the device synchronized at both ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from pytest_accel.measure.device import Device
from pytest_accel.measure.ranks import ALONE, Ranks
from pytest_accel.measure.warmup import (
    ProgressListener,
    Step,
    WarmUp,
    frozen_garbage,
    in_bursts,
    timed_block,
)
from pytest_accel.stats.run import MIN_ROUNDS, Run

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
        self.synchronize: Callable[[], None] = _nothing
        self.between_rounds: Callable[[], None] = _nothing
        self._inside = False

    def __call__(self) -> float:
        self._inside = not self._inside
        if self._inside:
            self.between_rounds()
        self.synchronize()
        return time.perf_counter()


def _nothing() -> None:
    """Do nothing: no device is bound yet."""


class PedanticBenchmark(Protocol):
    """The part of pytest-benchmark's fixture that is used."""

    disabled: bool
    stats: object

    def pedantic(self, target: Step, *, rounds: int, iterations: int) -> object: ...


class Window(Protocol):
    """Receives the begin and the end of the timed rounds."""

    def begin(self) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rounds of equal numbers of steps that fill a time budget."""

    steps_per_round: int
    rounds: int


def plan_rounds(step_s: float, budget_s: float, *, burst: int = 1) -> Plan:
    """Return ten steps a round; fewer where a step is long, more where it is short; at least six rounds, of whole bursts.

    A large budget makes rounds longer instead of more than `MAX_ROUNDS`.
    """
    if not (step_s > 0 and budget_s > 0):
        raise ValueError(f"a step of {step_s} s in a budget of {budget_s} s cannot be planned")
    longest = max(1, math.floor(budget_s / MIN_ROUNDS / step_s))
    shortest = math.ceil(MIN_ROUND_S / step_s)
    filling = math.ceil(budget_s / MAX_ROUNDS / step_s)
    steps = in_bursts(max(1, min(max(STEPS_PER_ROUND, shortest, filling), longest)), burst)
    rounds = round(budget_s / (steps * step_s))
    return Plan(steps_per_round=steps, rounds=min(max(rounds, MIN_ROUNDS), MAX_ROUNDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """The run of this process, and what its timing was like."""

    run: Run
    warm_up: WarmUp
    steps: int  # inside the window: all timed ones, and the one that pytest-benchmark adds

    @property
    def step_s(self) -> float:
        return median(self.run.rounds_s)


def time_rounds(
    step: Step,
    device: Device,
    benchmark: PedanticBenchmark,
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
    timer.synchronize, timer.between_rounds = device.synchronize, _before_round(progress, ranks)
    device.reset_peak_memory()
    with frozen_garbage() as freeze:
        freeze()
        if warm_up.burst > 1:  # a loader's workers went on meanwhile, and the first round would see it
            timed_block(step, in_bursts(max(warm_up.ready, 1), warm_up.burst), device)
        if window is not None:
            window.begin()
        cpu_s = time.process_time()
        benchmark.pedantic(step, rounds=plan.rounds, iterations=plan.steps_per_round)
        cpu_s = time.process_time() - cpu_s
        device.synchronize()
        ranks.barrier()  # one rank reads sensors for others, whose last round may be longer
        if window is not None:
            window.end()
    one_more = plan.steps_per_round > 1  # pytest-benchmark's untimed call, for the return value
    steps = plan.rounds * plan.steps_per_round + one_more
    run = Run(
        session=session,
        rounds_s=tuple(benchmark.stats.stats.data),  # type: ignore[attr-defined]
        steps_per_round=plan.steps_per_round,
        first_step_s=warm_up.first_step_s,
        warmup_s=warm_up.warmup_s,
        peak_memory_bytes=device.peak_memory_bytes(),
        # All of a step on the CPU, its launch on a GPU.
        metrics={"host_cpu_s_per_step": cpu_s / steps},
    )
    return Timed(run=run, warm_up=warm_up, steps=steps)


def _before_round(progress: ProgressListener, ranks: Ranks) -> Callable[[], None]:
    if ranks.size == 1:  # the clock is read right after this
        return progress.tick

    def together() -> None:
        progress.tick()
        ranks.barrier()

    return together


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
