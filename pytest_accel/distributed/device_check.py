"""Check of the devices of a process group before the first timing: each one alone, then all-reduces.

A throttled or shared device slows all ranks, and their times do not tell which one it is. So each device runs a matrix
product and a copy alone; then all ranks all-reduce a small and a large buffer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from pytest_accel.measure.rounds import Ranks
from pytest_accel.stats.quantities import counted, gibibytes, percent, seconds, si

if TYPE_CHECKING:
    import torch

Action = Callable[[], object]

KIB, MIB = 1 << 10, 1 << 20
SMALL_BYTES = 4 * KIB  # of an all-reduce

REPEATS = 25  # the best counts: the first ones are those of a device that wakes up
REPEAT_S = 5e-3  # long against the clock, and against the launch of a kernel
MOST_CALLS = 1000  # in one repeat
THRESHOLD = 0.05  # of the median: what lacks more is named


class Sizes(NamedTuple):
    """Work for one kind of device: enough to fill it, done within milliseconds."""

    product: int  # rows and columns
    copy_bytes: int
    all_reduce_bytes: int
    repeats: int  # before a device is named: neighbours disturb a CPU more often than a GPU


# 8192 in bf16 is 1.1 TFLOP: milliseconds on a current GPU. The copy is more than an L2 cache holds.
CUDA = Sizes(8192, 256 * MIB, 64 * MIB, 2)
CPU = Sizes(384, 16 * MIB, MIB, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    kind: str  # "matrix product", "copy"
    rate: float  # FLOP/s or B/s
    rank: int
    device: str  # what tells it from its neighbours: model and UUID
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A device that did one kind of work clearly slower than the median of its process group."""

    reading: Reading
    under: float  # fraction of the median that is missing
    devices: int

    def line(self) -> str:
        who = f"rank {self.reading.rank} ({self.reading.device}, node {self.reading.host})"
        of = f"the median of {counted(self.devices, 'device')}"
        return f"{who}: {self.reading.kind} {percent(self.under)} under {of}"


def find_stragglers(readings: Iterable[Reading]) -> tuple[Straggler, ...]:
    """Return the readings more than `THRESHOLD` under the median of their kind, by rank.

    At least half of the devices reach the median, so never more than half are named. Of two devices the median is
    their mean: the slower one is named when it lacks 9.5 % of the faster one (r < 0.95 (1 + r) / 2 below r = 0.905).
    """
    kinds: dict[str, list[Reading]] = {}
    for reading in readings:
        kinds.setdefault(reading.kind, []).append(reading)
    found = []
    for each in kinds.values():
        middle = median(reading.rate for reading in each)
        for reading in each:
            under = 1 - reading.rate / middle if middle > 0 else 0.0
            if under > THRESHOLD:
                found.append(Straggler(reading=reading, under=under, devices=len(each)))
    return tuple(sorted(found, key=lambda straggler: straggler.reading.rank))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCheck:
    readings: tuple[Reading, ...]
    all_reduces: str  # in words


