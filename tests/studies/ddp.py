"""What does DDP cost where there is nobody to talk to? `python -m tests.studies.ddp [--device cuda] [--pairs N]`.

One process in a process group of one rank (NCCL on a GPU, gloo on the CPU) holds the same training step twice:
plain, and in DistributedDataParallel. They take turns (ABBA) in rounds of equal steps, the device synchronised at
both ends. Printed is the ratio of the two, with its 95 % interval: hooks, buckets and the copy into them, and the
reduction of one rank; never a network.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

from pytest_accel.core.robust import median_error
from pytest_accel.measure.device import CpuDevice, CudaDevice, Device
from pytest_accel.measure.ranks import Alone
from pytest_accel.spmd.process_group import ProcessGroup, open_process_group
from pytest_accel.workloads.steps import TrainStep
from tests.studies.overhead import bare
from tests.support.gloo import free_port

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


@contextmanager
def group_of_one(device: torch.device) -> Iterator[ProcessGroup]:
    """A process group of this process alone, as a gang of one rank has it."""
    told = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with patch.dict(os.environ, told):
        group = open_process_group(device, rendezvous_s=60, timeout_s=600)
        try:
            yield group
        finally:
            group.close()


def ddp_against_plain(
    model: str, device: Device, group: ProcessGroup, *, pairs: int, steps: int, **choices: Any
) -> Ratio:
    chosen: Mapping[str, Any] = {"device": torch.device(device.name), **choices}
    with (
        TrainStep.build(model, ranks=Alone(), **chosen) as plain,
        TrainStep.build(model, ranks=group, **chosen) as ddp,
    ):
        ratio = in_turn(ddp, plain, device, pairs=pairs, steps=steps)
        plain.check()
        ddp.check()
    return ratio


def in_turn(one: TrainStep, other: TrainStep, device: Device, *, pairs: int, steps: int) -> Ratio:
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


WORKLOADS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "cuda": {
        "resnet50": {"data": "imagenet", "batch_size": 256, "precision": "bf16", "steps": 10},
        "zoo/gpt-117m": {"batch_size": 16, "precision": "bf16", "steps": 10},
    },
    "cpu": {
        "resnet18": {"data": "cifar100", "image_size": 32, "batch_size": 4, "steps": 2},
        "zoo/gpt-tiny": {"batch_size": 1, "sequence": 64, "steps": 2},
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=sorted(WORKLOADS))
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--eager", action="store_true", help="do not compile, where that is the default")
    arguments = parser.parse_args()
    device: Device = CpuDevice(threads=1) if arguments.device == "cpu" else CudaDevice()
    device.prepare()
    with group_of_one(torch.device(device.name)) as group:
        for model, choices in WORKLOADS[arguments.device].items():
            compiled = {"compile": None} if arguments.eager else {}
            ratio = ddp_against_plain(model, device, group, pairs=arguments.pairs, **choices, **compiled)
            print(f"{model:16s} {group.backend}: {ratio}", flush=True)


if __name__ == "__main__":
    main()
