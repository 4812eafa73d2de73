"""For which convolutions does cuDNN's search pay? `python -m tests.studies.convolutions [NAME ...] [--device cuda]`.

`searching` asks it of whole steps, on a device that is its own. This asks it of every different convolution of a model: the seconds until its forward pass and both its
gradients were called first, and the milliseconds of each from then on, the quickest of several, so that it may run beside others (they slow most calls, and hardly all). Each way to
choose has a process of its own, because what was chosen stays chosen. Those that the search made 5 % quicker are printed, and the sums of all.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_accel.measure.device import Device
from pytest_accel.workloads.models.build import build_model
from pytest_accel.workloads.tasks import plan_data
from tests.studies.alternating import add_names, bare, prepared

# As in the suites.
WORKLOADS: dict[str, dict[str, Any]] = {
    "efficientnet_b0": {"data": "imagenet", "batch_size": 256},
    "efficientnet_b4": {"data": "imagenet", "image_size": 380, "batch_size": 128},
    "mobilenet_v3_large": {"data": "imagenet", "batch_size": 256},
    "resnet50": {"data": "imagenet", "batch_size": 256},
    "zoo/segformer-b4": {"data": "cityscapes", "batch_size": 8},
    "zoo/deeplabv3plus-r101": {"data": "cityscapes", "batch_size": 8},
    "zoo/autoencoder": {"data": "mnist", "batch_size": 512, "precision": "tf32"},
}
WAYS = ("search", "estimate")
PARTS = ("forward", "to images", "to weights")
REPEATS = 12
QUICKER = 0.95  # than by the estimate, or the search won nothing
BUSY_CYCLES = 2_000_000  # a millisecond in which the host gets ahead of the device


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """One call of it, forward; lists as torch has them."""

    image: tuple[int, ...]
    weight: tuple[int, ...]
    how: tuple[Any, ...]  # stride, padding, dilation, transposed, output padding, groups

    @property
    def is_depthwise(self) -> bool:
        return bool(self.how[-1] == self.image[1] > 1)

    @property
    def arguments(self) -> list[Any]:
        """Behind image, weight and bias."""
        return [list(each) if isinstance(each, tuple) else each for each in self.how]

    def __str__(self) -> str:
        stride, _, dilation, transposed, *_ = self.how
        words = [
            f"{self.weight[0]} channels depthwise"
            if self.is_depthwise
            else f"{self.image[1]} to {self.weight[0]} channels",
            "x".join(map(str, self.weight[2:])),
            "x".join(map(str, self.image[2:])),
            *(
                f"{name} {value[0]}"
                for name, value in (("stride", stride), ("dilation", dilation))
                if value[0] > 1
            ),
            *(["transposed"] if transposed else []),
        ]
        return ", ".join(words)

    def calls(self, device: str, dtype: torch.dtype) -> list[Callable[[], Any]]:
        """In the order of `PARTS`."""
        how: dict[str, Any] = {"device": device, "dtype": dtype}
        image = torch.randn(self.image, **how).contiguous(memory_format=torch.channels_last)
        weight = torch.randn(self.weight, **how).contiguous(memory_format=torch.channels_last)
        arguments = self.arguments

        def forward() -> torch.Tensor:
            return torch.ops.aten.convolution(image, weight, None, *arguments)

        gradient = torch.randn_like(torch.empty_like(self._result(), **how))

        def backward(*wanted: bool) -> Callable[[], Any]:
            return lambda: torch.ops.aten.convolution_backward(
                gradient, image, weight, None, *arguments, [*wanted, False]
            )

        return [forward, backward(True, False), backward(False, True)]

    def _result(self) -> torch.Tensor:
        """Without memory: only its shape is asked for, and nothing is chosen yet."""
        image, weight = (
            torch.empty(shape, device="meta").contiguous(memory_format=torch.channels_last)
            for shape in (self.image, self.weight)
        )
        found: torch.Tensor = torch.ops.aten.convolution(image, weight, None, *self.arguments)
        return found


class _Noting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[Convolution] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.convolution.default:
            image, weight, _, *how = args
            arguments = tuple(tuple(each) if isinstance(each, list) else each for each in how)
            self.found[Convolution(image=tuple(image.shape), weight=tuple(weight.shape), how=arguments)] += 1
        return function(*args, **(kwargs or {}))


def convolutions_of(name: str, batch: int | None = None) -> Counter[Convolution]:
    """The different convolutions of a model in its suite, and how often each is called in a step."""
    row = WORKLOADS[name]
    model, info = build_model(name, image_size=row.get("image_size"))
    plan = plan_data(row["data"], info, batch_size=batch or row["batch_size"])
    inputs, _ = plan.on_meta()
    noting = _Noting()
    with torch.no_grad(), noting:
        model.to("meta")(inputs)
    return noting.found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_names(parser, WORKLOADS)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--batch", type=int, help="of all; else each has that of its suite")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)  # of this process
    arguments = parser.parse_args()
    for name in arguments.names or WORKLOADS:
        if arguments.way:
            for told in _measured(name, arguments.way, arguments.device, arguments.batch):
                print(json.dumps(told), flush=True)
            continue
        asked = [
            "--device",
            arguments.device,
            *(["--batch", str(arguments.batch)] if arguments.batch else []),
        ]
        by_way = [_asked(name, way, asked) for way in WAYS]
        for line in compared(name, convolutions_of(name, arguments.batch), *by_way):
            print(line, flush=True)


def _asked(name: str, way: str, asked: list[str]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.studies.convolutions", name, "--way", way, *asked],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def _measured(name: str, way: str, device_name: str, batch: int | None) -> Iterator[dict[str, Any]]:
    device = prepared(device_name)
    torch.backends.cudnn.benchmark = way == "search"
    exact = device_name == "cpu" or WORKLOADS[name].get("precision") == "tf32"
    dtype = torch.float32 if exact else torch.bfloat16
    for convolution in convolutions_of(name, batch):
        calls = convolution.calls(device_name, dtype)
        device.synchronize()
        begun = time.perf_counter()
        for call in calls:
            call()
        device.synchronize()
        first_s = time.perf_counter() - begun
        yield {"first_s": first_s, "ms": [_quickest_ms(call, device) for call in calls]}


def _quickest_ms(call: Callable[[], Any], device: Device) -> float:
    if device.name == "cpu":
        return 1e3 * min(bare(call, device, 1) for _ in range(2))
    times_ms = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(BUSY_CYCLES)  # nothing else keeps it busy for a known time
        begin.record()
        call()
        end.record()
        end.synchronize()
        times_ms.append(begin.elapsed_time(end))
    return min(times_ms)


def compared(
    name: str,
    convolutions: Counter[Convolution],
    searched: list[dict[str, Any]],
    estimated: list[dict[str, Any]],
) -> Iterator[str]:
    """What is printed of a model; pure."""
    rows = list(zip(convolutions.items(), searched, estimated, strict=True))
    for (convolution, times), ours, theirs in rows:
        if sum(ours["ms"]) < QUICKER * sum(theirs["ms"]):
            pairs = ", ".join(
                f"{part} {one:.3f} ms by {other:.3f}"
                for part, one, other in zip(PARTS, ours["ms"], theirs["ms"], strict=True)
            )
            yield f"{name}: {times} x {convolution}: {pairs}; first {ours['first_s']:.2f} s by {theirs['first_s']:.2f}"
    for words, depthwise in (("depthwise", True), ("others", False)):
        kinds = [row for row in rows if row[0][0].is_depthwise is depthwise]
        if not kinds:
            continue
        first_s = [math.fsum(row[side]["first_s"] for row in kinds) for side in (1, 2)]
        step_ms = [math.fsum(row[0][1] * sum(row[side]["ms"]) for row in kinds) for side in (1, 2)]
        yield (
            f"{name}: {words}, {len(kinds)} different: first calls {first_s[0]:.1f} s with the search, {first_s[1]:.1f} by the estimate; "
            f"in a step {step_ms[0]:.2f} ms, {step_ms[1]:.2f}"
        )


if __name__ == "__main__":
    main()
