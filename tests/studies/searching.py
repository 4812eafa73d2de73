"""What does cuDNN's search for its quickest kernels cost, and win? `python -m tests.studies.searching [NAME ...] [--device cuda]`.

`cudnn_benchmark=True`, the default of all fixtures, builds every kernel that cuDNN offers for every shape of a model, in its first step, and times ten of them, once each:
torch keeps none of it. Each way to choose has a process of its own, because what was chosen stays chosen: the search, a search of three
kernels (`limit`), cuDNN's own estimate (`estimate`), its other one (`estimate-b`), and a search of all but depthwise convolutions, for which the estimate is asked before the first step
(`seeded`: torch looks whether it knows a kernel before it looks whether it should search, in the thread that calls). `keeping` is the search without what torch does behind each: it gives all memory that it
has cached back to the device. Printed are seconds of the first step, uncompiled, and milliseconds of those after
it. A way that is named twice shows what two processes choose: `--ways search search search estimate estimate`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

import torch

from pytest_accel.workloads.steps import TrainStep
from tests.studies.alternating import add_names, bare, prepared
from tests.studies.convolutions import WORKLOADS, Convolution, convolutions_of

WAYS = ("search", "limit", "estimate", "estimate-b", "seeded", "keeping")
FEW = 3
STEPS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_names(parser, WORKLOADS)
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
    device = prepared(device_name)
    if way == "limit":
        torch.backends.cudnn.benchmark_limit = FEW
    if way == "keeping" and device_name == "cuda":
        torch._C._cudnn_set_conv_benchmark_empty_cache(False)  # as torch does where it records
    searched = not way.startswith("estimate")
    row = {"precision": "bf16", **WORKLOADS[name], "batch_size": batch, "device": torch.device(device.name)}
    with TrainStep.build(name, compile=None, cudnn_benchmark=searched, **row) as step:
        convolutions = convolutions_of(name, batch) if way == "seeded" else ()
        begun = time.perf_counter()
        for convolution in convolutions:
            if convolution.is_depthwise:
                seed(convolution, device.name)
        step()
        device.synchronize()
        first_s = time.perf_counter() - begun
        steps_s = sorted(bare(step, device, STEPS // 4) for _ in range(4))
    then_ms = 1e3 * sum(steps_s[1:3]) / 2
    print(f"{name}: {way:10}  first step {first_s:6.2f} s, then {then_ms:.2f} ms", flush=True)


def seed(convolution: Convolution, device: str, dtype: torch.dtype = torch.bfloat16) -> None:
    """Have cuDNN's estimate chosen for a convolution and its gradients, in the threads in which steps will call them."""
    image, weight = (
        torch.empty(shape, device=device, dtype=dtype)
        .contiguous(memory_format=torch.channels_last)
        .requires_grad_()
        for shape in (convolution.image, convolution.weight)
    )
    searching, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
    try:
        result = torch.ops.aten.convolution(image, weight, None, *convolution.arguments)
        result.backward(torch.empty_like(result))
    finally:
        torch.backends.cudnn.benchmark = searching


if __name__ == "__main__":
    main()
