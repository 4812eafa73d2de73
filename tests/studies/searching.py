"""What does cuDNN's search for its quickest kernels cost, and win? `python -m tests.studies.searching [NAME ...] [--device cuda]`.

`cudnn_benchmark=True`, the default of all fixtures, builds every kernel that cuDNN offers for every shape of a model, in its first step, and times ten of them, once each:
torch keeps none of it. Each way to choose has a process of its own, because what was chosen stays chosen: the search, a search of three
kernels (`limit`), cuDNN's own estimate (`estimate`), and its other one (`estimate-b`). Printed are seconds of the first step, uncompiled, and milliseconds of those after
it. A way that is named twice shows what two processes choose: `--ways search search search estimate estimate`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from typing import Any

from tests.studies.alternating import bare, prepared

# As in the suites.
WORKLOADS: dict[str, dict[str, Any]] = {
    "efficientnet_b4": {"data": "imagenet", "image_size": 380, "batch_size": 128},
    "mobilenet_v3_large": {"data": "imagenet", "batch_size": 256},
    "resnet50": {"data": "imagenet", "batch_size": 256},
    "zoo/segformer-b4": {"data": "cityscapes", "batch_size": 8},
}
WAYS = ("search", "limit", "estimate", "estimate-b")
FEW = 3
STEPS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(WORKLOADS)}")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--batch", type=int, help="of all; else each has that of its suite")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)  # of this process
    arguments = parser.parse_args()
    for name in arguments.names or WORKLOADS:
        batch = arguments.batch or WORKLOADS[name]["batch_size"]
        if arguments.way:
            _tell(name, arguments.way, arguments.device, batch)
            continue
        for way in arguments.ways:
            second = {"TORCH_CUDNN_USE_HEURISTIC_MODE_B": "1"} if way == "estimate-b" else {}
            asked = ["--way", way, "--device", arguments.device, "--batch", str(batch)]
            subprocess.run(
                [sys.executable, "-m", "tests.studies.searching", name, *asked],
                env={**os.environ, **second},
                check=True,
            )


def _tell(name: str, way: str, device_name: str, batch: int) -> None:
    import torch

    from pytest_accel.workloads.steps import TrainStep

    device = prepared(device_name)
    if way == "limit":
        torch.backends.cudnn.benchmark_limit = FEW
    searched = way in ("search", "limit")
    asked = {**WORKLOADS[name], "batch_size": batch, "device": torch.device(device.name)}
    with TrainStep.build(name, precision="bf16", compile=None, cudnn_benchmark=searched, **asked) as step:
        begun = time.perf_counter()
        step()
        device.synchronize()
        first_s = time.perf_counter() - begun
        steps_s = sorted(bare(step, device, STEPS // 4) for _ in range(4))
    then_ms = 1e3 * sum(steps_s[1:3]) / 2
    print(f"{name}: {way:10}  first step {first_s:6.2f} s, then {then_ms:.2f} ms", flush=True)


if __name__ == "__main__":
    main()
