"""What feeds a device best? `python -m tests.studies.loading DIR [--threads 3 1] [--compile reduce-overhead default]`.

ResNet50 trained on JPEGs that the device decodes, with every combination of what is given: the rate with the loader,
of the arithmetic alone, of the loader alone, and what is left. DIR is made by tests/studies/photographs.py.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import torch

from pytest_accel.workloads.data import sources
from pytest_accel.workloads.steps import TrainStep

BATCH = 256


def rate(call: Callable[[], None], calls: int) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    return BATCH * calls / (time.perf_counter() - begin)


def look(root: Path, *, threads: int, workers: int, compile_mode: str) -> None:
    sources.DECODING_THREADS = threads
    step = TrainStep.build(
        "resnet50",
        data="imagenet",
        data_root=root,
        source="loader",
        decode="device",
        workers=workers,
        batch_size=BATCH,
        precision="bf16",
        compile=compile_mode,
        device="cuda:0",
    )
    with step:
        for _ in range(20 + step.buffered):
            step()
        fed = max(rate(step, 25) for _ in range(3))
        with step.computing_only():
            for _ in range(5):
                step()
            compute = rate(step, 40)
            begin = time.perf_counter()
            for _ in range(5):
                step()
            host_ms = (time.perf_counter() - begin) / 5 * 1e3  # to launch a step, with nobody else about
        for _ in range(step.buffered):
            step.load()
        loader = rate(step.load, 40)
    print(
        f"threads {threads} workers {workers} {compile_mode:16} with loader {fed:6,.0f}  compute {compute:6,.0f}  "
        f"loader {loader:6,.0f} images/s  fed {fed / compute:.1%}  launching {host_ms:.1f} ms",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("--threads", type=int, nargs="+", default=[sources.DECODING_THREADS])
    parser.add_argument("--workers", type=int, nargs="+", default=[6])
    parser.add_argument("--compile", nargs="+", default=["reduce-overhead", "default"])
    options = parser.parse_args()
    for threads, workers, mode in product(options.threads, options.workers, options.compile):
        look(options.root, threads=threads, workers=workers, compile_mode=mode)


if __name__ == "__main__":
    main()
