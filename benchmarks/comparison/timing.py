"""Step times by the host's clock, with the device synchronized at both ends."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def time_steps(step: Callable[[], None], device: torch.device, steps: int) -> float:
    """Return the seconds per step of some steps in a row."""
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize(device)
    return (time.perf_counter() - begin) / steps


def free_memory(device: torch.device) -> None:
    """Release the memory of the last comparison."""
    if device.type != "cpu":
        torch.compiler.reset()  # compiled code keeps models alive
    gc.collect()
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


@contextmanager
def backend_flags(device: torch.device) -> Iterator[None]:
    """Let cuDNN search its algorithms, as all peers do; on a CPU use one thread."""
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = benchmark
