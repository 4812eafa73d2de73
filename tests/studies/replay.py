"""What does a step win that is replayed as one launch? `python -m tests.studies.replay [NAME ...]`; it needs a CUDA device.

Each row of the suites that waits for its launches, and some that nearly do, with `replay=True` and with `replay=False`, which records what is compiled of it
where that pays, in turn (ABBA). Prints the
losses of both after the same steps, and the ratio of their step times: below 1 replaying is faster.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

from pytest_accel.workloads.steps import InferStep, TrainStep
from tests.studies.alternating import add_names, bare, in_turn, prepared
from tests.support.steps import losses

STEPS = 12
Workload = tuple[Callable[..., Any], str, dict[str, Any]]
WORKLOADS: dict[str, Workload] = {
    "wide_resnet": (TrainStep.build, "zoo/wide_resnet", {"data": "cifar100", "batch_size": 32}),
    "autoencoder": (
        TrainStep.build,
        "zoo/autoencoder",
        {"data": "mnist", "batch_size": 10, "optimizer": "adam", "precision": "tf32"},
    ),
    "bert-128": (TrainStep.build, "zoo/bert-base", {"sequence": 128, "batch_size": 32, "clip": 1.0}),
    "bert-384": (TrainStep.build, "zoo/bert-base", {"sequence": 384, "batch_size": 32, "clip": 1.0}),
    "gpt-micro": (TrainStep.build, "zoo/gpt-117m", {"batch_size": 16, "micro_batch_size": 4}),
    "segformer-1": (TrainStep.build, "zoo/segformer-b4", {"data": "cityscapes", "batch_size": 1}),
    "segformer-8": (TrainStep.build, "zoo/segformer-b4", {"data": "cityscapes", "batch_size": 8}),
    "resnet50-latency": (InferStep.build, "resnet50", {"data": "imagenet", "batch_size": 1}),
    "resnet152": (TrainStep.build, "resnet152", {"data": "imagenet", "batch_size": 256}),
    "swin_b": (TrainStep.build, "swin_b", {"data": "imagenet", "batch_size": 128}),
    "swin_t-latency": (InferStep.build, "swin_t", {"data": "imagenet", "batch_size": 1}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_names(parser, WORKLOADS)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a block")
    parser.add_argument("--device", choices=["cuda"], default="cuda", help="which replays")
    arguments = parser.parse_args()
    device = prepared(arguments.device)
    for name in arguments.names or WORKLOADS:
        build, model, asked = WORKLOADS[name]
        asked = {"precision": "bf16", **asked, "device": torch.device(device.name)}
        with build(model, **asked, replay=True) as replayed, build(model, **asked, replay=False) as launched:
            for step in (replayed, launched):
                if isinstance(step, TrainStep):
                    print(f"{name}: loss {losses(step, STEPS)[-1]:.5f}", flush=True)
            step_s = _step_s(launched, device)
            steps = max(2, round(arguments.seconds / step_s))
            print(
                f"{name}: {in_turn(replayed, launched, device, pairs=arguments.pairs, steps=steps)}",
                flush=True,
            )


def _step_s(step: Any, device: Any) -> float:
    bare(step, device, STEPS)  # compiles
    return bare(step, device, STEPS)


if __name__ == "__main__":
    main()
