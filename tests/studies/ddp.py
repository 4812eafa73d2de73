"""What does DDP cost where there is nobody to talk to? `python -m tests.studies.ddp [--device cuda] [--pairs N]`.

One process in a process group of one rank (NCCL on a GPU, gloo on the CPU) holds the same training step twice:
plain, and in DistributedDataParallel. They take turns (ABBA) in rounds of equal steps, the device synchronised at
both ends. Printed is the ratio of the two, with its 95 % interval: hooks, buckets and the copy into them, and the
reduction of one rank; never a network.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from pytest_accel.distributed.process_group import ProcessGroup, open_process_group
from pytest_accel.measure.device import Device
from pytest_accel.measure.ranks import Alone
from pytest_accel.workloads.step import TrainStep
from tests.studies.alternating import Ratio, in_turn, prepared
from tests.support.gloo import free_port


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
    device = prepared(arguments.device)
    with group_of_one(torch.device(device.name)) as group:
        for model, choices in WORKLOADS[arguments.device].items():
            compiled = {"compile": None} if arguments.eager else {}
            ratio = ddp_against_plain(model, device, group, pairs=arguments.pairs, **choices, **compiled)
            print(f"{model:16s} {group.backend}: {ratio}", flush=True)


if __name__ == "__main__":
    main()
