"""What studies of steps share: the names and the device that are asked for, a step's time in a bare loop, two steps in turn, and how far answers are apart."""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch

from pytest_accel.measure.device import CpuDevice, CudaDevice, Device
from pytest_accel.measure.warmup import Step, timed_block
from pytest_accel.stats.run import median_error

WARMUP_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A step time over a plain one's, and half the width of its 95 % interval."""

    point: float
    error: float
    plain_s: float
    pairs: int

    def __str__(self) -> str:
        return (
            f"plain step {self.plain_s * 1e3:.3f} ms, over that {self.point:.4f} ± {self.error:.4f} "
            f"({self.pairs} ABBA groups)"
        )


def add_names(parser: argparse.ArgumentParser, known: Collection[str], *, metavar: str = "NAME") -> None:
    """Let any of these be asked for, and nothing else."""

    def one(name: str) -> str:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is none of: {', '.join(known)}")
        return name

    parser.add_argument("names", nargs="*", metavar=metavar, type=one, help=f"of: {', '.join(known)}")


def prepared(name: str) -> Device:
    """The device called cpu or cuda, ready to be measured on."""
    device: Device = CpuDevice(threads=1) if name == "cpu" else CudaDevice()
    device.prepare()
    return device


@contextmanager
def attempted(name: str, failed: list[str]) -> Iterator[None]:
    """Whatever fails is told, and what comes behind it is tried all the same."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - of any library
        print(f"{name}: {type(error).__name__}: {str(error).strip()[:400]}", flush=True)
        failed.append(name)


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """How far, as a share of the largest that is expected."""
    return float((found - expected).abs().max() / expected.abs().max())


def bare(step: Step, device: Device, steps: int) -> float:
    """Seconds a step in a loop of so many, the device waited for at both ends."""
    return timed_block(step, steps, device) / steps


def in_turn(one: Step, other: Step, device: Device, *, pairs: int, steps: int) -> Ratio:
    """The first's step time over the other's, by ABBA groups."""
    for _ in range(WARMUP_ROUNDS):
        bare(other, device, steps), bare(one, device, steps)
    logs, others_s = [], []
    for _ in range(pairs):
        first = bare(one, device, steps)
        middle = bare(other, device, steps), bare(other, device, steps)
        last = bare(one, device, steps)
        logs.append(math.log((first + last) / sum(middle)))
        others_s += middle
    error = 1.96 * median_error(logs)
    return Ratio(point=math.exp(median(logs)), error=error, plain_s=median(others_s), pairs=pairs)