def check(ranks: Ranks, device: torch.device, *, label: str, host: str) -> DeviceCheck:
    """Check all devices; called by every rank, with the same result on every rank, in about a second.

    A slow device is checked again before it is named, and the best of its rates counts: a moment of load is no slow
    device. `label` names this rank's device, `host` its node. On the CPU the caller sets torch's threads before.
    """
    import torch

    sizes = CUDA if device.type == "cuda" else CPU
    wait = (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)

    hosts = ranks.gather(host)
    # Each GPU by itself; ranks on the CPU would disturb each other, so those of a host take turns.
    mine = 0 if device.type == "cuda" else hosts[: ranks.rank].count(host)
    turns = 1 if device.type == "cuda" else max(Counter(hosts).values())

    def readings_of_all() -> tuple[Reading, ...]:
        rates: dict[str, float] = {}
        for turn in range(turns):
            ranks.barrier()
            if turn == mine:
                rates = _rates(device, sizes, wait)
        ranks.barrier()
        if device.type == "cuda":
            torch.cuda.empty_cache()  # leave the memory to the benchmark
        return tuple(
            Reading(kind=kind, rate=rate, rank=rank, device=its_label, host=its_host)
            for rank, (its_label, its_host, its_rates) in enumerate(ranks.gather((label, host, rates)))
            for kind, rate in its_rates.items()
        )

    readings = readings_of_all()
    repeats = 1
    # From the same readings on every rank: all repeat, or none.
    while find_stragglers(readings) and repeats < sizes.repeats:
        repeats += 1
        readings = tuple(
            max(pair, key=lambda reading: reading.rate)
            for pair in zip(readings, readings_of_all(), strict=True)
        )
    large = sizes.all_reduce_bytes
    small_s, large_s = (_all_reduce_s(ranks, device, size, wait) for size in (SMALL_BYTES, large))
    words = (
        f"all-reduce of {counted(ranks.size, 'rank')}: {SMALL_BYTES // KIB} KiB in {seconds(small_s)}, "
        f"{gibibytes(large)} at {si(bus_bandwidth(large, large_s, ranks.size) / 1e9)} GB/s"
    )
    return DeviceCheck(readings=readings, all_reduces=words)


def bus_bandwidth(size_bytes: int, duration_s: float, ranks: int) -> float:
    """Return the bytes that each link of a ring carries in a second: n ranks send every byte 2 (n - 1) / n times.

    As nccl-tests count it, so that the figure compares with a link's, whatever the number of ranks.
    """
    return size_bytes / duration_s * 2 * (ranks - 1) / ranks


def _rates(device: torch.device, sizes: Sizes, wait: Action) -> dict[str, float]:
    import torch

    # Not zeros: they cost a GPU less power than data. A generator of its own: torch's numbers stay as seeded.
    random = torch.Generator(device=device).manual_seed(0)
    square = {"size": (sizes.product,) * 2, "generator": random, "device": device}
    dtype = torch.float32
    if device.type == "cuda":  # bf16 that is emulated (V100, T4) would measure the emulation
        dtype = torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    a, b = (torch.randn(**square).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    product_s = _best_s(lambda calls: _timed(lambda: torch.matmul(a, b, out=out), wait, calls))
    source = torch.ones(sizes.copy_bytes, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    copy_s = _best_s(lambda calls: _timed(lambda: target.copy_(source), wait, calls))
    # A copy reads every byte and writes it.
    return {"matrix product": 2 * sizes.product**3 / product_s, "copy": 2 * sizes.copy_bytes / copy_s}


def _best_s(timed: Callable[[int], float]) -> float:
    """Return the seconds of one call in the best of several repeats; `timed` returns the seconds of so many calls."""
    timed(1)  # libraries and connections are made on first use
    once = max(timed(1), 1e-9)
    calls = max(1, min(MOST_CALLS, round(REPEAT_S / once)))
    repeats = max(3, min(REPEATS, round(REPEATS * REPEAT_S / once)))  # a slow device takes no longer
    return min(timed(calls) for _ in range(repeats)) / calls


def _all_reduce_s(ranks: Ranks, device: torch.device, size_bytes: int, wait: Action) -> float:
    """Time all-reduces. How many is decided from the slowest rank's times, which are equal on all ranks."""
    import torch
    from torch import distributed

    # Zeros: sums of sums stay finite.
    buffer = torch.zeros(size_bytes // 4, dtype=torch.float32, device=device)

    def slowest_s(calls: int) -> float:
        ranks.barrier()
        return ranks.slowest(_timed(lambda: distributed.all_reduce(buffer), wait, calls))

    return _best_s(slowest_s)


def _timed(work: Action, wait: Action, calls: int) -> float:
    wait()
    begin = time.perf_counter()
    for _ in range(calls):
        work()
    wait()
    return time.perf_counter() - begin
