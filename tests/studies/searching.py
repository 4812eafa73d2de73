"""What does cuDNN's search for its quickest kernels cost, and win? `python -m tests.studies.searching [MODEL ...] [--device cuda]`.

`cudnn_benchmark=True`, the default of all fixtures, builds and times every kernel that cuDNN offers for every shape of a model, in its first step: torch
keeps none of it. Each way to choose has a process of its own, because what was chosen stays chosen: the search, one of at most three of them (`limit`), cuDNN's own
estimate (`estimate`), and its second one (`estimate-b`). Printed are seconds of the first step, uncompiled, and milliseconds of those after it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from tests.studies.alternating import bare, prepared

MODELS = {
    "efficientnet_b4": (380, 128),
    "mobilenet_v3_large": (224, 512),
    "resnet50": (224, 256),
}  # pixels, batch
WAYS = ("search", "limit", "estimate", "estimate-b")
FEW = 3
STEPS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of: {', '.join(MODELS)}")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--batch", type=int, help="of all models; else each has that of its suite")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for model in arguments.models or MODELS:
        batch = arguments.batch or MODELS[model][1]
        if arguments.way:
            _tell(model, arguments.way, arguments.device, batch)
            continue
        for way in arguments.ways:
            second = {"TORCH_CUDNN_USE_HEURISTIC_MODE_B": "1"} if way == "estimate-b" else {}
            asked = ["--way", way, "--device", arguments.device, "--batch", str(batch)]
            subprocess.run(
                [sys.executable, "-m", "tests.studies.searching", model, *asked],
                env={**os.environ, **second},
                check=True,
            )


def _tell(model: str, way: str, name: str, batch: int) -> None:
    import torch

    from pytest_accel.workloads.steps import TrainStep

    device = prepared(name)
    if way == "limit":
        torch.backends.cudnn.benchmark_limit = FEW
    asked = {"data": "imagenet", "image_size": MODELS[model][0], "batch_size": batch, "precision": "bf16"}
    searched = way in ("search", "limit")
    with TrainStep.build(
        model, device=torch.device(device.name), compile=None, cudnn_benchmark=searched, **asked
    ) as step:
        begun = time.perf_counter()
        step()
        device.synchronize()
        first_s = time.perf_counter() - begun
        steps_s = sorted(bare(step, device, STEPS // 4) for _ in range(4))
    print(
        f"{model}: {way:10}  first step {first_s:6.2f} s, then {1e3 * sum(steps_s[1:3]) / 2:.2f} ms",
        flush=True,
    )


if __name__ == "__main__":
    main()
