"""Parts of a step timed after the rounds: a loader without its step, single steps one by one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from pytest_accel.measure.device import Device
from pytest_accel.measure.ranks import Ranks
from pytest_accel.measure.warmup import in_bursts, timed_block

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
    """Return the seconds of single calls, the device synchronized after each: the latency of one request."""
    pilot_s = timed_block(call, PILOTS, device) / PILOTS
    wanted = math.ceil(budget_s / max(ranks.slowest(pilot_s), 1e-6))
    return [timed_block(call, 1, device) for _ in range(max(MIN_LATENCIES, min(MAX_LATENCIES, wanted)))]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of them do not exceed."""
    ordered = sorted(values)
    needed = math.ceil(round(share * len(ordered), 9))  # in floats, 0.07 * 100 is more than 7
    return ordered[max(0, needed - 1)]
