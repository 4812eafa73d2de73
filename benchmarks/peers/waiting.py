"""Time by the host's clock, with the device idle at both ends."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


def wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def timed(step: Callable[[], None], device: torch.device, steps: int) -> float:
    """Return the seconds of one of so many steps in a row."""
    wait(device)
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    wait(device)
    return (time.perf_counter() - begin) / steps


def free(device: torch.device) -> None:
    """Give back what the last contest held."""
    if device.type == "cpu":  # nothing was compiled
        gc.collect()
        return
    torch.compiler.reset()  # compiled code keeps models alive
    gc.collect()
    torch.get_device_module(device).empty_cache()


@contextmanager
def quiet(device: torch.device) -> Iterator[None]:
    """Measure with cuDNN's best algorithms, as all peers do; on a CPU with one thread, so that small is quick anywhere."""
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = benchmark
