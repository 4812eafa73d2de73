"""What does watching cost? `python -m tests.studies.watching [--device cuda] [--groups N]`.

The same step, in one process: blocks with the watch beside them and blocks without alternate (ABBA), so that clocks and
temperature are the same for both. Printed is the ratio of their times with its 95 % interval, for a step that keeps the
host busy (many small operations) and for one that keeps the device busy (a matrix product). A wake some times a second
drowns in the noise of a shared host; so the same is done with a hundred times as many, and its hundredth printed too.
On the CPU the times are those that the process spent there, the watching thread's own among them: a wall clock shows
mostly what others do on the host.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import fmean, stdev

import torch

from pytest_accel.measure.device import CudaDevice, Device
from pytest_accel.measure.nvml_watch import DeviceWatcher
from pytest_accel.measure.watching import PERIOD_S, Watch
from pytest_accel.stats.student import t_quantile
from tests.studies.alternating import prepared

BLOCK_S = 0.5  # five wakes
OFTEN = 100  # times as many
SMALL_OPERATIONS = 100

Step = Callable[[], object]
Sampler = Callable[[], object]


def block(step: Step, device: Device, steps: int) -> float:
    clock = time.process_time if device.name == "cpu" else time.perf_counter
    device.synchronize()
    begin = clock()
    for _ in range(steps):
        step()
    device.synchronize()
    return clock() - begin


def watched(step: Step, device: Device, steps: int, watch: Watch) -> float:
    """As a measurement does it: the first and the last sample are outside of what is timed."""
    watch.begin()
    taken_s = block(step, device, steps)
    watch.end()
    return taken_s


def logs(step: Step, device: Device, steps: int, watch: Watch, groups: int) -> list[float]:
    """ln(watched / alone) of each ABBA group."""
    found = []
    for _ in range(groups):
        first = watched(step, device, steps, watch)
        alone = block(step, device, steps) + block(step, device, steps)
        found.append(math.log((first + watched(step, device, steps, watch)) / alone))
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half of its 95 % interval."""
    return fmean(values), t_quantile(0.025, len(values) - 1) * stdev(values) / math.sqrt(len(values))


def report(name: str, step: Step, device: Device, samplers: Sequence[Sampler], groups: int) -> None:
    in_block = max(1, round(BLOCK_S / (block(step, device, 20) / 20)))
    in_block = max(1, round(in_block * BLOCK_S / block(step, device, in_block)))  # the first ones warmed up
    # Shorter blocks see a shared host in the same mood; those of few wakes cannot be short.
    for times, steps, number in ((1, in_block, groups), (OFTEN, max(1, in_block // 10), 10 * groups)):
        wakes = [0]

        def count(wakes: list[int] = wakes) -> None:
            wakes[0] += 1

        with Watch([count, *samplers], period_s=PERIOD_S / times) as watch:
            centre, half = interval(logs(step, device, steps, watch, number))
        for problem in watch.problems:
            print(f"  {problem}")
        often = f"{1 / PERIOD_S:.0f} a second" if times == 1 else f"{times} times as often"
        share = "" if times == 1 else f", a hundredth of it {centre:+.4f} % ± {half:.4f} %"
        print(
            f"{name:44s} {steps:6d} steps a block, {wakes[0] / number / 2:6.1f} samples, {often:18s}: "
            f"watched / alone = {math.exp(centre):.5f} ± {half:.5f}{share}",
            flush=True,
        )


def workloads(device: str) -> list[tuple[str, Step]]:
    on_cpu = device == "cpu"
    small = torch.zeros(64, device=device)
    side, kind = (512, torch.float32) if on_cpu else (8192, torch.bfloat16)
    large = torch.randn(side, side, device=device, dtype=kind)

    def many_small() -> None:
        for _ in range(SMALL_OPERATIONS):
            small.add_(1)

    return [
        (f"{SMALL_OPERATIONS} small operations (launch-bound)", many_small),
        (f"matrix product {side} (compute-bound)", lambda: large @ large),
    ]


def find_samplers(device: str, open_until: ExitStack) -> list[Sampler]:
    """What a measurement would be watched with here."""
    from pytest_accel.power.find import close_sources, open_sources
    from pytest_accel.power.source import PowerDevice

    samplers: list[Sampler] = []
    devices = []
    if device == "cuda":
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        devices = [PowerDevice(vendor="nvidia", uuid=uuid, index=0)]
        held = CudaDevice().held_bytes
        watcher = open_until.enter_context(DeviceWatcher(uuid, own_bytes=held))
        watcher.begin()
        samplers.append(watcher.sample)
        print(f"watched: {watcher.name}; one sample {_alone_us(watcher.sample):.0f} us")
        for problem in watcher.end().problems:
            print(f"  {problem}")
    sources = open_sources(devices)
    open_until.callback(close_sources, sources)
    for source in sources:
        rails = ", ".join(rail.name for rail in source.rails) or "no rail"
        print(
            f"watched: {source.name}: {rails}; one sample {_alone_us(source.watts):.0f} us  {source.problem}"
        )
        samplers.append(source.watts)
    return samplers


def _alone_us(sampler: Sampler, calls: int = 50) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        sampler()
    return (time.perf_counter() - begin) / calls * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--groups", type=int, default=20)
    arguments = parser.parse_args()
    device = prepared(arguments.device)
    torch.set_grad_enabled(False)
    with ExitStack() as open_until:
        steps = workloads(arguments.device)
        block(steps[0][1], device, 1)  # a context, so that our memory is there to be asked for
        samplers = find_samplers(arguments.device, open_until)
        for name, step in steps:
            report(name, step, device, samplers, max(2, arguments.groups))


if __name__ == "__main__":
    main()
