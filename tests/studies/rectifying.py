"""What do convolutions win that normalise, add and rectify themselves? `python -m tests.studies.rectifying [--device cuda]`.

The step of the `infer` fixture, which has them (pytest_accel/workloads/rectifying.py), and one without, or without the first of them, in turn (ABBA): for throughput and for a single image. Printed are the
ratio of their step times (below 1 it is faster with them), what their first steps took, and how far their answers are apart.
"""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any
from unittest.mock import patch

import torch

from pytest_accel.measure.steps import timed_block
from pytest_accel.workloads import rectifying
from pytest_accel.workloads.steps import InferStep
from tests.studies.alternating import apart, bare, in_turn, prepared

WORKLOADS: dict[str, list[dict[str, Any]]] = {
    "cuda": [
        {"model": "resnet50", "data": "imagenet", "batch_size": 1024, "precision": "bf16"},
        {"model": "resnet50", "data": "imagenet", "batch_size": 1, "precision": "bf16"},
        {"model": "resnet50", "data": "imagenet", "batch_size": 1024, "precision": "fp16"},
    ],
    # Eager, and so twice the same: that it runs
    "cpu": [
        {"model": "resnet18", "data": "imagenet", "image_size": 64, "batch_size": 2, "precision": "bf16"}
    ],
}

WITHOUT: dict[str, tuple[str, Any]] = {
    "any": ("rectify", lambda _: None),
    "the first": ("can_rectify_first", lambda _: False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=sorted(WORKLOADS))
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a block")
    arguments = parser.parse_args()
    device = prepared(arguments.device)
    for workload, without in product(WORKLOADS[arguments.device], WITHOUT):
        asked = {**workload, "device": torch.device(device.name)}
        with patch.object(rectifying, *WITHOUT[without]):
            plain = InferStep.build(**asked)
        with plain, InferStep.build(**asked) as step:
            first = [timed_block(each, 1, device) for each in (step, plain)]
            step_s = bare(plain, device, 5)
            far = difference(step, plain)
            steps = max(2, round(arguments.seconds / step_s))
            ratio = in_turn(step, plain, device, pairs=arguments.pairs, steps=steps)
            print(
                f"{asked['model']}, {asked['precision']}, batch {asked['batch_size']}, over that without {without}: {ratio}; first steps {first[0]:.1f} and "
                f"{first[1]:.1f} s; answers {far:.2%} of the largest apart",
                flush=True,
            )


def difference(one: InferStep, other: InferStep) -> float:
    """Of their answers to one batch."""
    batch = other._next_batch()
    found, expected = (step._infer(iter([batch])).float() for step in (one, other))
    return apart(found, expected)


if __name__ == "__main__":
    main()
