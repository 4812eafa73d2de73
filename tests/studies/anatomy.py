"""What does a step spend its time on? `python -m tests.studies.anatomy zoo/gpt-800m [--infer] [--device cuda] [--batch-size 16]`.

Builds a step as the `train` fixture does, or `infer`, settles it, and profiles a few steps: kernels by name, with their share of the
device's time, and the time of all of them beside that of a step that nobody profiles.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from pytest_accel.measure.steps import timed_block
from pytest_accel.workloads.steps import InferStep, TrainStep
from tests.studies.alternating import prepared

SHOWN = 30
NAME = 100  # characters
SETTLING = 5  # steps: the first compiles, two more may record launches


def times_us(events: Iterable[Any], device: str) -> dict[str, tuple[float, int]]:
    """Time and calls by the name of a kernel; of a CPU's operators, their own time."""
    own = "self_cpu_time_total" if device == "cpu" else "self_device_time_total"
    kernels = [each for each in events if device == "cpu" or "CUDA" in str(each.device_type)]
    return {each.key: (float(getattr(each, own)), int(each.count)) for each in kernels}


def table(found: dict[str, tuple[float, int]], *, steps: int, step_s: float) -> list[str]:
    total_us = sum(took_us for took_us, _ in found.values())
    lines = [f"{'share':>6}  {'ms a step':>9}  {'calls':>6}  kernel"]
    for name, (took_us, calls) in sorted(found.items(), key=lambda each: -each[1][0])[:SHOWN]:
        lines.append(
            f"{took_us / total_us:6.1%}  {took_us / steps / 1e3:9.3f}  {calls / steps:6.1f}  {name[:NAME]}"
        )
    busy_s = total_us / steps / 1e6
    lines.append(f"kernels {busy_s * 1e3:.2f} ms a step, which takes {step_s * 1e3:.2f} ms unprofiled")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--infer", action="store_true", help="instead of training")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--precision", default=None)
    parser.add_argument("--data", default=None)
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    device = prepared(arguments.device)
    precision = arguments.precision or ("bf16" if arguments.device == "cuda" else "fp32")
    asked = {"data": arguments.data} if arguments.data else {}
    kind = InferStep if arguments.infer else TrainStep
    with kind.build(
        arguments.model,
        device=torch.device(device.name),
        precision=precision,
        batch_size=arguments.batch_size,
        **asked,
    ) as step:
        begun = time.perf_counter()
        timed_block(step, SETTLING, device)
        print(f"{arguments.model}: {SETTLING} steps to settle, {time.perf_counter() - begun:.1f} s")
        step_s = timed_block(step, 2 * arguments.steps, device) / (2 * arguments.steps)
        activity = ProfilerActivity.CPU if arguments.device == "cpu" else ProfilerActivity.CUDA
        with profile(activities=[activity]) as profiled:
            timed_block(step, arguments.steps, device)
    print(
        "\n".join(
            table(times_us(profiled.key_averages(), arguments.device), steps=arguments.steps, step_s=step_s)
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
