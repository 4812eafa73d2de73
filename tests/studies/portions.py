"""Is a batch inferred sooner in portions that a device's cache can hold? `python -m tests.studies.portions [NAME ...] [--device cuda]`.

What a layer writes the next one reads: of 1,024 images that is more than any cache holds, and goes to memory and back; of 32 it is some 50 MB where a ResNet50 has most. The same batch
as it is inferred in the suites, and in portions one after the other, replayed as one launch, in turn (ABBA). Printed are the ratio of their step times for each size of a
portion (below 1 portions are faster; the first is the whole batch, which tells what replaying does by itself), and how far their answers are apart.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch

from pytest_accel.workloads.steps import InferStep
from tests.studies.alternating import add_names, bare, in_turn, prepared
from tests.studies.rectifying import difference

WORKLOADS: dict[str, dict[str, Any]] = {
    "resnet50": {"data": "imagenet", "batch_size": 1024, "precision": "bf16"},
    "swin_t": {"data": "imagenet", "batch_size": 1024, "precision": "bf16"},
}
PORTIONS = (1024, 512, 256, 128, 64, 32)
SMALL = {"image_size": 64, "batch_size": 8}  # on the CPU: that it runs
SMALL_PORTIONS = (8, 4, 2)


def in_portions(size: int) -> type[InferStep]:
    """An InferStep that takes its batch so many at a time."""

    class Portioned(InferStep):
        def _infer(self, batches: Iterator[Any]) -> torch.Tensor:
            images, _ = next(batches)
            with torch.inference_mode():
                return torch.cat([self._forward(portion) for portion in images.split(size)])

    return Portioned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_names(parser, WORKLOADS)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--portions", nargs="+", type=int, metavar="IMAGES")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a block")
    arguments = parser.parse_args()
    device = prepared(arguments.device)
    on_cpu = arguments.device == "cpu"
    for name in arguments.names or WORKLOADS:
        asked = {**WORKLOADS[name], **(SMALL if on_cpu else {}), "device": torch.device(device.name)}
        sizes = arguments.portions or (SMALL_PORTIONS if on_cpu else PORTIONS)
        with ExitStack() as open_steps:  # one that is closed would have the others compile again
            whole = open_steps.enter_context(InferStep.build(name, **asked))
            step_s = min(bare(whole, device, 3) for _ in range(2))  # the first compiles
            steps = max(2, round(arguments.seconds / step_s))
            for size in sizes:
                portioned = open_steps.enter_context(
                    in_portions(size).build(name, **asked, replay=not on_cpu)
                )
                far = difference(portioned, whole)
                ratio = in_turn(portioned, whole, device, pairs=arguments.pairs, steps=steps)
                print(
                    f"{name}, {size} of {asked['batch_size']}: {ratio}; answers {far:.2%} of the largest apart",
                    flush=True,
                )


if __name__ == "__main__":
    main()
