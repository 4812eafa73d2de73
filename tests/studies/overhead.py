"""What does measuring cost? `python -m tests.studies.overhead [--device cuda] [--pairs N]`.

The same step, in one process, alternating (ABBA): B steps timed by a bare loop with a synchronisation
at both ends, and B steps timed as one round the way `accel` does it, through pytest-benchmark's pedantic
mode with the synchronising timer. Printed is the ratio of the two, with its 95 % interval.
"""

from __future__ import annotations

import argparse
import inspect
import math
from collections.abc import Callable
from statistics import median

import torch
from pytest_benchmark.fixture import BenchmarkFixture
from pytest_benchmark.utils import NameWrapper

from pytest_accel.measure.device import Device
from pytest_accel.measure.steps import Step
from pytest_accel.measure.timer import SynchronisingTimer
from pytest_accel.workloads.steps import InferStep, TrainStep
from tests.studies.alternating import bare, prepared

STEPS = 10


def through_accel(step: Step, device: Device, steps: int) -> float:
    timer = SynchronisingTimer()
    timer.synchronize = device.synchronize
    fixture = _fixture(timer)
    fixture.pedantic(step, rounds=1, iterations=steps)
    return float(fixture.stats.stats.data[0])


def ratios(step: Step, device: Device, pairs: int, steps: int) -> list[float]:
    """ln(through accel / bare) of each ABBA group."""
    found = []
    for _ in range(pairs):
        first = through_accel(step, device, steps)
        middle = bare(step, device, steps), bare(step, device, steps)
        last = through_accel(step, device, steps)
        found.append(math.log((first + last) / sum(middle)))
    return found


def report(name: str, step: Step, device: Device, pairs: int, steps: int) -> None:
    for _ in range(3):
        bare(step, device, steps)
    logs = ratios(step, device, pairs, steps)
    # A median and its standard error from the median deviation: shared hosts stall now and then.
    centre = median(logs)
    deviation = 1.4826 * median(abs(value - centre) for value in logs)
    error = 1.96 * deviation * math.sqrt(math.pi / 2 / len(logs))
    step_s = bare(step, device, steps)
    print(
        f"{name:32s} step {step_s * 1e3:9.4f} ms, {steps:4d} steps a round: through accel / bare = "
        f"{math.exp(centre):.4f} ± {error:.4f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--pairs", type=int, default=15)
    arguments = parser.parse_args()
    device = prepared(arguments.device)
    for name, step, steps in workloads(arguments.device):
        # A CPU is shared: many short pairs see it in the same mood.
        pairs = 40 * arguments.pairs if steps * (device.name == "cpu") > STEPS else arguments.pairs
        report(name, step, device, pairs, steps)


def workloads(device: str) -> list[tuple[str, Step, int]]:
    on_cpu = device == "cpu"
    small = torch.randn(256, 256, device=device)
    model, batch, size = ("resnet18", 4, 64) if on_cpu else ("resnet50", 128, 224)
    precision = "fp32" if on_cpu else "bf16"
    chosen = {
        "batch_size": batch,
        "image_size": size,
        "device": device,
        "precision": precision,
        "compile": None,
    }
    train: Callable[[], object] = TrainStep.build(model, **chosen)
    infer: Callable[[], object] = InferStep.build(model, **chosen)
    return [
        ("one small kernel (launch-bound)", lambda: small @ small, 40 if on_cpu else 2000),
        (f"{model} training", train, STEPS),
        (f"{model} inference", infer, STEPS),
    ]


def _fixture(timer: SynchronisingTimer) -> BenchmarkFixture:
    class Node:
        name = nodeid = _nodeid = "overhead"  # the last is what 5.2 reads

    settings = {
        "disable_gc": False,
        "timer": NameWrapper(timer),
        "min_rounds": 1,
        "min_time": 0,
        "max_time": 1,
        "warmup": False,
        "warmup_iterations": 0,
        "calibration_precision": 10,
        "add_stats": lambda stats: None,
        "disabled": False,
    }
    # pytest-benchmark 5.3 asks for more than 5.2 does; what is not set here it does not use.
    asked = list(inspect.signature(BenchmarkFixture).parameters)[1:]
    return BenchmarkFixture(Node(), **{name: settings.get(name) for name in asked})


if __name__ == "__main__":
    main()
